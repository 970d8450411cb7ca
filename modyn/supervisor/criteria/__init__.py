"""Decision criteria, registered by `id`: criteria for drift metrics (high values are bad) and criteria for scores (low values are bad)."""

from __future__ import annotations

from typing import Final

from modyn.registry import Registry
from modyn.supervisor.criteria.base import DecisionCriterion, Measurement, Verdict, Worse

__all__ = ["CRITERIA", "PERFORMANCE_CRITERIA", "DecisionCriterion", "Measurement", "Verdict", "Worse"]

_HERE: Final = "modyn.supervisor.criteria"

CRITERIA: Final[Registry[type[DecisionCriterion]]] = Registry(
    group="modyn.decision_criteria",
    kind="decision criterion",
    builtin={
        "DynamicQuantileThresholdCriterion": f"{_HERE}.quantile:DynamicQuantileThresholdCriterion",
        "DynamicRollingAverageThresholdCriterion": f"{_HERE}.rolling_average:DynamicRollingAverageThresholdCriterion",
        "PValueDecisionCriterion": f"{_HERE}.threshold:PValueDecisionCriterion",
        "ThresholdDecisionCriterion": f"{_HERE}.threshold:ThresholdDecisionCriterion",
    },
)

PERFORMANCE_CRITERIA: Final[Registry[type[DecisionCriterion]]] = Registry(
    group="modyn.performance_criteria",
    kind="performance criterion",
    builtin={
        "DynamicQuantilePerformanceThresholdCriterion": f"{_HERE}.performance:DynamicQuantilePerformanceThresholdCriterion",
        "DynamicRollingAveragePerformanceThresholdCriterion": f"{_HERE}.performance:DynamicRollingAveragePerformanceThresholdCriterion",
        "StaticNumberMisclassificationCriterion": f"{_HERE}.performance:StaticNumberMisclassificationCriterion",
        "StaticPerformanceThresholdCriterion": f"{_HERE}.performance:StaticPerformanceThresholdCriterion",
    },
)
