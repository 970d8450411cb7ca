"""Every trigger policy that looks at data, with every metric and criterion, on real services: a run whose supervisor and evaluator are killed
in the middle makes the same checks and the same triggers as one that is left alone."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from modyn.supervisor.client import CheckRecord, EventKind, Run, RunState
from modyn.testing.stack import NUM_CLASSES, TINY_PARSER, RunningStack
from tests.support.drifting_data import drifting_dataset, drifting_pipeline
from tests.support.killed_stack import KilledStack

pytestmark = pytest.mark.timeout(600)

EVERY = {"evaluation_interval_data_points": 25}
WINDOWS = {"windowing_strategy": {"id": "AmountWindowingStrategy", "amount_ref": 50, "amount_cur": 25}}
NEVER = {"id": "ThresholdDecisionCriterion", "threshold": 1e9}
QUANTILE = {"id": "DynamicQuantileThresholdCriterion", "window_size": 5, "quantile": 0.1}


def drift(*metrics: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A drift trigger that fires when any of `metrics` does."""
    named = {f"{metric['id']}-{number}": {"decision_criterion": QUANTILE, **metric} for number, metric in enumerate(metrics)}
    vote = {"id": "AtLeastN", "n": 1}
    return {"id": "DataDriftTrigger", **EVERY, **WINDOWS, "metrics": named, "aggregation_strategy": vote, **options}


PLAIN = (
    *("KS", "CVM", "ChiSquared", "Hellinger", "JensenShannon", "PSI"),
    *("Wasserstein", "SlicedWasserstein", "Energy", "DomainClassifier", "MeanDistance"),
)
METRICS: list[dict[str, Any]] = [
    {"id": "MMDDriftMetric", "num_permutations": 20},
    {"id": "MMDDriftMetric", "biased": True, "bandwidth": 1.0},
    *({"id": f"{name}DriftMetric"} for name in PLAIN),
]
CRITERIA: list[dict[str, Any]] = [
    {"id": "ThresholdDecisionCriterion", "threshold": 0.1},
    QUANTILE,
    {"id": "DynamicRollingAverageThresholdCriterion", "window_size": 5, "deviation": 0.5},
    {"id": "DynamicRollingAverageThresholdCriterion", "window_size": 5, "deviation": 0.1, "absolute": True},
    {"id": "PValueDecisionCriterion", "p_val": 0.06},
]
MMD = {"id": "MMDDriftMetric", "num_permutations": 20}
POLICIES: dict[str, dict[str, Any]] = {
    "all metrics": drift(*METRICS, aggregation_strategy={"id": "MajorityVote"}),
    "predictions in windows of time": drift(
        MMD, on="predictions", windowing_strategy={"id": "TimeWindowingStrategy", "limit_ref": "2d", "limit_cur": "1d"}
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
}


@pytest.fixture(scope="module")
def killed(own_stack: Callable[..., RunningStack]) -> Iterator[KilledStack]:
    """A stack whose runs go on by themselves."""
    stack = own_stack(supervisor={"resume_on_start": True})
    drifting_dataset(stack, "drifting")
    with stack.client() as client:
        yield KilledStack(stack, client)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in IN_THE_GATE else pytest.mark.slow) for name in POLICIES])
def test_kills_change_no_check_and_no_trigger(killed: KilledStack, name: str) -> None:
    text = drifting_pipeline("drifting", POLICIES[name])
    quiet = killed.stack.run(text)
    assert quiet.state is RunState.FINISHED, quiet.error
    checks = killed.client.supervisor.checks(quiet.run_id)
    assert len(checks) > 5

    path = killed.stack.folder / "killed.yaml"
    path.write_text(text)
    broken = _kill_in_the_middle(killed, path)
    assert broken.state is RunState.FINISHED, broken.error
    again = killed.client.supervisor.checks(broken.run_id)
    assert [_verdict(check) for check in again] == [_verdict(check) for check in checks]
    for check, other in zip(checks, again, strict=True):
        assert _numbers(other) == pytest.approx(_numbers(check), rel=1e-4, abs=1e-5), check.position
    positions = [[trigger.position for trigger in killed.client.supervisor.triggers(run.run_id)] for run in (quiet, broken)]
    assert positions[0] == positions[1]
    assert set(positions[0]) >= {check.position for check in checks if check.fires}


def _kill_in_the_middle(killed: KilledStack, path: Path) -> Run:
    """Run a pipeline, and kill the supervisor at its first trigger and behind a check, and the evaluator, whose worker goes with it, while
    checks are made."""
    run_id = killed.client.run(path).run_id
    strikes: deque[tuple[EventKind, int, str]] = deque(
        [(EventKind.TRIGGER_FIRED, 1, "supervisor"), (EventKind.CHECK, 4, "evaluator"), (EventKind.CHECK, 7, "supervisor")]
    )
    seen: Counter[EventKind] = Counter()
    for event in killed.client.watch(run_id):
        seen[event.kind] += 1
        if strikes and event.kind is strikes[0][0] and seen[event.kind] >= strikes[0][1]:
            killed.kill(strikes.popleft()[2])
    assert len(strikes) <= 1, "kills that came too late"
    return killed.client.wait(run_id)


def _verdict(check: CheckRecord) -> tuple[int, bool]:
    return check.position, check.fires


def _numbers(check: CheckRecord) -> dict[str, float]:
    """The evidence without what may differ: seconds, of trainings too, and what was embedded anew."""
    differ = {"embedded_samples", "forecast_training_s", "regret.threshold"}
    names = {name: name.rpartition("/")[2] for name in check.evidence}
    return {name: check.evidence[name] for name, own in names.items() if own not in differ and not own.endswith(".seconds")}
