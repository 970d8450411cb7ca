"""Settings of a trigger for the evaluator are checked at any depth of `trigger`; problems have paths from the root of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from modyn.config.base import Severity
from modyn.config.dataset import DatasetConfig
from modyn.evaluator.drift import DRIFT_METRICS, missing_modules
from modyn.evaluator.drift.base import PermutationConfig
from modyn.evaluator.metrics.metrics import METRICS
from modyn.evaluator.trigger_section import check_label_kinds, check_projection, check_trigger
from modyn.registry import Plugin
from modyn.supervisor.criteria.threshold import PValueConfig
from modyn.supervisor.detectors import DETECTORS
from modyn.supervisor.triggers import TRIGGERS, with_defaults
from modyn.supervisor.triggers.drift import DataDriftTrigger
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.held_dataset import HeldDataset

DATASET: dict[str, Any] = {
    "dataset_id": "test",
    "record_layout": {"dtype": "float32", "shape": [4]},
    "batch_size": 8,
    "metrics": [{"name": "Accuracy"}],
}


class Demanding(DRIFT_METRICS.get("MeanDistanceDriftMetric")):  # type: ignore[misc]
    """A metric that needs what is not installed."""

    extra = "alibi"
    needs: ClassVar[tuple[str, ...]] = ("no_such_module",)


class Unbounded(DRIFT_METRICS.get("MMDDriftMetric")):  # type: ignore[misc]
    """A metric that declares no range."""

    @classmethod
    def range_of(cls, config: object) -> None:
        """Declare no range."""


def drift(section: object, **others: Any) -> dict[str, Any]:
    return {"id": "DataDriftTrigger", "metrics": {"mmd": section}, **others}


VALID = drift({"id": "MMDDriftMetric", "num_permutations": 10, "decision_criterion": {"id": "anything of the supervisor's"}})


def check(trigger: object) -> list[str]:
    """Check like the supervisor, with the defaults of the trigger."""
    section = with_defaults(trigger) if isinstance(trigger, Mapping) else trigger
    return [str(problem) for problem in check_trigger({"trigger": section})]


@pytest.mark.parametrize(
    "trigger",
    [
        None,
        {"id": "DataAmountTrigger", "num_samples": 5},
        {"id": "Mine", "metrics": ["Accuracy"]},
        {"id": "Mine", "metrics": {"Accuracy": 0.5}, "projection": 3},
        VALID,
        VALID | {"projection": {"id": "RandomProjection", "num_components": 8}},
        {"id": "EnsembleTrigger", "subtriggers": {"drift": VALID}},
        {"id": "PerformanceTrigger", "evaluation": {"device": "cpu", "dataset": DATASET}},
    ],
)
def test_valid_sections_and_those_of_others(trigger: object) -> None:
    assert check(trigger) == []


WRONG_DATASET = {"evaluation": {"dataset": DATASET | {"batch_size": 0}}}


@pytest.mark.parametrize(
    ("trigger", "path", "message"),
    [
        (drift({"id": "MMDDriftMetrc"}), "trigger.metrics.mmd.id", "did you mean 'MMDDriftMetric'"),
        (drift({"id": "MMDDriftMetric", "bandwith": 1}), "trigger.metrics.mmd.bandwith", "did you mean 'bandwidth'"),
        (drift({"id": "MMDDriftMetric", "bandwidth": 0}), "trigger.metrics.mmd.bandwidth", "greater than or equal to"),
        (drift({"bandwidth": 1}), "trigger.metrics.mmd.id", "the name of a drift metric"),
        (drift("MMDDriftMetric"), "trigger.metrics.mmd", "a section with the id of a drift metric is expected"),
        (VALID | {"projection": {"id": "PCA", "num_components": 2}}, "trigger.projection.id", "did you mean 'PCAProjection'"),
        (VALID | {"projection": {"id": "PCAProjection"}}, "trigger.projection.num_components", "is required"),
        (VALID | {"warmup_policy": drift({"id": "KS"})}, "trigger.warmup_policy.metrics.mmd.id", "no drift metric 'KS'"),
        ({"id": "E", "subtriggers": {"a": {"subtriggers": {"b": drift({"id": "X"})}}}},
         "trigger.subtriggers.a.subtriggers.b.metrics.mmd.id", "no drift metric 'X'"),
        ({"id": "Mine", "metrics": {"a": {"id": "X"}}}, "trigger.metrics.a.id", "no drift metric 'X'"),
        (WRONG_DATASET, "trigger.evaluation.dataset.batch_size", "0 is wrong"),
        ({"id": "E", "subtriggers": {"a": WRONG_DATASET}}, "trigger.subtriggers.a.evaluation.dataset.batch_size", "0 is wrong"),
    ],
)  # fmt: skip
def test_mistakes_are_named(trigger: object, path: str, message: str) -> None:
    (found,) = check(trigger)
    assert found.startswith(f"{path}: ")
    assert message in found


def test_what_a_metric_needs_and_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin("modyn.drift_metrics", "Demanding", f"{__name__}:Demanding", "tests")
    monkeypatch.setitem(DRIFT_METRICS.plugins, "Demanding", plugin)
    (problem,) = check_trigger({"trigger": drift({"id": "Demanding"})})
    assert (problem.path, problem.severity) == ("trigger.metrics.mmd.id", Severity.UNAVAILABLE)
    assert problem.message == missing_modules(Demanding)
    assert problem.message.endswith("pip install 'modyn[alibi]'")


@pytest.mark.parametrize(("p_val", "least"), [(None, 20), (0.05, 20), (0.06, 16), (0.1, 10), (0.5, 2)])
@pytest.mark.parametrize("metric", ["MMDDriftMetric", "EnergyDriftMetric"])
def test_a_level_that_so_few_permutations_never_reach_is_refused(metric: str, p_val: float | None, least: int) -> None:
    level = {} if p_val is None else {"p_val": p_val}
    criterion = {"id": "PValueDecisionCriterion", **level}

    def asked(num: int) -> list[str]:
        return check(drift({"id": metric, "num_permutations": num, "decision_criterion": criterion}))

    (found,) = asked(least - 1)
    assert found.startswith("trigger.metrics.mmd.num_permutations: ")
    assert f"write at least {least}, or a larger p_val" in found
    assert asked(least) == []
    assert PermutationConfig(num_permutations=least).least_p_value < PValueConfig(**level).p_val


def test_a_library_whose_p_values_may_be_0_needs_no_number_of_permutations() -> None:
    section = {"id": "AlibiDetectMmdDriftMetric", "num_permutations": 5, "decision_criterion": {"id": "PValueDecisionCriterion"}}
    assert not any("num_permutations" in found for found in check(drift(section)))


CLASSIFIER = drift({"id": "DomainClassifierDriftMetric"})


@pytest.mark.parametrize(
    ("windows", "path"),
    [
        ({"sample_size": 9}, "sample_size"),
        ({"windowing_strategy": {"id": "AmountWindowingStrategy", "amount_ref": 9}}, "windowing_strategy.amount_ref"),
        ({"windowing_strategy": {"id": "AmountWindowingStrategy", "amount_cur": 9}}, "windowing_strategy.amount_cur"),
    ],
)
def test_windows_that_are_never_enough_for_a_metric_are_refused(windows: dict[str, Any], path: str) -> None:
    said = "9 samples are never enough for metrics.mmd, DomainClassifierDriftMetric: write at least 10"
    assert check(CLASSIFIER | windows) == [f"trigger.{path}: {said}"]
    detector = {"id": "StreamDetectorTrigger", "distance": {"metric": {"id": "DomainClassifierDriftMetric"}} | windows}
    assert check(detector) == [f"trigger.distance.{path}: {said.replace('metrics.mmd', 'metric')}"]
    assert check(VALID | windows) == []


def test_windows_that_are_never_enough_for_a_projection_are_refused() -> None:
    projected = VALID | {"projection": {"id": "PCAProjection", "num_components": 30}}
    windows = {"id": "AmountWindowingStrategy", "amount_ref": 30, "amount_cur": 5}
    assert check(projected | {"windowing_strategy": windows, "sample_size": None}) == []
    said = "20 samples are never enough for projection, PCAProjection: write at least 30"
    assert check(projected | {"sample_size": 20}) == [f"trigger.sample_size: {said}"]
    assert check(projected | {"projection": {"id": "RandomProjection", "num_components": 30}, "sample_size": 20}) == []


def detects(id_: str, metric: str, **options: object) -> list[str]:
    return check({"id": "StreamDetectorTrigger", "detector": {"id": id_}, "distance": {"metric": {"id": metric, **options}}})


@pytest.mark.parametrize("biased", [False, True])
def test_detectors_of_shares_need_distances_from_0_to_1(biased: bool) -> None:
    shares = [id_ for id_ in DETECTORS.builtin if DETECTORS.get(id_).takes == "shares"]
    assert shares
    for id_ in shares:
        (found,) = detects(id_, "MMDDriftMetric", biased=biased)
        assert found.startswith("trigger.distance.metric.id: ")
        assert f"{id_} takes distances from 0 to 1, and distances of MMDDriftMetric may exceed 1; use AlibiDetectKS" in found
        assert detects(id_, "HellingerDriftMetric") == []
    assert detects("ADWIN", "MMDDriftMetric") == []


@pytest.mark.parametrize(("threshold", "words"), [(1.5, "never fires"), (-0.1, "always fires"), (1, ""), (0.05, "")])
def test_a_threshold_that_no_distance_can_have_is_refused(threshold: float, words: str) -> None:
    criterion = {"id": "ThresholdDecisionCriterion", "threshold": threshold}
    metrics = {name: {"id": f"{name}DriftMetric", "decision_criterion": criterion} for name in ("KS", "MMD")}
    found = check({"id": "DataDriftTrigger", "metrics": metrics})
    assert [line.partition(":")[0] for line in found] == ["trigger.metrics.KS.decision_criterion.threshold"] * bool(words)
    assert words in "".join(found)


@pytest.mark.parametrize(
    ("metric", "allowed", "refused"),
    [
        ({"id": "WassersteinDriftMetric"}, (0, 1e9), (-0.5,)),
        ({"id": "SlicedWassersteinDriftMetric"}, (0, 1e9), (-0.5,)),
        ({"id": "PSIDriftMetric"}, (0, 1e9), (-1,)),
        ({"id": "EnergyDriftMetric"}, (0, 1e9), (-1,)),
        ({"id": "CVMDriftMetric"}, (0, 1e9), (-1,)),
        ({"id": "MMDDriftMetric"}, (-0.01, 2), (-1.1, 50)),
        ({"id": "MMDDriftMetric", "biased": True}, (0, 2), (-0.01, 50)),
        ({"id": "AlibiDetectMmdDriftMetric"}, (-0.01, 2), (-1.1, 50)),
        ({"id": "MeanDistanceDriftMetric"}, (0, 1e9), (-1,)),
        ({"id": "MeanDistanceDriftMetric", "distance": "cosine"}, (0, 2), (-1, 2.1)),
        ({"id": "EvidentlySimpleDistanceDriftMetric", "distance_metric": "cosine"}, (0, 2), (-1, 2.1)),
        ({"id": "Unbounded"}, (-1e9, 1e9), ()),
    ],
)
def test_a_threshold_outside_the_range_of_a_metric_is_refused(
    metric: dict[str, Any], allowed: tuple[float, ...], refused: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = Plugin("modyn.drift_metrics", "Unbounded", f"{__name__}:Unbounded", "tests")
    monkeypatch.setitem(DRIFT_METRICS.plugins, "Unbounded", plugin)

    def found(threshold: float) -> list[str]:
        criterion = {"id": "ThresholdDecisionCriterion", "threshold": threshold}
        return [line for line in check(drift(metric | {"decision_criterion": criterion})) if "threshold" in line]

    assert [found(threshold) for threshold in allowed] == [[], []]
    for threshold in refused:
        (line,) = found(threshold)
        assert f"so {threshold:g} {'always' if threshold < 0 else 'never'} fires: write a number " in line


def test_every_drift_metric_declares_the_range_of_its_distances() -> None:
    assert [name for name in DRIFT_METRICS.builtin if DRIFT_METRICS.get(name).distance_range is None] == []


def test_a_missing_projection_is_not_a_mistake() -> None:
    assert check_projection(None, "projection") == []


def performance(criteria: object = None, **evaluation: object) -> dict[str, Any]:
    return {"id": "PerformanceTrigger", "evaluation": {"dataset": DATASET} | evaluation, "decision_criteria": criteria}


COUNT = {"id": "StaticNumberMisclassificationCriterion"}
SCORE = {"id": "StaticPerformanceThresholdCriterion"}
F1 = {"name": "F1Score", "num_classes": 10, "average": "macro", "label": "F1"}


@pytest.mark.parametrize(
    ("trigger", "path", "message"),
    [
        (performance({"low": {"metric": "Acuracy"}}), "decision_criteria.low.metric", "did you mean 'Accuracy'"),
        (
            performance({"low": {"metric": "EstimatedAccuracy"}}),
            "decision_criteria.low.metric",
            "did you mean 'EstimatedAccuracy",
        ),
        (
            performance({"many": COUNT}, dataset=DATASET | {"metrics": [{"name": "Accuracy", "label": "top"}]}),
            "decision_criteria.many.metric",
            "has no metric 'Accuracy'",
        ),
        (
            performance({"a": {"metric": "mse"}}, dataset=DATASET | {"metrics": [{"name": "MeanSquaredError", "label": "mse"}]}),
            "decision_criteria.a.metric",
            "lower values of 'mse' are better, but this criterion fires on low values: choose a metric whose higher values are better",
        ),
        (
            performance({"a": COUNT | {"metric": "F1"}}, dataset=DATASET | {"metrics": [F1]}),
            "decision_criteria.a.metric",
            "takes the metric as a share of right answers, and 'F1' is F1Score: judge Accuracy, EstimatedAccuracyATC, EstimatedAccuracyDoC",
        ),
        (
            performance({"a": SCORE | {"metric": "Accuracy", "metric_threshold": 80}}),
            "decision_criteria.a.metric_threshold",
            "'Accuracy' lies in [0, 1], so 80 always fires: write a number between 0 and 1",
        ),
        (
            performance({"a": SCORE | {"metric": "EstimatedAccuracyATC", "metric_threshold": -0.5}}),
            "decision_criteria.a.metric_threshold",
            "lies in [0, 1], so -0.5 never fires",
        ),
        (performance(device="gpu"), "evaluation.device", "is not a device"),
        (
            performance(dataset=DATASET | {"dataset_id": "other"}),
            "evaluation.dataset.dataset_id",
            "not the dataset that the run trains on: its new samples are evaluated; write test",
        ),
        (
            performance(dataset=DATASET | {"metrics": [{"name": "Accuracy", "topn": 11}]}),
            "evaluation.dataset.metrics.0",
            "topn is 11, but the model has 10 classes",
        ),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_what_a_performance_trigger_evaluates_fits_the_pipeline(
    trigger: dict[str, Any], path: str, message: str, nested: bool
) -> None:
    section = {"id": "EnsembleTrigger", "subtriggers": {"a": trigger}} if nested else trigger
    pipeline = {
        "data": {"dataset_id": "test"},
        "model": {"id": "ResNet18", "config": {"num_classes": 10}},
        "trigger": with_defaults(section),
    }
    (found,) = map(str, check_trigger(pipeline))
    assert found.startswith(f"trigger.{'subtriggers.a.' if nested else ''}{path}: ")
    assert message in found


class OwnDrift(DataDriftTrigger):
    """A trigger from another package."""


def test_a_trigger_of_another_package_gets_the_checks_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRIGGERS.plugins, "Own", Plugin("modyn.triggers", "Own", f"{__name__}:OwnDrift", "tests"))
    criterion = {"id": "ThresholdDecisionCriterion", "threshold": 0.5}
    windows = {"id": "AmountWindowingStrategy", "amount_ref": 500, "amount_cur": 500}
    section = {"evaluation_interval_data_points": 10, "metrics": {"a": {"id": "KSDriftMetric", "decision_criterion": criterion}}}
    wrong = (
        {"projection": {"id": "PCAProjection", "num_components": 600}, "windowing_strategy": windows},
        {"metrics": {"a": None}},
        {"metrics": {"a": {"id": "KSDriftMetrik", "decision_criterion": criterion}}},
    )
    for options in ({}, *wrong):
        own, ours = (check({**section, **options, "id": id_}) for id_ in ("Own", "DataDriftTrigger"))
        assert own == ours
        assert bool(own) == bool(options)


def test_metrics_of_labels_and_of_confidence_are_known() -> None:
    named = {
        "a": {"metric": "Accuracy"},
        "b": COUNT,
        "c": {"metric": "EstimatedAccuracyATC"},
        "d": {"metric": "EstimatedAccuracyDoC"},
        "e": COUNT | {"metric": "EstimatedAccuracyDoC"},
        "f": COUNT | {"metric": "top"},
        "g": {"id": "StaticPerformanceThresholdCriterion", "metric": "F1"},
    }
    metrics = [{"name": "Accuracy"}, {"name": "Accuracy", "label": "top"}, F1]
    assert check(performance(named, dataset=DATASET | {"metrics": metrics})) == []


@pytest.mark.parametrize(
    ("distance", "path", "message"),
    [
        ({"metric": {"id": "KSDriftMetrc"}}, "metric.id", "did you mean 'KSDriftMetric'"),
        ({"metric": {"id": "KSDriftMetric", "decision_criterion": {}}}, "metric.decision_criterion", "there is no such key"),
        ({"projection": {"id": "PCA"}}, "projection.id", "did you mean 'PCAProjection'"),
    ],
)
def test_the_distance_of_a_stream_detector_is_checked(distance: dict[str, Any], path: str, message: str) -> None:
    (found,) = check({"id": "StreamDetectorTrigger", "distance": distance})
    assert found.startswith(f"trigger.distance.{path}: ")
    assert message in found
    assert check({"id": "Mine", "distance": distance}) == [], "of another package it may mean anything"


class OwnCounts(DRIFT_METRICS.get("ChiSquaredDriftMetric")):  # type: ignore[misc]
    """A metric of another package that counts each value."""


@pytest.mark.parametrize("id_", ["ChiSquaredDriftMetric", "Own"])
def test_labels_that_are_quantities_are_not_counted(monkeypatch: pytest.MonkeyPatch, id_: str) -> None:
    monkeypatch.setitem(DRIFT_METRICS.plugins, "Own", Plugin("modyn.drift_metrics", "Own", f"{__name__}:OwnCounts", "tests"))

    def warned(section: dict[str, Any], *, float_labels: bool) -> list[str]:
        storage = FakeStorage()
        config = DatasetConfig(name="d", base_path="/fake", file_wrapper="CsvFileWrapper", file_wrapper_config={"label_index": 0})
        storage.datasets["d"] = HeldDataset(config, float_labels)
        return list(map(str, check_label_kinds({"data": {"dataset_id": "d"}, "trigger": section}, storage.client())))

    metric = {"id": id_, "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": 0.1}}
    counted, others = with_defaults(drift(metric, on="labels")), with_defaults(drift(metric))
    (found,) = warned(counted, float_labels=True)
    assert found.startswith(
        f"warning: trigger.metrics.mmd.id: {id_} counts classes, and labels of the dataset 'd' are floating-point numbers"
    )
    assert warned(counted, float_labels=False) == warned(others, float_labels=True) == []


class OwnAccuracy(METRICS.get("Accuracy")):  # type: ignore[misc]
    """An accuracy of another package."""


class OwnScore(METRICS.get("F1Score")):  # type: ignore[misc]
    """Another score of this package."""


@pytest.mark.parametrize(("kind", "refused"), [(OwnAccuracy, False), (OwnScore, True)])
def test_a_metric_of_another_package_declares_that_it_is_an_accuracy(
    monkeypatch: pytest.MonkeyPatch, kind: type, refused: bool
) -> None:
    monkeypatch.setitem(METRICS.plugins, "Own", Plugin("modyn.metrics", "Own", f"{__name__}:{kind.__name__}", "tests"))
    dataset = DATASET | {"metrics": [{"name": "Own", "label": "own"} | ({"num_classes": 10} if refused else {})]}
    section = with_defaults(performance({"a": COUNT | {"metric": "own"}}, dataset=dataset))
    found = check_trigger({"data": {"dataset_id": "test"}, "trigger": section})
    assert ["share of right answers" in problem.message for problem in found] == [True] * refused
