"""Base class of decision criteria. A criterion decides whether a number is unusual, given the earlier numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Literal

from pydantic import Field

from modyn.config.base import Section
from modyn.tolerance import exceeds


class Worse(IntEnum):
    """The side of a threshold on which values are bad: high values for a distance, low values for an accuracy."""

    HIGHER = 1
    LOWER = -1


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number of a series. p_value: p-value of the test of this number; None without a test."""

    value: float
    p_value: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a value is unusual, and the threshold to which the value was compared (None while there is no threshold)."""

    fires: bool
    threshold: float | None
    of_p_value: bool = False
    """Whether the p-value was compared instead of the value."""


class DecisionCriterion(ABC):
    """A decision criterion, built from its `Config`: a pure function of a measurement and of the earlier measurements.

    Comparisons are strict: a value equal to the threshold, up to rounding (`exceeds`), is not unusual. If there are too few earlier values for a
    comparison, the value is not unusual.
    """

    Config: ClassVar[type[Section]]
    judges: ClassVar[Literal["value", "p_value", "count"]] = "value"
    """The number that the criterion judges: the value, the p-value, or a number of misclassifications computed from the accuracy."""
    constant: ClassVar[str] = ""
    """Name of the option with the threshold; empty if the criterion compares with earlier values. Other services check the option against the bounds
    of a metric.
    """

    def __init__(self, config: Any, worse: Worse = Worse.HIGHER) -> None:
        """Args: config: a checked `Config`. worse: the side of the threshold on which values are unusual."""
        self.config: Any = config
        self._worse = worse

    @property
    def window_size(self) -> int:
        """Largest number of earlier measurements that the criterion uses."""
        return int(getattr(self.config, "window_size", 0))

    @classmethod
    def compares_with_earlier(cls) -> bool:
        """Return whether the criterion compares a value with earlier values, and therefore needs calibration."""
        return "window_size" in cls.Config.model_fields

    @abstractmethod
    def decide(self, now: Measurement, before: Sequence[float]) -> Verdict:
        """Judge the measurement `now`. Args: before: the newest earlier values, at most `window_size`, oldest first."""

    def _verdict(self, value: float, threshold: float | None) -> Verdict:
        return Verdict(threshold is not None and exceeds(self._worse * value, self._worse * threshold, unit=0), threshold)


class WindowConfig(Section):
    """Options of criteria that compare with earlier values."""

    window_size: int = Field(10, ge=1, le=100_000, description="number of newest values that a value is compared with")
