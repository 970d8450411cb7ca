"""`evaluation.device` and `evaluation.datasets` are checked with paths from the root of the pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from modyn.config.base import Severity
from modyn.evaluator.config import check_conditions, check_evaluation, load_dataset

DATASET: dict[str, Any] = {
    "dataset_id": "test",
    "record_layout": {"dtype": "float32", "shape": [4]},
    "batch_size": 8,
    "metrics": [{"name": "Accuracy"}, {"name": "Accuracy", "topn": 2}, {"name": "Precision", "config": {"task": "binary"}}],
}


def check(evaluation: object) -> list[str]:
    return [str(problem) for problem in check_evaluation({"evaluation": evaluation, "model": {"id": "X"}})]


def thresholds(**options: Any) -> list[str]:
    """Return the problems of a pipeline whose downsampling policies depend on a score of the handler `h`."""
    error = {"name": "MeanSquaredError", "label": "MSE"}
    datasets = [DATASET, {**DATASET, "dataset_id": "other", "metrics": [error, {"name": "Accuracy"}]}]
    handlers = [
        {"name": "h", "execution_time": "after_training", "datasets": ["test", "other"]},
        {"name": "m", "datasets": ["test"]},
    ]
    turns = {"downsampling_list": [{}, {}], "downsampling_thresholds": {"values": [0.5], **options}}
    pipeline = {"evaluation": {"datasets": datasets, "handlers": handlers}, "selection_strategy": turns}
    return [str(problem) for problem in check_evaluation(pipeline)]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("Accuracy on test >= 0.9", ""),
        ("Accuracy on clicks >= 0.9", ""),  # of a dataset that `evaluation` does not name
        ("Accurcy on clicks >= 0.9", "'Accurcy', did you mean 'Accuracy'?"),
        ("RocAuc on test >= 0.9", "RocAuc does not fit the model: it takes one or two classes"),
        ("Accuracy on test >= 90", "'Accuracy on test >= 90': 'Accuracy' lies in [0, 1]; write a number between 0 and 1"),
        ("Accuracy on test not worse than promoted by 1.5", "'Accuracy' lies in [0, 1]"),
        ("MeanSquaredError on test <= 90", ""),  # which has no such range
        ("Accuracy", ""),  # the section itself says so
    ],
)
def test_a_condition_of_promotions_with_a_metric_that_cannot_be_measured(condition: str, message: str) -> None:
    model = {"id": "LogisticRegression", "config": {"input_size": 4, "num_classes": 3}}
    serving = {"promote_if": ["Accuracy on test >= 0.1", condition]}
    for evaluation in (None, {"datasets": [DATASET]}):
        found = check_conditions({"serving": serving, "model": model, "evaluation": evaluation})
        assert [problem.path for problem in found] == (["serving.promote_if.1"] if message else [])
        assert message in "".join(map(str, found))


@pytest.mark.parametrize(
    ("options", "mistakes"),
    [
        ({}, []),
        ({"metric": "Precision", "handler": "m"}, []),
        ({"metric": "Precision"}, ["metric: 'Precision' is not a metric of evaluation.datasets.1. There are: MSE, Accuracy"]),
        (
            {"metric": "MSE"},
            [
                "metric: 'MSE' is not a metric of evaluation.datasets.0. There are: Accuracy, Top-2-Accuracy, Precision",
                "metric: low values of 'MSE' are good, but the downsampling policies expect a score that rises: choose a metric whose high values "
                "are good",
            ],
        ),
        (
            {"metric": "Acuracy", "handler": "m"},
            ["metric: 'Acuracy' is not a metric of evaluation.datasets.0, did you mean 'Accuracy'? "],
        ),
        ({"values": [60], "handler": "m"}, ["values: 60 is never reached: 'Accuracy' lies in [0, 1]"]),
        ({"values": [-1], "handler": "m"}, ["values: -1 is always reached: 'Accuracy' lies in [0, 1]"]),
        ({"handler": "unknown"}, []),  # the supervisor names it
    ],
)
def test_the_metric_whose_scores_decide_about_downsampling(options: dict[str, Any], mistakes: list[str]) -> None:
    found = thresholds(**options)
    assert len(found) == len(mistakes)
    for text, mistake in zip(found, mistakes, strict=True):
        assert text.startswith(f"selection_strategy.downsampling_thresholds.{mistake}")


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
            "give one of them another `label`",
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


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ({"name": "F1Score", "num_classes": 7}, "F1Score does not fit the model: num_classes is 7, but the model has 10"),
        ({"name": "F1Score", "num_classes": 10}, ""),
        ({"name": "F1Score", "num_classes": 7, "evaluation_transformer_function": "a.b:c"}, ""),
        ({"name": "Accuracy", "topn": 11}, "topn is 11, but the model has 10 classes"),
        ({"name": "RocAuc"}, "one or two classes, but the model has 10"),
    ],
)
def test_a_metric_that_does_not_fit_the_output_of_the_model(metric: dict[str, Any], message: str) -> None:
    evaluation = {"datasets": [DATASET | {"metrics": [metric]}]}
    found = check_evaluation({"evaluation": evaluation, "model": {"id": "SmallCNN", "config": {}}})
    assert [problem.path for problem in found] == (["evaluation.datasets.0.metrics.0"] if message else [])
    assert all(message in problem.message for problem in found)
    for unknown in ({"id": "Unknown"}, {"id": "SmallCNN", "config": {"wrong": 1}}, {"id": "SmallCNN", "config": [3]}, "x"):
        assert check_evaluation({"evaluation": evaluation, "model": unknown}) == []


def test_a_misspelt_metric_of_torchmetrics_names_the_nearest() -> None:
    assert "did you mean 'Precision'" in check({"datasets": [DATASET | {"metrics": [{"name": "Precison"}]}]})[0]


@pytest.mark.parametrize(
    ("data", "entry", "warned"),
    [
        ({"dataset_id": "test", "on_bad_sample": "skip"}, {}, True),
        ({"dataset_id": "test", "on_bad_sample": "skip"}, {"on_bad_sample": "skip"}, False),
        ({"dataset_id": "test", "on_bad_sample": "skip"}, {"on_bad_sample": "fail"}, False),
        ({"dataset_id": "other", "on_bad_sample": "skip"}, {}, False),
        ({"dataset_id": "test"}, {}, False),
    ],
)
def test_an_evaluation_that_fails_at_samples_that_its_trainings_leave_out(
    data: dict[str, Any], entry: dict[str, Any], warned: bool
) -> None:
    found = check_evaluation({"evaluation": {"datasets": [DATASET | entry]}, "model": {"id": "X"}, "data": data})
    assert [(p.path, p.severity) for p in found] == (
        [("evaluation.datasets.0.on_bad_sample", Severity.WARNING)] if warned else []
    )
    assert all("write on_bad_sample: skip" in problem.message for problem in found)


def test_all_mistakes_are_told_at_once() -> None:
    wrong = DATASET | {"batch_size": "x", "metrics": [{"name": "Accuracy", "topn": 0}, {"name": "None"}]}
    assert [line.split(":")[0] for line in check({"device": "tpu", "datasets": [wrong]})] == [
        "evaluation.device",
        "evaluation.datasets.0.batch_size",
        "evaluation.datasets.0.metrics.0.topn",
        "evaluation.datasets.0.metrics.1.name",
    ]
