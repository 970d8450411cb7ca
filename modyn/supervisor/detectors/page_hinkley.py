"""The detector PageHinkley."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from modyn.config.base import Section
from modyn.supervisor.detectors.base import StreamDetector
from modyn.tolerance import exceeds


class PageHinkleyConfig(Section):
    """Options of PageHinkley."""

    min_instances: int = Field(30, ge=1, description="numbers before the first detection")
    delta: float = Field(0.005, ge=0, description="change of the mean that is tolerated")
    threshold: float = Field(50.0, gt=0, description="sum of deviations beyond which the mean has changed: λ")
    alpha: float = Field(0.9999, gt=0, le=1, description="share of the sums that is kept at each number")
    mode: Literal["up", "down", "both"] = Field("both", description="which change of the mean counts")


class PageHinkley(StreamDetector):
    """Adds up the deviations of each number from the mean so far, less `delta`, and detects where the sum rises by `threshold` above its
    least value (Page 1954; Gama and others: A Survey on Concept Drift Adaptation, 2014)."""

    Config: ClassVar[type[Section]] = PageHinkleyConfig

    def __init__(self, config: PageHinkleyConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        self._reset()

    def _reset(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._up = self._down = 0.0
        self._least_up, self._largest_down = float("inf"), float("-inf")

    def update(self, value: float) -> bool:
        """See `StreamDetector.update`."""
        config = self.config
        if self._found():
            self._reset()
        self._count += 1
        self._mean += (value - self._mean) / self._count
        deviation = value - self._mean
        self._up = config.alpha * self._up + deviation - config.delta
        self._down = config.alpha * self._down + deviation + config.delta
        self._least_up = min(self._least_up, self._up)
        self._largest_down = max(self._largest_down, self._down)
        return self._found()

    def _found(self) -> bool:
        return self._count >= self.config.min_instances and exceeds(self._rise(), self.config.threshold, self.config.threshold)

    def _rise(self) -> float:
        if not self._count:
            return 0.0
        rises = {"up": self._up - self._least_up, "down": self._largest_down - self._down}
        return max(rises.values()) if self.config.mode == "both" else rises[self.config.mode]

    def evidence(self) -> Mapping[str, float]:
        """The sum of deviations, and its threshold."""
        return {"sum": self._rise(), "threshold": self.config.threshold}
