"""Criteria of performance triggers: of a score, where a low value is the bad one, and of avoidable misclassifications."""

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
        description="which score is judged, of which low values are bad: the label of a metric of `evaluation.dataset.metrics`, or, without "
        "labels, EstimatedAccuracyATC or EstimatedAccuracyDoC",
        examples=["Accuracy"],
    ),
]


class StaticPerformanceThresholdConfig(Section):
    """Options of StaticPerformanceThresholdCriterion."""

    metric: MetricLabel
    metric_threshold: float = Field(description="a score below it is unusual", examples=[0.85], allow_inf_nan=False)

    @property
    def threshold(self) -> float:
        """What a score is compared with."""
        return self.metric_threshold


class StaticPerformanceThresholdCriterion(ThresholdDecisionCriterion):
    """A score below `metric_threshold` is unusual."""

    Config: ClassVar[type[Section]] = StaticPerformanceThresholdConfig


class DynamicQuantilePerformanceThresholdConfig(QuantileConfig):
    """Options of DynamicQuantilePerformanceThresholdCriterion."""

    metric: MetricLabel


class DynamicQuantilePerformanceThresholdCriterion(DynamicQuantileThresholdCriterion):
    """A score in the worst `quantile` of the last `window_size` scores is unusual, with linear interpolation between neighbours."""

    Config: ClassVar[type[Section]] = DynamicQuantilePerformanceThresholdConfig


class DynamicRollingAveragePerformanceThresholdConfig(RollingAverageConfig):
    """Options of DynamicRollingAveragePerformanceThresholdCriterion."""

    metric: MetricLabel


class DynamicRollingAveragePerformanceThresholdCriterion(DynamicRollingAverageThresholdCriterion):
    """A score that lies below the mean of the last `window_size` scores by more than `deviation` is unusual."""

    Config: ClassVar[type[Section]] = DynamicRollingAveragePerformanceThresholdConfig


class StaticNumberMisclassificationConfig(Section):
    """Options of StaticNumberMisclassificationCriterion."""

    metric: MetricLabel = "Accuracy"
    avoidable_misclassification_threshold: float = Field(
        ge=0,
        description="more avoidable misclassifications since the last trigger are unusual",
        examples=[100],
        allow_inf_nan=False,
    )
    expected_accuracy: float | None = Field(
        None,
        ge=0,
        le=1,
        description="accuracy that a model trained now would have; none: forecast from the accuracies right after the triggers so far",
    )
    allow_reduction: bool = Field(
        False, description="whether a check that is better than expected reduces their number, to 0 at least"
    )

    @property
    def threshold(self) -> float:
        """What their number is compared with."""
        return self.avoidable_misclassification_threshold


class StaticNumberMisclassificationCriterion(ThresholdDecisionCriterion):
    """More than `avoidable_misclassification_threshold` misclassifications since the last trigger that a model trained now would avoid are
    unusual: the sum of (expected accuracy - accuracy) · samples over the checks since then, a real number. A sum that equals it, up to
    rounding, is not more (`exceeds`)."""

    Config: ClassVar[type[Section]] = StaticNumberMisclassificationConfig

    def decide(self, now: Measurement, before: Sequence[float]) -> Verdict:
        """See `DecisionCriterion.decide`."""
        return Verdict(exceeds(now.value, self.config.threshold), self.config.threshold)
