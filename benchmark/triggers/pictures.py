"""Pictures of docs/how-to/triggers.md: what each trigger policy sees of one small stream, and where it fires.

    python -m benchmark.triggers pictures

The stream has 1,200 samples, one a day at first and two a day from the 600th on. What they show moves abruptly at the 400th, and slowly
between the 800th and the 1,000th. A model knows what it was trained on last.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmark.line_chart import line_chart
from modyn.records import SampleBatch
from modyn.supervisor.triggers import TriggerContext, build_trigger
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, TriggerOutcome, next_position
from modyn.testing.fake_evidence import FakeEvidence

PICTURES: Final = Path(__file__).parents[2] / "docs" / "how-to" / "triggers"
SAMPLES: Final = 1200
DAY: Final = 86_400
EVERY: Final = {"evaluation_interval_data_points": 25}
WARM_UP: Final = {"warmup_intervals": 8, "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 100}}
AMOUNTS: Final = {"id": "AmountWindowingStrategy", "amount_ref": 100, "amount_cur": 50}


def _drift(**criterion: Any) -> dict[str, Any]:
    metrics = {"distance": {"id": "MMDDriftMetric", "decision_criterion": criterion}}
    return {"id": "DataDriftTrigger", **EVERY, **WARM_UP, "windowing_strategy": AMOUNTS, "metrics": metrics}


EVALUATION: Final = {"dataset": {"dataset_id": "stream", "batch_size": 64, "metrics": [{"name": "Accuracy"}]}}


def _performance(**criterion: Any) -> dict[str, Any]:
    return {"id": "PerformanceTrigger", **EVERY, **WARM_UP, "evaluation": EVALUATION, "decision_criteria": {"low": criterion}}


THRESHOLD: Final = _drift(id="ThresholdDecisionCriterion", threshold=0.5)
AUTO_DRIFT: Final = _drift(id="DynamicQuantileThresholdCriterion", window_size=15, quantile=0.05)
ACCURACY: Final = _performance(id="StaticPerformanceThresholdCriterion", metric="Accuracy", metric_threshold=0.75)
POLICIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "amount": {"id": "DataAmountTrigger", "num_samples": 200},
    "time": {"id": "TimeTrigger", "every": "200d"},
    "drift-threshold": THRESHOLD,
    "auto-drift": AUTO_DRIFT,
    "performance": ACCURACY,
    "misclassifications": _performance(
        id="StaticNumberMisclassificationCriterion", avoidable_misclassification_threshold=15, expected_accuracy=0.9
    ),
    "latency-cost": {
        "id": "DataIncorporationLatencyCostTrigger",
        **EVERY,
        "incorporation_delay_per_training_second": 100.0 * 100 * DAY,
    },
    "misclassification-cost": {
        "id": "AvoidableMisclassificationCostTrigger",
        **EVERY,
        **WARM_UP,
        "evaluation": EVALUATION,
        "expected_accuracy": 0.9,
        "avoidable_misclassification_latency_per_training_second": 5.0 * 100 * DAY,
    },
    "detector": {"id": "StreamDetectorTrigger", **EVERY, "on": "error", "evaluation": EVALUATION, "detector": {"id": "ADWIN"}},
    "ensemble": {
        "id": "EnsembleTrigger",
        "subtriggers": {"drift": THRESHOLD, "accuracy": ACCURACY},
        "ensemble_strategy": {"id": "AtLeastN", "n": 1},
    },
}


INSTEAD: Final = {"detector": ("error",)}
"""Series that are drawn in place of those with a verdict."""


class Seen(NamedTuple):
    """Checks of a policy, and the positions at which it fired."""

    checks: list[CheckRecord]
    fired: list[int]


def stream() -> SampleBatch:
    """The stream; the label of a sample is what it shows."""
    position = np.arange(SAMPLES)
    days = np.where(position < 600, position, 600 + (position - 600) / 2)
    noise = np.random.default_rng(0).normal(0, 0.4, SAMPLES)
    return SampleBatch(position, (days * DAY).astype(np.int64), _shows(position) + noise)


def _shows(position: NDArray[Any]) -> NDArray[np.float64]:
    slowly: NDArray[np.float64] = np.clip((position - 800) / 200, 0, 1)
    return (position >= 400) + slowly


def follow(section: Mapping[str, Any]) -> Seen:
    """Drive a policy through the stream."""
    samples, fired, checks = stream(), list[int](), list[CheckRecord]()
    chance = np.random.default_rng(1).random(SAMPLES)

    def is_error(model_id: int, asked: SampleBatch) -> NDArray[np.bool_]:
        known = float(_shows(np.array([fired[model_id - 1] - 1]))[0])
        errors: NDArray[np.bool_] = chance[asked.keys] < 0.08 + 0.5 * np.minimum(1, np.abs(_shows(asked.keys) - known))
        return errors

    source = FakeEvidence(samples, is_error=is_error)
    policy = build_trigger(section, TriggerContext(seed=0))
    decided = received = 0
    while (at := next_position(policy, samples, decided)) is not None:
        policy.observe(samples.slice(received, at))
        received = decided = at
        check = policy.check(CheckContext(at, at - (fired[-1] if fired else 0), source))
        checks.append(CheckRecord(at, check.fires, check.evidence, memory=check.memory))
        policy.checked(checks[-1])
        if check.fires:
            number = at - (fired[-1] if fired else 0)
            fired.append(at)
            outcome = TriggerOutcome(
                len(fired) - 1,
                at,
                0,
                0,
                number,
                len(fired),
                number,
                number,
                seconds={"train": number / 100, "total": number / 100},
            )
            policy.triggered(outcome)
            policy.ended(outcome)
    return Seen(checks, fired)


def picture(name: str) -> str:
    """The picture of a policy: each series of its evidence with its threshold, or the samples that wait; and its triggers."""
    seen = follow(POLICIES[name])
    lines: dict[str, list[tuple[float, float]]] = {}
    for check in seen.checks:
        for key, value in check.numbers.items():
            if key in INSTEAD[name] if name in INSTEAD else is_judged(key, check.numbers):
                lines.setdefault(key, []).append((check.position, value))
    if not lines:
        bounds = [0, *seen.fired, SAMPLES]
        lines["samples waiting"] = [point for a, b in pairwise(bounds) for point in ((float(a), 0.0), (float(b), float(b - a)))]
    marks = {"the data move": (400, 800, 1000), "trigger": seen.fired}
    return line_chart(f"{POLICIES[name]['id']}: {len(seen.fired)} triggers", ("samples of the stream", ""), lines, marks=marks)


def is_judged(series: str, numbers: Mapping[str, float]) -> bool:
    """Return whether the name is a threshold, or a series with a verdict (unusual or not): `series.unusual`, or `series.criterion.unusual`."""
    verdict = any(name.startswith(f"{series}.") and name.endswith(".unusual") for name in numbers)
    return series.endswith(".threshold") or verdict


def main() -> None:
    """Write all pictures."""
    PICTURES.mkdir(exist_ok=True)
    for name in POLICIES:
        (PICTURES / f"{name}.svg").write_text(picture(name))
        print(f"{PICTURES / name}.svg")
