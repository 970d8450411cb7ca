"""The detector KSWIN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field, model_validator

from modyn.config.base import Section
from modyn.supervisor.detectors.base import StreamDetector


class KSWINConfig(Section):
    """Options of KSWIN."""

    alpha: float = Field(0.005, gt=0, lt=1, description="level of the test; each number is tested, so it must be small")
    window_size: int = Field(100, ge=2, le=1000, description="newest numbers that are kept, and journalled with each check")
    stat_size: int = Field(30, ge=1, description="newest numbers that are compared with as many earlier ones, drawn at random")

    @model_validator(mode="after")
    def _enough_to_draw(self) -> KSWINConfig:
        if self.window_size < 2 * self.stat_size:
            raise ValueError(f"window_size ({self.window_size}) must be at least twice stat_size ({self.stat_size})")
        return self


class KSWIN(StreamDetector):
    """Compares the newest `stat_size` numbers of a window with as many earlier ones, by the Kolmogorov-Smirnov statistic; the distribution
    has changed where it exceeds sqrt(-ln α / r), r = `stat_size` (Raab and others: Reactive Soft Prototype Computing for Concept Drift
    Streams, 2020). Of any real numbers; afterwards the newest ones remain."""

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
        # By the number of the update, so that a detector that was restored draws what it would have drawn.
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

    def evidence(self) -> Mapping[str, float]:
        """The statistic, and its threshold."""
        return {"statistic": self._statistic, "threshold": self._threshold()}
