"""Criteria of performance triggers: criteria for scores, whose low values are bad, and a criterion for avoidable misclassifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from modyn.config.base import Section
from modyn.supervisor.criteria.base import Measurement, Verdict
from modyn.supervisor.criteria.quantile import DynamicQuantileThresholdCriterion, QuantileConfig
from modyn.supervisor.criteria.rolling_average import DynamicRollingAverageThresholdCriterion, RollingAverageConfig
from modyn.supervisor.criteria.threshold import ThresholdDecisionCriterion
from modyn.tolerance import exceeds

MetricLabel = Annotated[
    str,
    Field(
        min_length=1,
        description="the score, for which high values must be good: the label of a metric of `evaluation.dataset.metrics`, or, without labels, "
        "EstimatedAccuracyATC or EstimatedAccuracyDoC",
        examples=["Accuracy"],
    ),
]


class StaticPerformanceThresholdConfig(Section):
    """Options of StaticPerformanceThresholdCriterion."""

    metric: MetricLabel
    metric_threshold: float = Field(description="a score below it is unusual", examples=[0.85], allow_inf_nan=False)

    @property
    def threshold(self) -> float:
        """The threshold that a score is compared with."""
        return self.metric_threshold


class StaticPerformanceThresholdCriterion(ThresholdDecisionCriterion):
    """A score below `metric_threshold` is unusual.

    >>> from modyn.supervisor.criteria import Worse
    >>> config = StaticPerformanceThresholdConfig(metric="Accuracy", metric_threshold=0.85)
    >>> StaticPerformanceThresholdCriterion(config, Worse.LOWER).decide(Measurement(0.8), [])
    Verdict(fires=True, threshold=0.85, of_p_value=False)
    """

    Config: ClassVar[type[Section]] = StaticPerformanceThresholdConfig
    constant = "metric_threshold"


class DynamicQuantilePerformanceThresholdConfig(QuantileConfig):
    """Options of DynamicQuantilePerformanceThresholdCriterion."""

    metric: MetricLabel


class DynamicQuantilePerformanceThresholdCriterion(DynamicQuantileThresholdCriterion):
    """A score in the worst `quantile` of the last `window_size` scores is unusual, with linear interpolation between neighbours.

    >>> from modyn.supervisor.criteria import Worse
    >>> config = DynamicQuantilePerformanceThresholdConfig(metric="Accuracy", quantile=0.25)
    >>> DynamicQuantilePerformanceThresholdCriterion(config, Worse.LOWER).decide(Measurement(0.6), [0.5, 0.75, 0.75, 1.0, 1.0])
    Verdict(fires=True, threshold=0.75, of_p_value=False)
    """

    Config: ClassVar[type[Section]] = DynamicQuantilePerformanceThresholdConfig


class DynamicRollingAveragePerformanceThresholdConfig(RollingAverageConfig):
    """Options of DynamicRollingAveragePerformanceThresholdCriterion."""

    metric: MetricLabel


class DynamicRollingAveragePerformanceThresholdCriterion(DynamicRollingAverageThresholdCriterion):
    """A score that is below the mean of the last `window_size` scores by more than `deviation` is unusual.

    >>> from modyn.supervisor.criteria import Worse
    >>> config = DynamicRollingAveragePerformanceThresholdConfig(metric="Accuracy", deviation=0.25, absolute=True)
    >>> DynamicRollingAveragePerformanceThresholdCriterion(config, Worse.LOWER).decide(Measurement(0.25), [0.5, 1.0])
    Verdict(fires=True, threshold=0.5, of_p_value=False)
    """

    Config: ClassVar[type[Section]] = DynamicRollingAveragePerformanceThresholdConfig


class StaticNumberMisclassificationConfig(Section):
    """Options of StaticNumberMisclassificationCriterion."""

    metric: MetricLabel = "Accuracy"
    avoidable_misclassification_threshold: float = Field(
        ge=0,
        description="number of avoidable misclassifications since the last trigger above which a check is unusual",
        examples=[100],
        allow_inf_nan=False,
    )
    expected_accuracy: float | None = Field(
        None,
        ge=0,
        le=1,
        description="accuracy that a model trained now would have; none: forecast from the accuracies right after earlier triggers",
    )
    allow_reduction: bool = Field(False, description="a check that is better than expected reduces their number, to at least 0")

    @property
    def threshold(self) -> float:
        """The threshold that the number of misclassifications is compared with."""
        return self.avoidable_misclassification_threshold


class StaticNumberMisclassificationCriterion(ThresholdDecisionCriterion):
    """A check is unusual if the number of avoidable misclassifications since the last trigger exceeds `avoidable_misclassification_threshold`. A
    model trained now would avoid these misclassifications. Their number is a real number: the sum of (expected accuracy - accuracy) · samples over
    the checks since the last trigger. A sum equal to the threshold, up to rounding, is not unusual (`exceeds`).

    >>> config = StaticNumberMisclassificationConfig(avoidable_misclassification_threshold=100)
    >>> StaticNumberMisclassificationCriterion(config).decide(Measurement(120), [])
    Verdict(fires=True, threshold=100.0, of_p_value=False)
    """

    Config: ClassVar[type[Section]] = StaticNumberMisclassificationConfig
    judges = "count"
    constant = "avoidable_misclassification_threshold"

    def decide(self, now: Measurement, before: Sequence[float]) -> Verdict:
        """See `DecisionCriterion.decide`."""
        return Verdict(exceeds(now.value, self.config.threshold), self.config.threshold)
