"""Greedy maximizers of monotone submodular functions: naive, lazy, stochastic, approximate lazy.

The value of the greedy set is at least 1 - 1/e of the best value (Nemhauser, Wolsey and Fisher 1978). The lazy maximizer chooses the same set (Minoux
1978). The stochastic maximizer reaches 1 - 1/e - ε in expectation (Mirzasoleiman et al., Lazier Than Lazy Greedy, 2015). The approximate lazy
maximizer is by Wei, Iyer and Bilmes 2014.
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
"""Precision of StochasticGreedy: each step examines n / size · ln(1 / EPSILON) candidates."""
ENOUGH: Final = 0.9
"""Precision of ApproximateLazyGreedy: the maximizer accepts a gain of at least this share of the largest bound."""


class SetFunction(ABC):
    """A function of sets of n candidates, together with a current set. The set is empty at first."""

    keeps_gains: ClassVar[bool] = False
    """Whether the function keeps all gains while the set grows. Gains then cost nothing, and a lazy maximizer saves nothing."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of candidates."""

    @property
    @abstractmethod
    def value(self) -> float:
        """Return the value of the current set; 0 for the empty set."""

    @abstractmethod
    def gains(self, candidates: Positions) -> npt.NDArray[np.float64]:
        """Return the gain in value from adding each candidate. Args: candidates: (m,), none of them in the set. Returns: (m,)."""

    @abstractmethod
    def add(self, candidate: int) -> None:
        """Add a candidate that is not in the set."""


def maximize(function: SetFunction, size: int, greedy: Greedy, generator: np.random.Generator) -> Positions:
    """Choose `size` candidates, at most all, one after the other. The smallest position wins among equal gains.

    Args: generator: draws the candidates for StochasticGreedy. Returns: (size,), in the order of the choice. Raises InvalidArgumentError.
    """
    if greedy not in _MAXIMIZERS:
        raise InvalidArgumentError(f"there is no maximizer {greedy!r}; there are {', '.join(_MAXIMIZERS)}")
    size = min(size, len(function))
    return _MAXIMIZERS[greedy](function, size, generator) if size else np.empty(0, np.int64)


def _naive(function: SetFunction, size: int, _: np.random.Generator) -> Positions:
    return _best_of_each(function, size, lambda left: left)


def _stochastic(function: SetFunction, size: int, generator: np.random.Generator) -> Positions:
    # With this number, the expected value is at least 1 - 1/e - EPSILON of the optimum (Mirzasoleiman and others: Lazier Than Lazy Greedy, 2015).
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
    """Choose by upper bounds: a candidate's gain in an earlier step is an upper bound of its current gain. The function recomputes few gains, and
    doubles their number until the best gain is known.
    """
    chosen = np.empty(size, np.int64)
    bounds = function.gains(np.arange(len(function)))
    # Whether a bound is the exact gain of this step. In the first step, all bounds are exact.
    known = np.full(len(function), True)
    for step in range(size):
        some = 1
        while True:
            best = int(np.argmax(bounds))
            found = int(np.argmax(np.where(known, bounds, -np.inf)))
            if known[best] or (known[found] and bounds[found] > enough * bounds[best] > 0):
                break
            # Compute the gains of the candidates with the largest inexact bounds. The best candidate is probably among these.
            stale = np.where(known, -np.inf, bounds)
            some = min(2 * some, len(bounds))
            candidates = np.append(np.argpartition(-stale, some - 1)[:some], best)
            candidates = np.unique(candidates[stale[candidates] > -np.inf])
            bounds[candidates] = function.gains(candidates)
            known[candidates] = True
        chosen[step] = best if known[best] else found
        function.add(int(chosen[step]))
        # A chosen element is never chosen again. The addition may have lowered all gains, so the known gains are now only bounds.
        bounds[chosen[step]] = -np.inf
        known[:] = False
    return chosen


_MAXIMIZERS: Mapping[Greedy, Callable[[SetFunction, int, np.random.Generator], Positions]] = {
    "NaiveGreedy": _naive,
    "LazyGreedy": _lazy,
    "StochasticGreedy": _stochastic,
    "ApproximateLazyGreedy": lambda function, size, _: _by_bounds(function, size, ENOUGH),
}
