"""`evaluation.device` and `evaluation.datasets` are checked with paths from the root of the pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from modyn.evaluator.config import check_evaluation, load_dataset

DATASET: dict[str, Any] = {
    "dataset_id": "test",
    "record_layout": {"dtype": "float32", "shape": [4]},
    "batch_size": 8,
    "metrics": [{"name": "Accuracy"}, {"name": "Accuracy", "topn": 2}, {"name": "Precision", "config": {"task": "binary"}}],
}


def check(evaluation: object) -> list[str]:
    return [str(problem) for problem in check_evaluation({"evaluation": evaluation, "model": {"id": "X"}})]


def test_valid_sections() -> None:
    assert check({"device": "cpu", "datasets": [DATASET], "handlers": [{"anything": "of the supervisor's"}]}) == []
    assert not check(None)
    assert not check_evaluation({})
    assert load_dataset(DATASET).metric_labels() == ["Accuracy", "Top-2-Accuracy", "Precision"]


@pytest.mark.parametrize(
    ("evaluation", "path", "message"),
    [
        ({"device": "gpu", "datasets": [DATASET]}, "evaluation.device", "cpu, cuda or cuda:N"),
        ({"device": "cuda:999", "datasets": [DATASET]}, "warning: evaluation.device", "'cuda:999' does not exist"),
        ({"datasets": []}, "evaluation.datasets", "at least one"),
        ({}, "", ""),
        ([], "", ""),
        ("yes", "evaluation", "section"),
        ({"datasets": ["test"]}, "evaluation.datasets.0", "'test' is wrong"),
        ({"datasets": [DATASET, DATASET | {"batch_size": 0}]}, "evaluation.datasets.1.batch_size", "0 is wrong"),
        ({"datasets": [DATASET | {"metrics": []}]}, "evaluation.datasets.0.metrics", "at least 1"),
        (
            {"datasets": [DATASET | {"metrics": [{"name": "Accurcy"}]}]},
            "evaluation.datasets.0.metrics.0.name",
            "did you mean 'Accuracy'",
        ),
        ({"datasets": [DATASET | {"metrics": ["Accuracy"]}]}, "evaluation.datasets.0.metrics.0", "name: Accuracy"),
        (
            {"datasets": [DATASET | {"metrics": [{"name": "RocAuc"}] * 2}]},
            "evaluation.datasets.0.metrics.1",
            "give one of them a `label`",
        ),
        ({"datasets": [DATASET | {"metric": []}]}, "evaluation.datasets.0.metric", "did you mean 'metrics'"),
        ({"datasets": [DATASET | {"record_layout": None}]}, "evaluation.datasets.0", "none is given"),
    ],
)
def test_mistakes_are_named(evaluation: object, path: str, message: str) -> None:
    found = check(evaluation)
    if not evaluation:
        assert found == []
        return
    assert len(found) == 1, found
    assert found[0].startswith(f"{path}: ")
    assert message in found[0]


def test_all_mistakes_are_told_at_once() -> None:
    wrong = DATASET | {"batch_size": "x", "metrics": [{"name": "Accuracy", "topn": 0}, {"name": "None"}]}
    assert [line.split(":")[0] for line in check({"device": "tpu", "datasets": [wrong]})] == [
        "evaluation.device",
        "evaluation.datasets.0.batch_size",
        "evaluation.datasets.0.metrics.0.topn",
        "evaluation.datasets.0.metrics.1.name",
    ]
