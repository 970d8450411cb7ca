"""The detector KSWIN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field, model_validator

from modyn.config.base import Section
from modyn.supervisor.detectors.base import StreamDetector
from modyn.supervisor.evidence import Evidence


class KSWINConfig(Section):
    """Options of KSWIN."""

    alpha: float = Field(0.005, gt=0, lt=1, description="level of the test; it must be small, because each value is tested")
    window_size: int = Field(
        100, ge=2, le=1000, description="number of newest values that are kept, and journalled with each check"
    )
    stat_size: int = Field(
        30, ge=1, description="number of newest values that are compared with the same number of earlier ones, drawn at random"
    )

    @model_validator(mode="after")
    def _enough_to_draw(self) -> KSWINConfig:
        if self.window_size < 2 * self.stat_size:
            raise ValueError(f"window_size ({self.window_size}) must be at least twice stat_size ({self.stat_size})")
        return self


class KSWIN(StreamDetector):
    """Detects that the Kolmogorov-Smirnov statistic between the newest `stat_size` numbers of a window and the same number of earlier numbers exceeds
    sqrt(-ln α / r), r = `stat_size` (Raab and others: Reactive Soft Prototype Computing for Concept Drift Streams, 2020).

    The numbers may be any real numbers. After a detection, the newest `stat_size` numbers remain in the window.

    >>> detector = KSWIN(KSWINConfig())
    >>> [at for at, number in enumerate([0.0] * 100 + [1.0] * 100) if detector.update(number)]
    [112]
    """

    Config: ClassVar[type[Section]] = KSWINConfig

    def __init__(self, config: KSWINConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        self._window: list[float] = []
        self._count = 0
        self._statistic = 0.0

    def update(self, value: float) -> bool:
        """See `StreamDetector.update`."""
        size, newest = self.config.window_size, self.config.stat_size
        self._count += 1
        self._window = [*self._window[-(size - 1) :], value]
        if len(self._window) < size:
            return False
        recent, earlier = np.sort(self._window[-newest:]), np.asarray(self._window[:-newest])
        # The number of the update is part of the seed, so that a restored detector makes the same random draws.
        drawn = np.sort(np.random.default_rng([self.seed, self._count]).choice(earlier, newest, replace=False))
        at = np.concatenate([recent, drawn])
        shares = [np.searchsorted(part, at, side="right") / newest for part in (recent, drawn)]
        self._statistic = float(np.abs(shares[0] - shares[1]).max())
        changed = self._statistic > self._threshold()
        if changed:
            self._window = self._window[-newest:]
        return changed

    def _threshold(self) -> float:
        return math.sqrt(-math.log(self.config.alpha) / self.config.stat_size)

    def evidence(self) -> Sequence[Evidence]:
        """Return the statistic, with the threshold of the statistic."""
        return (Evidence("statistic", self._statistic, self._threshold()),)
