"""Criterion that compares with the mean of earlier values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from modyn.config.base import Section
from modyn.supervisor.criteria.base import DecisionCriterion, Measurement, Verdict, WindowConfig
from modyn.tolerance import exceeds


class RollingAverageConfig(WindowConfig):
    """Options of DynamicRollingAverageThresholdCriterion."""

    deviation: float = Field(0.05, ge=0, description="largest distance from the average that is usual", allow_inf_nan=False)
    absolute: bool = Field(False, description="the deviation is in units of the value; if false, it is a share of the average")


class DynamicRollingAverageThresholdCriterion(DecisionCriterion):
    """A value that is worse than the mean of the last `window_size` values by more than `deviation` is unusual.

    A difference equal to `deviation`, up to rounding, is not unusual. A relative deviation is a share of the absolute value of the mean, because
    unbiased estimators of a distance may be negative.

    >>> criterion = DynamicRollingAverageThresholdCriterion(RollingAverageConfig(deviation=0.5))
    >>> criterion.decide(Measurement(-0.25), [-1.0, -0.5])
    Verdict(fires=True, threshold=-0.375, of_p_value=False)
    """

    Config: ClassVar[type[Section]] = RollingAverageConfig

    def decide(self, now: Measurement, before: Sequence[float]) -> Verdict:
        """See `DecisionCriterion.decide`."""
        if not before:
            return self._verdict(now.value, None)
        mean = sum(before) / len(before)
        allowed = self.config.deviation * (1 if self.config.absolute else abs(mean))
        largest = max(map(abs, (now.value, *before)))
        return Verdict(exceeds(self._worse * (now.value - mean), allowed, largest), mean + self._worse * allowed)
