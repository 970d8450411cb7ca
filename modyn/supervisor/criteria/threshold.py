"""Criteria that compare with a constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from modyn.config.base import Section
from modyn.errors import InvalidArgumentError
from modyn.supervisor.criteria.base import DecisionCriterion, Measurement, Verdict


class ThresholdConfig(Section):
    """Options of ThresholdDecisionCriterion."""

    threshold: float = Field(description="a value beyond it is unusual", examples=[0.05], allow_inf_nan=False)


class ThresholdDecisionCriterion(DecisionCriterion):
    """A value beyond `threshold` is unusual.

    >>> ThresholdDecisionCriterion(ThresholdConfig(threshold=0.05)).decide(Measurement(0.06), [])
    Verdict(fires=True, threshold=0.05, of_p_value=False)
    """

    Config: ClassVar[type[Section]] = ThresholdConfig
    constant = "threshold"

    def decide(self, now: Measurement, before: Sequence[float]) -> Verdict:
        """See `DecisionCriterion.decide`."""
        return self._verdict(now.value, self.config.threshold)


class PValueConfig(Section):
    """Options of PValueDecisionCriterion."""

    p_val: float = Field(0.05, gt=0, lt=1, description="level of the test: a p-value below it is unusual")


class PValueDecisionCriterion(DecisionCriterion):
    """A value whose p-value is below `p_val` is unusual.

    Without drift, and with windows that share no samples, a fraction `p_val` of all checks fires.

    >>> PValueDecisionCriterion(PValueConfig(p_val=0.05)).decide(Measurement(0.3, p_value=0.01), [])
    Verdict(fires=True, threshold=0.05, of_p_value=True)
    """

    Config: ClassVar[type[Section]] = PValueConfig
    judges = "p_value"
    constant = "p_val"

    def decide(self, now: Measurement, before: Sequence[float]) -> Verdict:
        """See `DecisionCriterion.decide`. Raises InvalidArgumentError: the metric gives no p-value."""
        if now.p_value is None:
            raise InvalidArgumentError(
                "PValueDecisionCriterion needs a p-value, and the metric gave none: set its num_permutations, or use another criterion"
            )
        return Verdict(now.p_value < self.config.p_val, self.config.p_val, of_p_value=True)
