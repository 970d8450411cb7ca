"""The detectors DDM and EDDM for a series of errors: 1 if a model was wrong, 0 if the model was right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from modyn.config.base import Section
from modyn.supervisor.detectors.base import StreamDetector
from modyn.supervisor.evidence import Evidence


class DDMConfig(Section):
    """Options of DDM."""

    warm_start: int = Field(30, ge=1, description="number of values before the first detection")
    drift_threshold: float = Field(
        3.0,
        gt=0,
        description="a change is detected if the error rate is this number of standard deviations above the least error rate so far",
    )


class DDM(StreamDetector):
    """Detects an increase of the error rate p with standard deviation s = sqrt(p (1 - p) / n): p + s > p_min + 3 s_min, with p_min and s_min from
    the smallest p + s so far (Gama and others: Learning with Drift Detection, 2004).

    >>> detector = DDM(DDMConfig())
    >>> [at for at, number in enumerate([0, 0, 0, 1] * 25 + [1] * 20) if detector.update(number)]
    [111]
    """

    Config: ClassVar[type[Section]] = DDMConfig
    takes = "errors"

    def __init__(self, config: DDMConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        self._changed = False
        self._reset()

    def _reset(self) -> None:
        self._count = 0
        self._rate = 0.0
        self._least_rate, self._least_deviation = float("inf"), float("inf")

    def update(self, value: float) -> bool:
        """See `StreamDetector.update`."""
        if self._changed:
            self._reset()
        self._count += 1
        self._rate += (value - self._rate) / self._count
        deviation = self._deviation()
        self._changed = False
        if self._count > self.config.warm_start:
            if self._rate + deviation <= self._least_rate + self._least_deviation:
                self._least_rate, self._least_deviation = self._rate, deviation
            self._changed = self._rate + deviation > self._bound()
        return self._changed

    def _deviation(self) -> float:
        return math.sqrt(max(0.0, self._rate * (1 - self._rate)) / self._count) if self._count else 0.0

    def _bound(self) -> float:
        return float(self._least_rate + self.config.drift_threshold * self._least_deviation)

    def evidence(self) -> Sequence[Evidence]:
        """Return the error rate plus the deviation, with the threshold of this sum if the threshold is known, and the error rate."""
        threshold = self._bound() if math.isfinite(self._least_rate) else None
        return Evidence("error_level", self._rate + self._deviation(), threshold), Evidence("error_rate", self._rate)


class EDDMConfig(Section):
    """Options of EDDM."""

    warm_start: int = Field(30, ge=2, description="number of errors before the first detection")
    beta: float = Field(
        0.9, gt=0, lt=1, description="share of the largest distance between errors; a smaller distance is a change"
    )


class EDDM(StreamDetector):
    """Detects that errors become more frequent: the mean distance between errors plus two deviations falls below a share of the largest earlier value
    (Baena-García and others: Early Drift Detection Method, 2006). EDDM is more sensitive to gradual change than DDM.

    >>> detector = EDDM(EDDMConfig())
    >>> [at for at, number in enumerate([0, 0, 0, 0, 1] * 40 + [1] * 60) if detector.update(number)]
    [250]
    """

    Config: ClassVar[type[Section]] = EDDMConfig
    takes = "errors"

    def __init__(self, config: EDDMConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        self._changed = False
        self._reset()

    def _reset(self) -> None:
        self._count = self._last_error = self._num_errors = 0
        self._mean = self._squares = self._largest = self._level = 0.0

    def update(self, value: float) -> bool:
        """See `StreamDetector.update`."""
        if self._changed:
            self._reset()
        self._changed = False
        self._count += 1
        if value != 1:
            return False
        self._num_errors += 1
        distance, self._last_error = self._count - self._last_error, self._count
        deviation = distance - self._mean
        self._mean += deviation / self._num_errors
        self._squares += deviation * (distance - self._mean)
        if self._count <= self.config.warm_start:
            return False
        self._level = self._mean + 2 * math.sqrt(self._squares / max(1, self._num_errors - 1))
        if self._level > self._largest:
            self._largest = self._level
        elif self._num_errors > self.config.warm_start:
            self._changed = self._level < self.config.beta * self._largest
        return self._changed

    def evidence(self) -> Sequence[Evidence]:
        """Return the mean distance plus two deviations, with the threshold of this sum."""
        return (Evidence("distance", self._level, self.config.beta * self._largest),)
