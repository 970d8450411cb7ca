"""Every trigger policy that looks at data, with every metric and criterion, on real services: a run whose supervisor, evaluator and workers
are killed in the middle makes the same checks and the same triggers as one that is left alone. Metrics of other libraries: `make test-extras`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from modyn.testing.stack import NUM_CLASSES, TINY_PARSER, RunningStack
from tests.support.drifting_data import EVERY, QUANTILE, WINDOWS, drift
from tests.support.killed_checks import drifting_stack, run_with_kills
from tests.support.killed_stack import KilledStack

pytestmark = pytest.mark.timeout(600)

PLAIN = (
    *("KS", "CVM", "ChiSquared", "Hellinger", "JensenShannon", "PSI"),
    *("Wasserstein", "SlicedWasserstein", "Energy", "DomainClassifier", "MeanDistance"),
)
METRICS: list[dict[str, Any]] = [
    {"id": "MMDDriftMetric", "num_permutations": 20},
    {"id": "MMDDriftMetric", "biased": True, "bandwidth": 1.0},
    *({"id": f"{name}DriftMetric"} for name in PLAIN),
    *({"id": f"{name}DriftMetric", "correction": "fdr"} for name in ("KS", "CVM")),
    {"id": "MeanDistanceDriftMetric", "distance": "cosine"},
]
CRITERIA: list[dict[str, Any]] = [
    {"id": "ThresholdDecisionCriterion", "threshold": 0.1},
    QUANTILE,
    {"id": "DynamicRollingAverageThresholdCriterion", "window_size": 5, "deviation": 0.5},
    {"id": "DynamicRollingAverageThresholdCriterion", "window_size": 5, "deviation": 0.1, "absolute": True},
    {"id": "PValueDecisionCriterion", "p_val": 0.06},
]
MMD = {"id": "MMDDriftMetric", "num_permutations": 20}
SAME_PHASE = {"id": "TimeWindowingStrategy", "limit_cur": "1d", "season": "2d", "reference": "same_phase"}
POLICIES: dict[str, dict[str, Any]] = {
    "all metrics": drift(*METRICS, aggregation_strategy={"id": "MajorityVote"}),
    "predictions in windows of time": drift(
        MMD, on="predictions", windowing_strategy={"id": "TimeWindowingStrategy", "limit_ref": "2d", "limit_cur": "1d"}
    ),
    "the same phase": drift(MMD, windowing_strategy=SAME_PHASE),
    "the same phase of labels": drift({"id": "ChiSquaredDriftMetric"}, on="labels", windowing_strategy=SAME_PHASE),
    "whole seasons": drift(
        MMD, windowing_strategy={**SAME_PHASE, "reference": "last_trigger", "limit_ref": "2d", "limit_cur": "2d"}
    ),
    **{f"metric {number} {metric['id']}": drift(metric) for number, metric in enumerate(METRICS)},
    **{f"criterion {number}": drift({**MMD, "decision_criterion": one}) for number, one in enumerate(CRITERIA)},
    "payload projected": drift(MMD, on="payload", projection={"id": "RandomProjection", "num_components": 3}, sample_size=20),
    "payload by PCA": drift(MMD, on="payload", projection={"id": "PCAProjection", "num_components": 3}),
    "labels": drift({"id": "ChiSquaredDriftMetric"}, on="labels"),
    "warm-up": drift(MMD, warmup_intervals=6, warmup_policy={"id": "DataAmountTrigger", "num_samples": 60}),
    "hysteresis": drift({**MMD, "decision_criterion": CRITERIA[0]}, consecutive_checks=2, min_samples_between_triggers=100),
    "AutoDrift": {"id": "AutoDrift", **EVERY, "warmup_intervals": 4},
    "all must say yes, every day": drift(
        MMD,
        {"id": "KSDriftMetric"},
        aggregation_strategy={"id": "All"},
        evaluation_interval_data_points=None,
        evaluation_interval="1d",
    ),
    "two of three": drift(
        MMD, {"id": "KSDriftMetric"}, {"id": "EnergyDriftMetric"}, aggregation_strategy={"id": "AtLeastN", "n": 2}
    ),
}


IN_THE_GATE = ("ensemble",)
SLOW = (
    *("AutoDrift", "payload by PCA", "late labels", "misclassification cost", "the same phase"),
    *("KSWIN on loss", "ensemble by a function"),
)
"""Some of each kind; each policy, metric, criterion and option by itself is tried in `make test-all`."""


def marks(name: str) -> pytest.MarkDecorator | tuple[()]:
    return () if name in IN_THE_GATE else pytest.mark.slow if name in SLOW else pytest.mark.exhaustive


EVALUATION = {
    "dataset": {
        "dataset_id": "drifting",
        "bytes_parser_function": TINY_PARSER,
        "batch_size": 64,
        "metrics": [{"name": "Accuracy"}, {"name": "F1Score", "num_classes": NUM_CLASSES, "average": "macro"}],
    }
}


def performance(*criteria: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A performance trigger that fires when any of `criteria` does."""
    named = {f"criterion-{number}": criterion for number, criterion in enumerate(criteria)}
    return {"id": "PerformanceTrigger", **EVERY, "evaluation": EVALUATION, "decision_criteria": named, **options}


def detects(id_: str, on: str = "error", **options: Any) -> dict[str, Any]:
    """A trigger of a stream detector with these options, soon enough for a small stream."""
    distance = {"on": "embeddings", "metric": {"id": "MeanDistanceDriftMetric"}, **WINDOWS}
    measured: dict[str, Any] = {"distance": distance} if on == "distance" else {"evaluation": EVALUATION}
    return {"id": "StreamDetectorTrigger", **EVERY, "on": on, "detector": {"id": id_, **options}, **measured}


LOW = {"id": "StaticPerformanceThresholdCriterion", "metric": "Accuracy", "metric_threshold": 0.6}
POLICIES |= {
    "performance threshold": performance(LOW, {**LOW, "metric": "F1Score", "metric_threshold": 0.5}),
    "performance quantile": performance(
        {"id": "DynamicQuantilePerformanceThresholdCriterion", "metric": "Accuracy", "window_size": 5, "quantile": 0.1}
    ),
    "performance rolling average": performance(
        {"id": "DynamicRollingAveragePerformanceThresholdCriterion", "metric": "Accuracy", "window_size": 5, "deviation": 0.2}
    ),
    "performance rolling average, absolute": performance(
        {
            "id": "DynamicRollingAveragePerformanceThresholdCriterion",
            "metric": "Accuracy",
            "window_size": 5,
            "deviation": 0.1,
            "absolute": True,
        }
    ),
    "misclassifications, given": performance(
        {"id": "StaticNumberMisclassificationCriterion", "avoidable_misclassification_threshold": 10, "expected_accuracy": 0.9}
    ),
    "misclassifications, forecast": performance(
        {"id": "StaticNumberMisclassificationCriterion", "avoidable_misclassification_threshold": 10},
        forecasting_method="rolling_average",
    ),
    "late labels": performance(LOW, label_delay="1d"),
    "estimated accuracies": performance(
        {**LOW, "metric": "EstimatedAccuracyATC"}, {**LOW, "metric": "EstimatedAccuracyDoC", "metric_threshold": 0.5}
    ),
    "misclassifications, lookahead": performance(
        {"id": "StaticNumberMisclassificationCriterion", "avoidable_misclassification_threshold": 10, "allow_reduction": True},
        mode="lookahead",
    ),
    "ADWIN": detects("ADWIN", delta=0.1),
    "DDM": detects("DDM"),
    "EDDM": detects("EDDM", warm_start=5),
    "HDDM_A": detects("HDDM_A"),
    "HDDM_W": detects("HDDM_W"),
    "KSWIN on loss": detects("KSWIN", "loss", window_size=60, stat_size=20),
    "PageHinkley on distance": detects("PageHinkley", "distance", min_instances=3, threshold=0.5),
    # At these rates any time of waiting is worth more than a training, however long it takes.
    "latency cost": {"id": "DataIncorporationLatencyCostTrigger", **EVERY, "incorporation_delay_per_training_second": 1e-3},
    "misclassification cost": {
        "id": "AvoidableMisclassificationCostTrigger",
        **EVERY,
        "evaluation": EVALUATION,
        "avoidable_misclassification_latency_per_training_second": 1e-3,
        "warmup_intervals": 4,
        "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 50},
    },
    "ensemble": {
        "id": "EnsembleTrigger",
        "ensemble_strategy": {"id": "AtLeastN", "n": 2},
        "subtriggers": {
            "drift": drift(MMD),
            "low": performance(LOW),
            "nested": {
                "id": "EnsembleTrigger",
                "subtriggers": {
                    "day": {"id": "TimeTrigger", "every": "3d"},
                    "many": {"id": "DataAmountTrigger", "num_samples": 90},
                },
            },
        },
    },
    "ensemble by a function": {
        "id": "EnsembleTrigger",
        "ensemble_strategy": {"id": "Custom", "function": "tests.support.votes:drift_and_any_other"},
        "subtriggers": {"drift": drift(MMD), "low": performance(LOW), "many": {"id": "DataAmountTrigger", "num_samples": 90}},
    },
}


@pytest.fixture(scope="module")
def killed(running_stack: RunningStack) -> Iterator[KilledStack]:
    """A stack that resumes its runs by itself."""
    with running_stack.client() as client:
        killed = drifting_stack(running_stack, client)
        with killed.configured("supervisor", supervisor={"resume_on_start": True}):
            yield killed


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in POLICIES])
def test_kills_change_no_check_and_no_trigger(killed: KilledStack, name: str) -> None:
    run_with_kills(killed, POLICIES[name])


OF_STEPS = {
    "id": "EnsembleTrigger",
    "ensemble_strategy": {"id": "AtLeastN", "n": 1},
    "subtriggers": {"drift": drift(MMD), "low": performance(LOW)},
}


INITIAL = {"id": "InitialTrigger", "num_samples": 25}
SCHEDULE = {"id": "DynamicScheduleTrigger", **EVERY}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trigger", "of_steps"),
    [(INITIAL, OF_STEPS), (POLICIES["two of three"], OF_STEPS), (INITIAL, SCHEDULE)],
    ids=["initial", "drift", "schedule"],
)
def test_kills_change_no_check_of_the_policy_of_steps(
    killed: KilledStack, trigger: dict[str, Any], of_steps: dict[str, Any]
) -> None:
    run_with_kills(killed, trigger, online={"trigger": of_steps, "step_samples": 8, "history_samples": 8})
