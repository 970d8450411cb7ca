"""Fires when the errors that a newer model would have avoided are worth more than training it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from pydantic import Field

from modyn.config.base import Problem, without_effect
from modyn.config.policy import check_policy
from modyn.records import SampleBatch
from modyn.supervisor.criteria import PERFORMANCE_CRITERIA
from modyn.supervisor.triggers.accuracy_trend import AccuracyTrend
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, SeriesName, TriggerContext, TriggerOutcome
from modyn.supervisor.triggers.cost import REGRET, CostConfig, CostTrigger
from modyn.supervisor.triggers.interval import IntervalConfig
from modyn.supervisor.triggers.labelled_windows import LabelledWindows
from modyn.supervisor.triggers.performance_meter import EVALUATED, ForecastOptions, forecasts_without_effect, refuse_diverged

ACCURACY: Final = "accuracy"
AVOIDABLE: Final = "avoidable_misclassifications"
SO_FAR: Final = f"{REGRET}.so_far"
_NO_CRITERIA: Final = (
    "has no effect: this policy weighs misclassifications against the time of a training, and no score fires it; leave it out, or put a "
    "PerformanceTrigger beside it into an EnsembleTrigger"
)


class MisclassificationCostConfig(ForecastOptions, CostConfig):
    """Fires when the time since avoidable misclassifications is worth more than the time of a training."""

    avoidable_misclassification_latency_per_training_second: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="exchange rate: as many seconds since avoidable misclassifications, summed over these, are worth one second of training; a "
        "higher one fires less often",
        examples=[1_000_000],
    )
    expected_accuracy: float | None = Field(
        None,
        ge=0,
        le=1,
        description="accuracy that a model trained now would have; none: forecast from the accuracies right after the triggers so far",
    )
    allow_reduction: bool = Field(False, description="whether a check that is better than expected reduces the regret")
    warmup_intervals: int = Field(
        ge=1, description="checks at the start of the run that fire nothing, while accuracies are learnt"
    )
    warmup_policy: dict[str, Any] = Field(
        description="the trigger that fires in their place: a DataAmountTrigger or a TimeTrigger",
        examples=[{"id": "DataAmountTrigger", "num_samples": 1000}],
    )
    decision_criteria: dict[SeriesName, dict[str, Any]] = Field(
        default_factory=dict, description="accepted as in PerformanceTrigger, and without effect: no score fires this policy"
    )


class AvoidableMisclassificationCostTrigger(CostTrigger):
    """Fires when the time since avoidable misclassifications is worth more than the time of a training (Modyn, SIGMOD'25, section 5.1: cost
    trigger).

    At each check the newest model is evaluated on the samples whose labels have come since the last one, each once. Of its errors there,
    (expected accuracy - accuracy) · samples would have been avoided by a model trained now, a real number; which ones is not known, so that each
    error counts with the same share. *Regret* is the sum, over the avoidable misclassifications since the last trigger, of the stream time since
    each occurred, at the timestamp of its sample. Divided by `avoidable_misclassification_latency_per_training_second` it is worth seconds of
    training; if these are more than a training now is forecast to take, the policy fires, which resets the regret. The time of a training is
    forecast as by DataIncorporationLatencyCostTrigger, the expected accuracy as by PerformanceTrigger. In `lookahead` the regret is
    what it will be at the next check, which is taken to come after as much stream time as this one did.

    *Units, an example*: a model errs at 100 of 1,000 samples a day, and 0.95 is expected: 50 avoidable misclassifications a day. After three days
    those of the first day lie back 2.5 days on average, of the others 1.5 and 0.5 days: 50 · 4.5 · 86,400 s = 19.4e6 misclassification-seconds.
    With a rate of 1e6 they are worth 19.4 s of training. It fires if a training is forecast to take less.

    Evidence: `accuracy` on `evaluated_samples`, `expected_accuracy`, `avoidable_misclassifications` since the last trigger, `regret` in
    misclassification-seconds, in lookahead `regret.so_far` without the part that is forecast; further as of every CostTrigger.
    """

    Config: ClassVar[type[IntervalConfig]] = MisclassificationCostConfig
    config: MisclassificationCostConfig

    def __init__(self, config: MisclassificationCostConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, config.context(context))
        self._windows = LabelledWindows(self.label_delay)
        self._trend = AccuracyTrend(
            config.forecasting_method, config.performance_triggers_window_size, config.data_density_window_size
        )
        self._now: int | None = None
        """Stream time: the largest timestamp so far."""
        self._counted_at: int | None = None
        """Stream time at the last check that has measured, up to which the regret is counted."""
        self._avoidable = 0.0
        self._regret = 0.0

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Warnings too, of what has no effect here; the evaluator checks the dataset."""
        found, criteria = super().problems(options, path), options.get("decision_criteria")
        for name, section in criteria.items() if isinstance(criteria, Mapping) else ():
            if isinstance(section, Mapping):
                found += check_policy(PERFORMANCE_CRITERIA, section, "id", f"{path}.decision_criteria.{name}")
        if found:
            return found
        found = without_effect(cls.Config, options, ["decision_criteria"], path, _NO_CRITERIA)
        is_expected = options.get("expected_accuracy") is not None
        return found + forecasts_without_effect(MisclassificationCostConfig, options, path, is_expected=is_expected)

    @property
    def rate(self) -> float:
        """Misclassification-seconds."""
        return self.config.avoidable_misclassification_latency_per_training_second

    def observe(self, samples: SampleBatch) -> None:
        """Count them, and their time."""
        super().observe(samples)
        self._windows.observe(samples)
        if len(samples):
            newest = int(samples.timestamps.max())
            self._now = newest if self._now is None else max(self._now, newest)

    def lacking(self) -> str:
        """Labels that came too late for the stream, too."""
        return super().lacking() or self._windows.lacking()

    def regret(self, context: CheckContext) -> Mapping[str, float]:
        """Evaluate the newest model, and count."""
        assert self._now is not None
        interval = 0 if self._counted_at is None else self._now - self._counted_at
        measured = self._evaluate(context)
        lack, num_samples = 0.0, measured[EVALUATED]
        if num_samples:
            lack = measured["expected_accuracy"] - measured[ACCURACY]
            lack = lack if self.config.allow_reduction else max(0.0, lack)
        new = lack * num_samples
        avoidable = max(0.0, self._avoidable + new)
        regret = self._regret + self._avoidable * interval + new * measured.pop("mean_age", 0.0)
        regret = max(0.0, regret) if avoidable else 0.0
        evidence = {**measured, AVOIDABLE: avoidable, REGRET: regret}
        if self.config.mode == "lookahead":
            # What comes until the next check comes evenly, and will lie back half an interval then.
            ahead = lack * self._trend.samples_ahead(int(num_samples)) / 2
            evidence |= {SO_FAR: regret, REGRET: max(0.0, regret + (avoidable + ahead) * interval)}
        return evidence

    def _evaluate(self, context: CheckContext) -> dict[str, float]:
        """Accuracy on the new labels, if there are any, the expected one, and `mean_age`: seconds since the errors occurred, on average."""
        assert self._now is not None
        assert self.model_id is not None
        evaluation, windows = self.config.evaluation, self._windows.labelled()
        rows = context.source.outcomes(self.model_id, windows, evaluation.entry(), evaluation.device) if windows else None
        if rows is None or not len(rows.keys):
            return {EVALUATED: 0.0}
        refuse_diverged(rows, self.model_id, windows)
        is_error = rows.outputs[:, 0] > 0
        accuracy, expected = 1 - float(np.mean(is_error)), self.config.expected_accuracy
        # Without an error there is only a reduction, of all samples alike.
        occurred = rows.timestamps[is_error] if is_error.any() else rows.timestamps
        return {
            EVALUATED: float(len(is_error)),
            ACCURACY: accuracy,
            "expected_accuracy": self._trend.expected_accuracy(accuracy) if expected is None else expected,
            "mean_age": float((self._now - occurred).mean()),
        }

    def remember(self, record: CheckRecord) -> None:
        """Take the counts, and the accuracy for forecasts."""
        evidence = record.evidence
        self._avoidable, self._regret = evidence[AVOIDABLE], evidence.get(SO_FAR, evidence[REGRET])
        self._counted_at = self._now
        self._windows.count(evidence[EVALUATED])
        if ACCURACY in evidence:
            self._trend.remember(evidence[ACCURACY], int(evidence[EVALUATED]))

    def interval_ended(self) -> None:
        """Begin the next one behind the samples so far."""
        self._windows.advance()

    def reset(self) -> None:
        """Count avoidable misclassifications anew."""
        self._avoidable = self._regret = 0.0

    def trained(self, outcome: TriggerOutcome) -> None:
        """Go on with the new model."""
        super().trained(outcome)
        self._windows.trained()
        self._trend.trained()

    def own_state(self) -> dict[str, Any]:
        """What was counted, and what forecasts are made from."""
        counted = {"now": self._now, "counted_at": self._counted_at, "avoidable": self._avoidable, "regret": self._regret}
        return {**super().own_state(), **counted, "windows": self._windows.state(), "trend": self._trend.state()}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        super().load_own_state(state)
        self._now, self._counted_at = state["now"], state["counted_at"]
        self._avoidable, self._regret = state["avoidable"], state["regret"]
        self._windows.load_state(state["windows"])
        self._trend.load_state(state["trend"])
