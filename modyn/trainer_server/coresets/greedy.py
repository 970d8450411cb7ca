"""Greedy maximizers of monotone submodular functions: naive, lazy, stochastic, approximate lazy.

Nemhauser, Wolsey and Fisher 1978: the greedy set has at least 1 - 1/e of the best value. Lazy: Minoux 1978, the same set. Stochastic:
Mirzasoleiman et al., Lazier Than Lazy Greedy, 2015, 1 - 1/e - ε in expectation. Approximate lazy: Wei, Iyer and Bilmes 2014.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from modyn.errors import InvalidArgumentError

Positions = npt.NDArray[np.int64]
Greedy = Literal["NaiveGreedy", "LazyGreedy", "StochasticGreedy", "ApproximateLazyGreedy"]

EPSILON: Final = 0.1
"""Of StochasticGreedy: each step looks at n / size · ln(1 / EPSILON) candidates."""
ENOUGH: Final = 0.9
"""Of ApproximateLazyGreedy: a gain of this share of the largest bound is taken."""


class SetFunction(ABC):
    """A function of sets of n candidates, and the set that is chosen so far, first the empty one."""

    keeps_gains: ClassVar[bool] = False
    """Asking for gains costs nothing, for all are kept while the set grows: being lazy then saves nothing."""

    @abstractmethod
    def __len__(self) -> int:
        """How many candidates there are."""

    @property
    @abstractmethod
    def value(self) -> float:
        """Of the set that is chosen so far; 0 for the empty one."""

    @abstractmethod
    def gains(self, candidates: Positions) -> npt.NDArray[np.float64]:
        """What each of them, not yet chosen, would add to the value. Args: candidates: (m,). Returns: (m,)."""

    @abstractmethod
    def add(self, candidate: int) -> None:
        """Choose one that is not chosen yet."""


def maximize(function: SetFunction, size: int, greedy: Greedy, generator: np.random.Generator) -> Positions:
    """Choose `size` candidates, or all if there are no more, one after the other. Of equal gains, the least position is taken.

    Args: generator: draws what StochasticGreedy looks at. Returns: (size,), in the order of the choice. Raises InvalidArgumentError.
    """
    if greedy not in _MAXIMIZERS:
        raise InvalidArgumentError(f"there is no maximizer {greedy!r}; there are {', '.join(_MAXIMIZERS)}")
    size = min(size, len(function))
    return _MAXIMIZERS[greedy](function, size, generator) if size else np.empty(0, np.int64)


def _naive(function: SetFunction, size: int, _: np.random.Generator) -> Positions:
    return _best_of_each(function, size, lambda left: left)


def _stochastic(function: SetFunction, size: int, generator: np.random.Generator) -> Positions:
    looked_at = int(np.ceil(len(function) / size * np.log(1 / EPSILON)))

    def some(left: Positions) -> Positions:
        if looked_at >= len(left):
            return left
        return np.sort(generator.choice(left, looked_at, replace=False, shuffle=False))

    return _best_of_each(function, size, some)


def _lazy(function: SetFunction, size: int, generator: np.random.Generator) -> Positions:
    return _naive(function, size, generator) if function.keeps_gains else _by_bounds(function, size, 1.0)


def _best_of_each(function: SetFunction, size: int, look_at: Callable[[Positions], Positions]) -> Positions:
    chosen = np.empty(size, np.int64)
    left = np.arange(len(function))
    for step in range(size):
        candidates = look_at(left)
        chosen[step] = candidates[np.argmax(function.gains(candidates))]
        function.add(int(chosen[step]))
        left = np.delete(left, np.searchsorted(left, chosen[step]))
    return chosen


def _by_bounds(function: SetFunction, size: int, enough: float) -> Positions:
    """Gains of earlier steps bound those of later ones, so that few are computed anew: twice as many each time until the best is known."""
    chosen = np.empty(size, np.int64)
    bounds = function.gains(np.arange(len(function)))
    known = np.full(len(function), True)
    for step in range(size):
        some = 1
        while True:
            best = int(np.argmax(bounds))
            found = int(np.argmax(np.where(known, bounds, -np.inf)))
            if known[best] or (known[found] and bounds[found] > enough * bounds[best] > 0):
                break
            stale = np.where(known, -np.inf, bounds)
            some = min(2 * some, len(bounds))
            candidates = np.append(np.argpartition(-stale, some - 1)[:some], best)
            candidates = np.unique(candidates[stale[candidates] > -np.inf])
            bounds[candidates] = function.gains(candidates)
            known[candidates] = True
        chosen[step] = best if known[best] else found
        function.add(int(chosen[step]))
        bounds[chosen[step]] = -np.inf
        known[:] = False
    return chosen


_MAXIMIZERS: Mapping[Greedy, Callable[[SetFunction, int, np.random.Generator], Positions]] = {
    "NaiveGreedy": _naive,
    "LazyGreedy": _lazy,
    "StochasticGreedy": _stochastic,
    "ApproximateLazyGreedy": lambda function, size, _: _by_bounds(function, size, ENOUGH),
}
