"""Metrics against scikit-learn and torchmetrics; the checks that every registered metric passes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.config.base import Section
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.evaluator.metrics.metrics import (
    METRICS,
    Metric,
    MetricConfig,
    MetricValue,
    build_metric,
    build_metrics,
    check_metric,
    torchmetrics_names,
)

EXAMPLES: dict[str, dict[str, Any]] = {
    "Accuracy": {"name": "Accuracy"},
    "F1Score": {"name": "F1Score", "num_classes": 2},
    "RocAuc": {"name": "RocAuc"},
    "Precision": {"name": "Precision", "config": {"task": "multiclass", "num_classes": 2, "average": "macro"}},
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def drawn(seed: int, n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # Few distinct scores, so that there are ties for RocAuc; a little noise for the others would hide them.
    scores = torch.randint(0, 6, (n, classes), generator=generator).float() + torch.arange(classes) * 1e-3
    return scores, torch.randint(0, classes, (n,), generator=generator)


def value(section: dict[str, Any], outputs: torch.Tensor, labels: torch.Tensor, cuts: tuple[int, ...] = ()) -> float | None:
    metric = build_metric(section)
    for a, b in zip((0, *cuts), (*cuts, len(labels)), strict=True):
        metric.update(outputs[a:b], labels[a:b])
    return metric.value().value


SIZES = st.tuples(st.integers(0, 10_000), st.integers(1, 60), st.integers(2, 5))


@given(SIZES, st.integers(1, 5))
def test_accuracy_against_sklearn(size: tuple[int, int, int], topn: int) -> None:
    outputs, labels = drawn(*size)
    topn = min(topn, size[2])
    got = value({"name": "Accuracy", "topn": topn}, outputs, labels)
    if topn == size[2]:
        assert got == 1
    elif size[2] > 2:
        assert got == pytest.approx(sklearn.metrics.top_k_accuracy_score(labels, outputs, k=topn, labels=range(size[2])))
    if topn == 1:
        assert got == pytest.approx(sklearn.metrics.accuracy_score(labels, outputs.argmax(1)))
        assert got == value({"name": "Accuracy"}, outputs.argmax(1), labels)


@given(SIZES, st.sampled_from(["macro", "micro", "weighted"]))
def test_f1_against_sklearn(size: tuple[int, int, int], average: str) -> None:
    outputs, labels = drawn(*size)
    expected = sklearn.metrics.f1_score(labels, outputs.argmax(1), average=average, labels=range(size[2]), zero_division=0)
    section = {"name": "F1Score", "num_classes": size[2], "average": average}
    assert value(section, outputs, labels) == pytest.approx(expected)
    assert value(section, outputs.argmax(1), labels) == pytest.approx(expected)


@given(st.integers(0, 1000), st.integers(1, 40), st.integers(0, 1))
def test_binary_f1_against_sklearn(seed: int, n: int, positive: int) -> None:
    outputs, labels = drawn(seed, n, 2)
    expected = sklearn.metrics.f1_score(labels, outputs.argmax(1), pos_label=positive, zero_division=0)
    section = {"name": "F1Score", "num_classes": 2, "average": "binary", "pos_label": positive}
    assert value(section, outputs, labels) == pytest.approx(expected)


@given(st.integers(0, 1000), st.integers(2, 60))
def test_roc_auc_against_sklearn_with_ties(seed: int, n: int) -> None:
    outputs, labels = drawn(seed, n, 2)
    got = value({"name": "RocAuc"}, outputs, labels)
    if len(set(labels.tolist())) == 1:
        assert got is None
    else:
        assert got == pytest.approx(sklearn.metrics.roc_auc_score(labels, outputs[:, 1] - outputs[:, 0]))
        assert value({"name": "RocAuc"}, outputs[:, 1:] * 2 + 1, labels) == value({"name": "RocAuc"}, outputs[:, 1], labels)


def test_roc_auc_of_one_class_is_undefined_and_says_so() -> None:
    metric = build_metric({"name": "RocAuc"})
    metric.update(torch.rand(5), torch.ones(5, dtype=torch.int64))
    assert metric.value().value is None
    assert "all 5 samples are of class 1" in metric.value().note


def test_roc_auc_beyond_its_bound_is_an_estimate_and_says_so() -> None:
    outputs, labels = drawn(3, 20_000, 2)
    metric = build_metric({"name": "RocAuc", "max_samples": 5_000})
    for part in range(0, 20_000, 777):
        metric.update(outputs[part : part + 777], labels[part : part + 777])
    found = metric.value()
    assert found.note == "estimated from 5000 of 20000 samples, drawn at random"
    assert found.value == pytest.approx(sklearn.metrics.roc_auc_score(labels, outputs[:, 1] - outputs[:, 0]), abs=0.03)


@pytest.mark.parametrize(
    ("section", "shape"),
    [
        *(({"name": "Accuracy"}, shape) for shape in [(100, 5), (100,), (100, 1)]),
        ({"name": "Accuracy", "topn": 2}, (100, 5)),
        *(({"name": "F1Score", "num_classes": 5, "average": a}, (100, 5)) for a in ("macro", "micro", "weighted")),
        *(({"name": "F1Score", "num_classes": 2, "average": "binary"}, shape) for shape in [(100, 2), (100,), (100, 1)]),
        *(({"name": "RocAuc"}, shape) for shape in [(100, 2), (100,), (100, 1)]),
        ({"name": "RocAuc", "max_samples": 10}, (100,)),
        ({"name": "Precision", "config": {"task": "multiclass", "num_classes": 5}}, (100, 5)),
        ({"name": "MeanSquaredError"}, (100,)),
    ],
)
def test_scores_that_are_not_a_number_are_reported(section: dict[str, Any], shape: tuple[int, ...]) -> None:
    labels = torch.arange(100) % 2
    metric = build_metric(section)
    metric.update(torch.rand(shape)[:0], labels[:0])
    metric.update(torch.full(shape, float("nan")), labels)
    metric.update(torch.rand(shape), labels)
    assert metric.value() == MetricValue(None, "undefined: 100 scores are not a number")


@pytest.mark.parametrize("name", ["Accuracy", "F1Score", "Precision"])
def test_a_sample_with_one_score_that_is_not_a_number_counts_once(name: str) -> None:
    metric = build_metric(EXAMPLES[name])
    metric.update(torch.tensor([[float("nan"), 1], [2, 0], [float("nan"), float("nan")]]), torch.tensor([0, 0, 0]))
    assert metric.value() == MetricValue(None, "undefined: 2 scores are not a number")


def test_classes_that_do_not_occur_are_told() -> None:
    metric = build_metric({"name": "F1Score", "num_classes": 3})
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert metric.value().value == pytest.approx(2 / 3)
    assert metric.value().note == "classes that neither occur nor are predicted count as 0: 2"


@pytest.mark.parametrize(
    ("section", "outputs", "labels", "message"),
    [
        (
            {"name": "Accuracy", "topn": 5},
            torch.rand(2, 3),
            torch.tensor([0, 1]),
            "Top-5-Accuracy needs scores .* at least 5 classes",
        ),
        ({"name": "F1Score", "num_classes": 3}, torch.rand(2, 4), torch.tensor([0, 1]), r"scores of shape \(n, 3\)"),
        ({"name": "F1Score", "num_classes": 3}, torch.rand(2, 3), torch.tensor([0, 3]), "found the label 3"),
        ({"name": "F1Score", "num_classes": 3}, torch.tensor([0, -1]), torch.tensor([0, 2]), "found the prediction -1"),
        ({"name": "RocAuc"}, torch.rand(2, 3), torch.tensor([0, 1]), "one score a sample"),
        ({"name": "RocAuc"}, torch.rand(2), torch.tensor([0, 7]), "labels 0 and 1, and found 7"),
        ({"name": "Precision", "config": {"task": "binary"}}, torch.rand(2, 3), torch.tensor([0, 1]), "torchmetrics refused"),
        ({"name": "MeanSquaredError"}, torch.rand(4, 1), torch.rand(4), r"outputs of shape \[4, 1\] and labels of shape \[4\]"),
        (
            {"name": "Accuracy"},
            torch.rand(4, 2),
            torch.zeros(4, 2),
            r"Accuracy needs one label a sample; the labels have shape \[4, 2\]",
        ),
        ({"name": "Accuracy"}, torch.rand(3), torch.tensor([0, 1, 2]), "found 2: a model with one score"),
        ({"name": "F1Score", "num_classes": 3}, torch.rand(3), torch.tensor([0, 1, 2]), r"needs scores of shape \(n, 3\)"),
    ],
)
def test_outputs_and_labels_that_do_not_fit(
    section: dict[str, Any], outputs: torch.Tensor, labels: torch.Tensor, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        build_metric(section).update(outputs, labels)


def test_any_metric_of_torchmetrics_by_name() -> None:
    outputs, labels = drawn(1, 50, 3)
    section = {"name": "CohenKappa", "config": {"task": "multiclass", "num_classes": 3}}
    expected = sklearn.metrics.cohen_kappa_score(labels, outputs.argmax(1))
    assert value(section, outputs, labels, (20, 20)) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ConfigError, match="more than one number"):
        value({"name": "ConfusionMatrix", "config": {"task": "multiclass", "num_classes": 3}}, outputs, labels)
    with pytest.raises(ConfigError, match="cannot be built"):
        build_metric({"name": "Precision", "config": {"task": "nonsense"}})


def test_registered_metrics_are_those_that_we_know() -> None:
    ours = [p.id for p in METRICS.plugins.values() if p.distribution == "modyn"]
    assert ours == ["Accuracy", "F1Score", "RocAuc"]
    assert set(ours) <= set(EXAMPLES)
    assert {"Precision", "CohenKappa", "MeanSquaredError"} <= torchmetrics_names()


@pytest.mark.parametrize("name", EXAMPLES)
class TestEveryMetric:
    """The same checks for all metrics of Modyn, and for one metric of torchmetrics."""

    def test_shape(self, name: str) -> None:
        metric = build_metric(EXAMPLES[name])
        assert isinstance(metric, Metric)
        assert issubclass(metric.Config, MetricConfig)
        assert issubclass(metric.Config, Section)
        assert type(metric).__doc__
        assert metric.label == name
        assert build_metric({**EXAMPLES[name], "label": "mine"}).label == "mine"
        assert all(field.description for field in metric.Config.model_fields.values())

    @settings(max_examples=15)
    @given(seed=st.integers(0, 100), n=st.integers(2, 30), data=st.data())
    def test_one_batch_or_many_give_the_same_value(self, name: str, seed: int, n: int, data: st.DataObject) -> None:
        outputs, labels = drawn(seed, n, 2)
        cuts = tuple(sorted(data.draw(st.lists(st.integers(0, n), max_size=4))))
        assert value(EXAMPLES[name], outputs, labels, cuts) == pytest.approx(value(EXAMPLES[name], outputs, labels))

    def test_inputs_are_left_as_they_are_and_empty_batches_are_legal(self, name: str) -> None:
        outputs, labels = drawn(0, 20, 2)
        before = outputs.clone(), labels.clone()
        assert value(EXAMPLES[name], outputs, labels, (0, 7, 7)) is not None
        assert torch.equal(outputs, before[0])
        assert torch.equal(labels, before[1])

    def test_unknown_options_are_refused(self, name: str) -> None:
        (problem,) = check_metric({**EXAMPLES[name], "lable": "x"}, "m")
        assert problem.path == "m.lable"
        assert "did you mean 'label'" in problem.message


def test_checking_needs_no_torch() -> None:
    code = (
        "import sys\nfrom modyn.evaluator.metrics.metrics import check_metric\nimport modyn.evaluator.service\n"
        f"assert not [p for e in {list(EXAMPLES.values())!r} for p in check_metric(e, 'm')]\nsys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("section", "path", "message"),
    [
        ({"name": "Acuracy"}, "m.name", "did you mean 'Accuracy'"),
        ({}, "m.name", "is required"),
        ("Accuracy", "m", "name: Accuracy"),
        ({"name": "Accuracy", "topn": 0}, "m.topn", "greater than or equal to 1"),
        ({"name": "F1Score"}, "m.num_classes", "is required"),
        ({"name": "F1Score", "num_classes": 3, "average": "binary"}, "m", "is for num_classes 2"),
        ({"name": "F1Score", "num_classes": 2, "pos_label": 2}, "m", "pos_label 2"),
        ({"name": "F1Score", "num_classes": 2, "average": "mean"}, "m.average", "'mean' is wrong"),
        (
            {"name": "RocAuc", "evaluation_transformer_function": "def f(x): ..."},
            "m.evaluation_transformer_function",
            "it defines f",
        ),
    ],
)
def test_mistakes_are_named(section: Any, path: str, message: str) -> None:
    (problem,) = check_metric(section, "m")
    assert problem.path == path
    assert message in problem.message


def test_numpy_is_not_disturbed() -> None:
    np.random.seed(0)
    before = np.random.rand()
    np.random.seed(0)
    value({"name": "RocAuc"}, *drawn(0, 20, 2))
    assert np.random.rand() == before


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
@pytest.mark.parametrize(
    ("scores", "threshold"), [([-2.0, -0.1, 0.2, 3.0, -1.0, 0.7], 0.0), ([0.1, 0.4, 0.6, 0.9, 0.2, 0.7], 0.5)]
)
@pytest.mark.parametrize("label_shape", [(6,), (6, 1)])
def test_one_score_a_sample_is_judged_by_the_threshold(
    shape: tuple[int, ...], scores: list[float], threshold: float, label_shape: tuple[int, ...]
) -> None:
    outputs, labels = torch.tensor(scores).reshape(shape), torch.tensor([0.0, 0, 1, 1, 0, 1]).reshape(label_shape)
    assert value({"name": "Accuracy", "threshold": threshold}, outputs, labels) == 1
    f1 = {"name": "F1Score", "num_classes": 2, "threshold": threshold}
    assert value(f1, outputs, labels) == 1
    wrong = 1 - labels.clone()
    assert value({"name": "Accuracy", "threshold": threshold}, outputs, wrong) == 0
    one_wrong = labels.clone()
    one_wrong[0] = 1
    expected = sklearn.metrics.f1_score(one_wrong.reshape(-1), labels.reshape(-1), average="macro")
    assert value(f1, outputs, one_wrong) == pytest.approx(expected)


@pytest.mark.parametrize(
    "section",
    [
        {"name": "Accuracy"},
        *({"name": "F1Score", "num_classes": 2, "average": a} for a in ("macro", "micro", "weighted", "binary")),
    ],
)
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_probabilities_without_a_threshold_are_noted(section: dict[str, Any], shape: tuple[int, ...]) -> None:
    """All probabilities are above 0, the threshold of logits, so every prediction is class 1, for any model."""
    labels = torch.tensor([0, 1, 1, 0])

    def note(scores: list[float], **options: object) -> str:
        metric = build_metric(section | options)
        metric.update(torch.tensor(scores).reshape(shape), labels)
        return metric.value().note

    assert "give `threshold: 0.5`" in note([0.1, 0.9, 0.8, 0.2])
    assert "threshold" not in note([0.1, 0.9, 0.8, 0.2], threshold=0.5)
    assert "threshold" not in note([0.1, 0.9, 0.8, 0.2], threshold=0.0)
    assert "threshold" not in note([-2.0, 0.9, 0.8, -1.0])
    best = build_metric(section)
    best.update(torch.eye(2)[labels], labels)
    assert best.value().note == ""


def test_f1_keeps_three_counts_a_class() -> None:
    metric = build_metric({"name": "F1Score", "num_classes": 6_404})
    labels = torch.arange(6_404)
    metric.update(labels.flip(0), labels)
    metric.update(labels, labels)
    sizes = [held.numel() for held in vars(metric).values() if isinstance(held, torch.Tensor)]
    assert sizes == [3 * 6_404]  # of whole numbers; scores add one count of those that are NaN
    assert metric.value().value == pytest.approx(0.5)


@pytest.mark.parametrize("section", [{"name": "Accuracy"}, {"name": "Accuracy", "topn": 2}, EXAMPLES["F1Score"]])
@pytest.mark.parametrize("odd", [0.9, 1.5, float("nan")])
def test_labels_with_fractions_are_refused(section: dict[str, Any], odd: float) -> None:
    outputs = torch.eye(2)
    assert value(section, outputs, torch.tensor([0.0, 1.0])) == 1
    with pytest.raises(
        InvalidArgumentError, match=f"needs classes as labels, whole numbers, and found {odd:g}.*label_transformer"
    ):
        value(section, outputs, torch.tensor([0.0, odd]))


def test_a_metric_that_keeps_all_outputs_is_bounded() -> None:
    section = {"name": "AUROC", "config": {"task": "binary"}, "max_bytes": 1200}
    metric = build_metric(section)
    metric.update(torch.rand(100), torch.arange(100) % 2)
    with pytest.raises(
        InvalidArgumentError, match=r"AUROC of torchmetrics keeps all outputs .* 1212 bytes; max_bytes is 1200: set `thr"
    ):
        metric.update(torch.rand(1), torch.tensor([1]))
    binned = build_metric({**section, "config": {"task": "binary", "thresholds": 10}})
    for _ in range(5):
        binned.update(torch.rand(100), torch.arange(100) % 2)
    assert binned.value().value is not None


def test_the_metrics_of_all_intervals_share_the_bound() -> None:
    section = {"name": "AUROC", "config": {"task": "binary"}, "max_bytes": 1200}
    first, second = build_metrics(section, 2)
    first.update(torch.rand(50), torch.arange(50) % 2)
    second.update(torch.rand(50), torch.arange(50) % 2)
    for metric in (first, second):
        with pytest.raises(InvalidArgumentError, match=r"1212 bytes; max_bytes is 1200: .* or evaluate fewer intervals at once"):
            metric.update(torch.rand(1), torch.tensor([1]))
        assert metric.value().value is not None
    (another,) = build_metrics(section, 1)
    another.update(torch.rand(100), torch.arange(100) % 2)
