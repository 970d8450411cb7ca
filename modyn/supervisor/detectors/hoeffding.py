"""The detectors HDDM_A and HDDM_W for numbers in [0, 1], by Hoeffding's and McDiarmid's inequalities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from modyn.config.base import Section
from modyn.supervisor.detectors.base import StreamDetector
from modyn.supervisor.evidence import Evidence


class HDDMConfig(Section):
    """Options of HDDM_A."""

    drift_confidence: float = Field(0.001, gt=0, lt=1, description="probability of a detection without a change: 1 - confidence")


class HDDMA(StreamDetector):
    """Detects that the mean of all numbers exceeds the mean of an earlier part by more than Hoeffding's bound. Suits abrupt changes (Frías-Blanco
    and others: Online and Non-Parametric Drift Detection Methods Based on Hoeffding's Bounds, 2015).

    >>> detector = HDDMA(HDDMConfig())
    >>> [at for at, number in enumerate([0.1] * 50 + [0.9] * 50) if detector.update(number)]
    [56]
    """

    Config: ClassVar[type[Section]] = HDDMConfig
    takes = "shares"

    def __init__(self, config: HDDMConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        self._changed = False
        self._reset()

    def _reset(self) -> None:
        self._count, self._sum = 0, 0.0
        self._least_count, self._least_sum = 0, 0.0

    def update(self, value: float) -> bool:
        """See `StreamDetector.update`."""
        if self._changed:
            self._reset()
        self._count += 1
        self._sum += value
        if not self._least_count or self._upper(self._least_sum, self._least_count) >= self._upper(self._sum, self._count):
            self._least_count, self._least_sum = self._count, self._sum
        self._changed = self._least_count != self._count and self._increase() >= self._threshold()
        return self._changed

    def _increase(self) -> float:
        return self._sum / self._count - self._least_sum / self._least_count

    def _threshold(self) -> float:
        later = (self._count - self._least_count) / (self._least_count * self._count)
        return math.sqrt(later / 2 * math.log(2 / self.config.drift_confidence))

    def _upper(self, total: float, count: int) -> float:
        return total / count + math.sqrt(math.log(1 / self.config.drift_confidence) / (2 * count))

    def evidence(self) -> Sequence[Evidence]:
        """Return the increase of the mean, with the bound of the increase."""
        return (Evidence("increase", self._increase(), self._threshold()),) if self._count else ()


class HDDMWConfig(HDDMConfig):
    """Options of HDDM_W."""

    lambda_val: float = Field(0.05, gt=0, le=1, description="weight of the newest value in the moving averages")


class HDDMW(StreamDetector):
    """Detects that an exponentially weighted mean of the newest numbers exceeds the weighted mean of an earlier part by more than McDiarmid's bound.
    Suits gradual changes (Frías-Blanco and others, 2015).

    >>> detector = HDDMW(HDDMWConfig())
    >>> [at for at, number in enumerate([0.1] * 50 + [0.9] * 50) if detector.update(number)]
    [70]
    """

    Config: ClassVar[type[Section]] = HDDMWConfig
    takes = "shares"

    def __init__(self, config: HDDMWConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        self._changed = False
        self._reset()

    def _reset(self) -> None:
        # Mean and sum of the squared weights of each part; None if the part has no numbers.
        self._all: list[float] | None = None
        self._before: list[float] | None = None
        self._after: list[float] | None = None
        self._cut = float("inf")

    def update(self, value: float) -> bool:
        """See `StreamDetector.update`."""
        if self._changed:
            self._reset()
        self._all = self._with(self._all, value)
        upper = self._all[0] + self._bound(self._all[1])
        if upper < self._cut:
            self._cut, self._before, self._after = upper, list(self._all), None
        else:
            self._after = self._with(self._after, value)
        compared = self._compared()
        self._changed = compared is not None and compared[0] > compared[1]
        return self._changed

    def _with(self, mean: list[float] | None, value: float) -> list[float]:
        if mean is None:
            return [value, 1.0]
        weight = self.config.lambda_val
        return [weight * value + (1 - weight) * mean[0], weight**2 + (1 - weight) ** 2 * mean[1]]

    def _bound(self, squared_weights: float) -> float:
        return math.sqrt(squared_weights * math.log(1 / self.config.drift_confidence) / 2)

    def evidence(self) -> Sequence[Evidence]:
        """Return the increase of the weighted mean, with the bound of the increase."""
        compared = self._compared()
        return (Evidence("increase", *compared),) if compared else ()

    def _compared(self) -> tuple[float, float] | None:
        """Return the increase and the bound of the increase; None while there is no comparison."""
        if self._before is None or self._after is None:
            return None
        return self._after[0] - self._before[0], self._bound(self._before[1] + self._after[1])
