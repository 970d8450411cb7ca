"""A clock for tests of what is measured."""

from __future__ import annotations

from itertools import count


class StepClock:
    """Moves by a hundredth of a second at each look: what is measured by it ends without any wait."""

    def __init__(self) -> None:
        self._looks = count()

    def __call__(self) -> float:
        return next(self._looks) / 100
