"""Samples drawn from strata of a window, such as its classes: a pass that counts the strata, and a pass that draws from each what it is to give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from modyn._core import StratifiedDraw, ValueCounts
from modyn.errors import ConfigError
from modyn.records import Int64Array, KeysAndWeights, LabelArray
from modyn.selector.window.selection_window import Selection, SelectionWindow

MOST_STRATA = 1 << 20
"""Strata that a window may have: about 100 MB where there are so many."""


@dataclass(frozen=True, slots=True)
class Strata:
    """The strata of a window by the value that their samples share: values, int64 (n,), ascending, and how many samples each has, int64 (n,)."""

    values: Int64Array
    counts: Int64Array

    def draw(self, quotas: Int64Array, seed: Seed) -> StratifiedDraw:
        """Return what draws so many samples of each, uniformly without replacement. Args: quotas: int64 (n,), at most `counts`."""
        return StratifiedDraw(self.values, self.counts, np.ascontiguousarray(quotas, np.int64), seed)


Seed = tuple[int, int, int, int]


def new_seed(generator: np.random.Generator) -> Seed:
    """Return a seed for `Strata.draw`, which draws the same samples each time that it gets it."""
    words: list[int] = generator.integers(0, 2**64, 4, np.uint64).tolist()
    return words[0], words[1], words[2], words[3]


Column = Callable[[], Iterator[Int64Array]]
"""Yields, each time it is called, the stratum of each sample of a window, int64, in as many chunks as the window's own."""


def count_strata(column: Column, what: str) -> Strata:
    """Count the samples of each stratum. Args: what: the plural of what makes a stratum, for errors.

    Raises: ConfigError: there are more than MOST_STRATA.
    """
    counts = ValueCounts(MOST_STRATA)
    for values in column():
        if not counts.add(values):
            raise ConfigError(
                f"selection_strategy: the window of this trigger has more than {MOST_STRATA} {what}, too many to divide a trigger set among; "
                "choose a presampling strategy without them, such as Random"
            )
    return Strata(*counts.counts())


def draw_from_strata(window: SelectionWindow, column: Column, strata: Strata, quotas: Int64Array, seed: Seed) -> Selection:
    """Select, with weight 1, so many samples of each stratum, each subset of a stratum equally likely; in stream order.

    Args: column: what `strata` were counted by. quotas: int64 (n,), one for each of the strata.
    """
    drawn = _drawn(strata.draw(quotas, seed), column)
    return Selection(int(quotas.sum()), map(KeysAndWeights.unweighted, window.keys_at(drawn)))


def _drawn(draw: StratifiedDraw, column: Column) -> Iterator[Int64Array]:
    """Positions in the window, ascending, of what is drawn."""
    start = 0
    for values in column():
        if len(chosen := draw.next(values)):
            yield start + chosen
        start += len(values)


def label_strata(window: SelectionWindow) -> Iterator[Int64Array]:
    """Yield the labels of a window as strata: of float labels their bits, with one zero and one NaN."""
    return map(as_strata, window.labels())


def as_strata(labels: LabelArray) -> Int64Array:
    """Return one int64 for each of the labels, equal for equal labels.

    >>> len(set(as_strata(np.array([0.0, -0.0, np.nan, -np.nan, 1.0])).tolist()))
    3
    """
    if labels.dtype.kind != "f":
        return np.ascontiguousarray(labels, np.int64)
    return np.where(np.isnan(labels), np.nan, labels + 0.0).view(np.int64)
