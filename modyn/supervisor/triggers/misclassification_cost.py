"""Policy that fires when the errors that a newer model would have avoided are worth more than the training of this model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from pydantic import Field

from modyn.config.base import Problem, sections_in, without_effect
from modyn.config.policy import check_policy
from modyn.records import SampleBatch
from modyn.supervisor.criteria import PERFORMANCE_CRITERIA
from modyn.supervisor.evidence import Evidence, EvidenceKind, required_value, value_of
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, SeriesName, TriggerContext, TriggerOutcome
from modyn.supervisor.triggers.cost import REGRET, CostConfig, CostTrigger
from modyn.supervisor.triggers.interval import IntervalConfig
from modyn.supervisor.triggers.measures.accuracy_trend import AccuracyTrend
from modyn.supervisor.triggers.measures.labelled_windows import LabelledWindows
from modyn.supervisor.triggers.measures.performance_meter import (
    EVALUATED,
    ForecastOptions,
    forecasts_without_effect,
    refuse_diverged,
)
from modyn.supervisor.triggers.measures.questions import OutcomeQuestion

ACCURACY: Final = "accuracy"
AVOIDABLE: Final = "avoidable_misclassifications"
SO_FAR: Final = f"{REGRET}.so_far"
_NO_CRITERIA: Final = (
    "has no effect: this policy weighs misclassifications against the time of a training, and no score fires it; leave it out, or put a "
    "PerformanceTrigger next to it in an EnsembleTrigger"
)


class MisclassificationCostConfig(ForecastOptions, CostConfig):
    """Fires when the time since avoidable misclassifications is worth more than the time of a training."""

    avoidable_misclassification_latency_per_training_second: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="seconds since avoidable misclassifications, summed over these, that are worth one second of training; a higher value fires "
        "less often",
        examples=[1_000_000],
    )
    expected_accuracy: float | None = Field(
        None,
        ge=0,
        le=1,
        description="accuracy that a model trained now would have; none: forecast from the accuracies right after earlier triggers",
    )
    allow_reduction: bool = Field(False, description="a check that is better than expected reduces the regret")
    warmup_intervals: int = Field(
        ge=1, description="number of first checks of the run, which fire nothing, while accuracies are learned"
    )
    warmup_policy: dict[str, Any] = Field(
        description="the trigger that fires instead of these checks: a DataAmountTrigger or a TimeTrigger",
        examples=[{"id": "DataAmountTrigger", "num_samples": 1000}],
    )
    decision_criteria: dict[SeriesName, dict[str, Any]] = Field(
        default_factory=dict, description="accepted as in PerformanceTrigger, without effect: no score fires this policy"
    )


class _Evaluated(NamedTuple):
    """Result of the newest model on the samples with new labels."""

    num_samples: int
    accuracy: float
    expected: float
    """The accuracy that a model trained now would have."""
    mean_age: float
    """Mean seconds of stream time since the errors occurred."""


class AvoidableMisclassificationCostTrigger(CostTrigger):
    """Fires when the summed age of avoidable misclassifications is worth more than the time of a training (Modyn, SIGMOD'25, section 5.1: cost
    trigger).

    At each check the newest model is evaluated on the samples whose labels have arrived since the last check. A model trained now would have avoided
    (expected accuracy - accuracy) · samples of the newest model's errors; the same share of each error counts as avoidable. *Regret* is the sum of
    the ages of the avoidable misclassifications since the last trigger. The age of a misclassification is the stream time since the timestamp of its
    sample. The regret divided by `avoidable_misclassification_latency_per_training_second` is an amount of training time. If a training now is
    forecast to take less than this time, the policy fires, which resets the regret. The time of a training is forecast in the same way as in
    DataIncorporationLatencyCostTrigger, and the expected accuracy as in PerformanceTrigger. With `lookahead`, the regret is forecast for the next
    check. The forecast assumes that the time to the next check equals the time since the previous check.

    *Example of the units*: a model errs at 100 of 1,000 samples a day, and an accuracy of 0.95 is expected. This gives 50 avoidable
    misclassifications a day. After three days, the misclassifications of the three days are 2.5, 1.5 and 0.5 days old on average. The regret is 50 ·
    4.5 · 86,400 s = 19.4e6 misclassification-seconds. With a rate of 1e6 the regret is worth 19.4 s of training. The policy fires if a training is
    forecast to take less.

    Evidence: `accuracy`, the count `evaluated_samples`, `expected_accuracy`, `avoidable_misclassifications` since the last trigger, `regret` in
    misclassification-seconds, and the evidence that every CostTrigger reports. With `lookahead`, `regret.so_far` is the regret before the forecast.

    >>> from modyn.config.base import load_section
    >>> from modyn.testing.decisions import decide  # each of its trainings takes 1.5 s
    >>> from modyn.testing.fake_evidence import FakeEvidence  # models err where the label is 0
    >>> stream = SampleBatch(np.arange(40), np.arange(40), np.repeat([1, 0], [20, 20]))
    >>> options = {
    ...     "evaluation_interval_data_points": 10,
    ...     "evaluation": {"dataset": {"dataset_id": "d", "metrics": [{"name": "Accuracy"}]}},
    ...     "expected_accuracy": 0.9,
    ...     "avoidable_misclassification_latency_per_training_second": 50,
    ...     "warmup_intervals": 1,
    ...     "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 10},
    ... }
    >>> trigger = AvoidableMisclassificationCostTrigger(load_section(MisclassificationCostConfig, options))
    >>> [(check.position, check.fires, check.numbers.get("regret")) for check in decide(trigger, [stream], source=FakeEvidence(stream))]
    [(10, True, None), (20, False, 0.0), (30, False, 40.5), (40, True, 171.0)]
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
        """Stream time at the last check with a measurement. The regret is counted up to this time."""
        self._avoidable = 0.0
        self._regret = 0.0

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Find mistakes in the options, and options without effect; the evaluator checks the dataset."""
        found = super().problems(options, path)
        for name, section in sections_in(options.get("decision_criteria")).items():
            found += check_policy(PERFORMANCE_CRITERIA, section, "id", f"{path}.decision_criteria.{name}")
        if found:
            return found
        found = without_effect(cls.Config, options, ["decision_criteria"], path, _NO_CRITERIA)
        is_expected = options.get("expected_accuracy") is not None
        return found + forecasts_without_effect(MisclassificationCostConfig, options, path, is_expected=is_expected)

    @property
    def rate(self) -> float:
        """Misclassification-seconds that are worth a second of training."""
        return self.config.avoidable_misclassification_latency_per_training_second

    def observe(self, samples: SampleBatch) -> None:
        """Count the samples, and update the stream time."""
        super().observe(samples)
        self._windows.observe(samples)
        if len(samples):
            newest = int(samples.timestamps.max())
            self._now = newest if self._now is None else max(self._now, newest)

    def end_warning(self) -> str:
        """Return the clause of `CostTrigger.end_warning`; without such a clause, a clause if labels arrived too late."""
        return super().end_warning() or self._windows.end_warning()

    def regret(self, context: CheckContext) -> Sequence[Evidence]:
        """Evaluate the newest model, and count the avoidable misclassifications."""
        assert self._now is not None
        interval = 0 if self._counted_at is None else self._now - self._counted_at
        found = self._evaluate(context)
        lack, num_samples, mean_age = 0.0, 0, 0.0
        measured = [Evidence.count(EVALUATED, 0)]
        if found is not None:
            num_samples, mean_age = found.num_samples, found.mean_age
            lack = found.expected - found.accuracy
            lack = lack if self.config.allow_reduction else max(0.0, lack)
            scores = Evidence(ACCURACY, found.accuracy), Evidence("expected_accuracy", found.expected)
            measured = [Evidence.count(EVALUATED, num_samples), *scores]
        new = lack * num_samples
        avoidable = max(0.0, self._avoidable + new)
        # Earlier misclassifications have aged by the interval, and new misclassifications have the measured mean age.
        regret = self._regret + self._avoidable * interval + new * mean_age
        regret = max(0.0, regret) if avoidable else 0.0
        measured.append(Evidence(AVOIDABLE, avoidable))
        if self.config.mode != "lookahead":
            return [*measured, Evidence(REGRET, regret)]
        # Samples are assumed to arrive evenly until the next check. At the next check, their mean age is therefore half an interval.
        ahead = lack * self._trend.samples_ahead(num_samples) / 2
        forecast = max(0.0, regret + (avoidable + ahead) * interval)
        return [*measured, Evidence.detail(SO_FAR, regret), Evidence(REGRET, forecast)]

    def _evaluate(self, context: CheckContext) -> _Evaluated | None:
        """Evaluate the newest model on the samples with new labels; None if there are no such samples."""
        assert self._now is not None
        assert self.model_id is not None
        evaluation, windows = self.config.evaluation, self._windows.labelled()
        question = OutcomeQuestion(self.model_id, windows, evaluation.entry(), evaluation.device)
        rows = context.source.ask(question) if windows else None
        if rows is None or not len(rows.keys):
            return None
        refuse_diverged(rows, self.model_id, windows)
        is_error = rows.outputs[:, 0] > 0
        accuracy, expected = 1 - float(np.mean(is_error)), self.config.expected_accuracy
        # Without an error there are no times of errors. The regret can then only fall, and the mean age of all samples is used.
        occurred = rows.timestamps[is_error] if is_error.any() else rows.timestamps
        expected = self._trend.expected_accuracy(accuracy) if expected is None else expected
        return _Evaluated(len(is_error), accuracy, expected, float((self._now - occurred).mean()))

    def remember(self, record: CheckRecord) -> None:
        """Store the counts, and the accuracy for forecasts."""
        evidence = record.evidence
        so_far = value_of(evidence, SO_FAR, EvidenceKind.DETAIL)
        self._regret = required_value(evidence, REGRET) if so_far is None else so_far
        self._avoidable = required_value(evidence, AVOIDABLE)
        self._counted_at = self._now
        num_samples = required_value(evidence, EVALUATED, EvidenceKind.COUNT)
        self._windows.count(num_samples)
        if (accuracy := value_of(evidence, ACCURACY)) is not None:
            self._trend.remember(accuracy, int(num_samples))

    def interval_ended(self) -> None:
        """Start the next interval after the samples so far."""
        self._windows.advance()

    def reset(self) -> None:
        """Count avoidable misclassifications from 0."""
        self._avoidable = self._regret = 0.0

    def trained(self, outcome: TriggerOutcome) -> None:
        """Evaluate the new model from now on."""
        super().trained(outcome)
        self._windows.trained()
        self._trend.trained()

    def own_state(self) -> dict[str, Any]:
        """Return the counts, and the state of forecasts."""
        counted = {"now": self._now, "counted_at": self._counted_at, "avoidable": self._avoidable, "regret": self._regret}
        return {**super().own_state(), **counted, "windows": self._windows.state(), "trend": self._trend.state()}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore the counts and the state of forecasts."""
        super().load_own_state(state)
        self._now, self._counted_at = state["now"], state["counted_at"]
        self._avoidable, self._regret = state["avoidable"], state["regret"]
        self._windows.load_state(state["windows"])
        self._trend.load_state(state["trend"])
