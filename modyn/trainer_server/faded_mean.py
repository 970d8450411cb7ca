"""A mean that fades, and when a loss is far above it. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class FadedMean:
    """The mean of a series of sums, in which a sample that k others came after weighs (1 - 1 / window)^k.

    >>> mean = FadedMean(window=100)
    >>> mean.add(num=10, total=5.0)
    >>> round(mean.value, 2), mean.is_jump(1.2, factor=2.0), mean.is_jump(0.9, factor=2.0)
    (0.5, True, False)
    """

    def __init__(self, window: int, state: Mapping[str, Any] | None = None) -> None:
        """Args: state: of the mean that this one goes on from; None: there is none."""
        self._kept = 1 - 1 / window
        self._total, self._weight = (0.0, 0.0) if state is None else (float(state["total"]), float(state["weight"]))

    @property
    def is_known(self) -> bool:
        """Whether there is a sample."""
        return self._weight > 0

    @property
    def value(self) -> float:
        """The mean. There is a sample at least."""
        return self._total / self._weight

    def add(self, num: int, total: float) -> None:
        """Take the sum of `num` samples, which fade together."""
        kept = self._kept**num
        self._total, self._weight = self._total * kept + total, self._weight * kept + num

    def is_jump(self, loss: float, factor: float) -> bool:
        """Whether a mean loss is more than `factor` times this mean; of a mean below 0, as far above it."""
        return loss > self.value + (factor - 1) * abs(self.value)

    def state(self) -> dict[str, float]:
        """What another goes on from."""
        return {"total": self._total, "weight": self._weight}
