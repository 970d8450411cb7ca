"""What a decision criterion is: it says of one number whether it is unusual, given those that were measured before it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

from pydantic import Field

from modyn.config.base import Section
from modyn.tolerance import exceeds


class Worse(IntEnum):
    """Which values are the bad ones: a large distance, a low accuracy."""

    HIGHER = 1
    LOWER = -1


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number of a series. p_value: of a test that came with it; None: there was none."""

    value: float
    p_value: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a value is unusual, and the threshold that it was compared with; None: there is none yet."""

    fires: bool
    threshold: float | None
    of_p_value: bool = False
    """The p-value was compared, in place of the value."""


class DecisionCriterion(ABC):
    """A decision criterion, built from its `Config`: a pure function of a measurement and of those before it.

    Comparisons are strict: a value equal to the threshold, up to rounding (`exceeds`), is not unusual. Without anything to compare with the
    verdict is no.
    """

    Config: ClassVar[type[Section]]

    def __init__(self, config: Any, worse: Worse = Worse.HIGHER) -> None:
        """Args: config: a checked `Config`. worse: the values that are unusual lie on this side of the threshold."""
        self.config: Any = config
        self._worse = worse

    @property
    def window_size(self) -> int:
        """Measurements before a value that it looks at, the newest ones; a caller need not keep more."""
        return int(getattr(self.config, "window_size", 0))

    @classmethod
    def compares_with_earlier(cls) -> bool:
        """Whether it looks at values before the one that it judges, so that it calibrates."""
        return "window_size" in cls.Config.model_fields

    @abstractmethod
    def decide(self, now: Measurement, before: Sequence[float]) -> Verdict:
        """Whether `now` is unusual. Args: before: the newest values until now, at most `window_size`, oldest first."""

    def _verdict(self, value: float, threshold: float | None) -> Verdict:
        return Verdict(threshold is not None and exceeds(self._worse * value, self._worse * threshold, unit=0), threshold)


class WindowConfig(Section):
    """Options of criteria that compare with earlier values."""

    window_size: int = Field(10, ge=1, le=100_000, description="newest values that a value is compared with")
