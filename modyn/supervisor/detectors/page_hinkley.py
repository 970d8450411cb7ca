"""The detector PageHinkley."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from modyn.config.base import Section
from modyn.supervisor.detectors.base import StreamDetector
from modyn.supervisor.evidence import Evidence
from modyn.tolerance import exceeds


class PageHinkleyConfig(Section):
    """Options of PageHinkley."""

    min_instances: int = Field(30, ge=1, description="number of values before the first detection")
    delta: float = Field(0.005, ge=0, description="tolerated change of the mean")
    threshold: float = Field(50.0, gt=0, description="sum of deviations beyond which the mean has changed (λ)")
    alpha: float = Field(0.9999, gt=0, le=1, description="share of the sums that is kept at each value")
    mode: Literal["up", "down", "both"] = Field("both", description="changes of the mean that count")


class PageHinkley(StreamDetector):
    """Detects that the sum of (number - mean so far - `delta`) exceeds its smallest earlier value by more than `threshold` (Page 1954; Gama and
    others: A Survey on Concept Drift Adaptation, 2014).

    >>> detector = PageHinkley(PageHinkleyConfig(threshold=5))
    >>> [at for at, number in enumerate([0.0] * 50 + [1.0] * 50) if detector.update(number)]
    [55]
    """

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

    def evidence(self) -> Sequence[Evidence]:
        """Return the rise of the sum of deviations, with the threshold of the rise."""
        return (Evidence("sum", self._rise(), self.config.threshold),)
