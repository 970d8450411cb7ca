"""Draw samples from strata of a window, such as its classes: one pass counts the samples of each stratum, and a second pass draws the quota of each
stratum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from modyn._core import StratifiedDraw, ValueCounts
from modyn.errors import ConfigError
from modyn.records import Int64Array, KeysAndWeights, LabelArray
from modyn.selector.window.selection_window import Selection, SelectionWindow

MOST_STRATA = 1 << 20
"""Largest number of strata of a window; this number takes about 100 MB."""


@dataclass(frozen=True, slots=True)
class Strata:
    """The strata of a window: for each stratum, the value that its samples share, int64 (n,), ascending, and its number of samples, int64 (n,)."""

    values: Int64Array
    counts: Int64Array

    def draw(self, quotas: Int64Array, seed: Seed) -> StratifiedDraw:
        """Return an object that draws `quotas[i]` samples of stratum i, uniformly without replacement. Args: quotas: int64 (n,), at most `counts`."""
        return StratifiedDraw(self.values, self.counts, np.ascontiguousarray(quotas, np.int64), seed)


Seed = tuple[int, int, int, int]


def new_seed(generator: np.random.Generator) -> Seed:
    """Return a random seed for `Strata.draw`, which draws the same samples for the same seed."""
    words: list[int] = generator.integers(0, 2**64, 4, np.uint64).tolist()
    return words[0], words[1], words[2], words[3]


Column = Callable[[], Iterator[Int64Array]]
"""Each call yields the stratum of each sample of a window, int64, in the same chunks as the window."""


def count_strata(column: Column, what: str) -> Strata:
    """Count the samples of each stratum. Args: what: plural noun for the strata, for errors.

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
    """Select `quotas` samples of each stratum with weight 1, uniformly within a stratum, in stream order.

    Args: column: column by which `strata` were counted. quotas: int64 (n,), one for each stratum.
    """
    drawn = _drawn(strata.draw(quotas, seed), column)
    return Selection(int(quotas.sum()), map(KeysAndWeights.unweighted, window.keys_at(drawn)))


def _drawn(draw: StratifiedDraw, column: Column) -> Iterator[Int64Array]:
    """Yield the positions of the drawn samples in the window, ascending."""
    start = 0
    for values in column():
        if len(chosen := draw.next(values)):
            yield start + chosen
        start += len(values)


def label_strata(window: SelectionWindow) -> Iterator[Int64Array]:
    """Yield the labels of a window as strata. The bits of a float label are its stratum. Both zeros are one stratum, and all NaN are one stratum."""
    return map(as_strata, window.labels())


def as_strata(labels: LabelArray) -> Int64Array:
    """Map each label to an int64 number. Equal labels have equal numbers.

    >>> len(set(as_strata(np.array([0.0, -0.0, np.nan, -np.nan, 1.0])).tolist()))
    3
    """
    if labels.dtype.kind != "f":
        return np.ascontiguousarray(labels, np.int64)
    # Adding 0.0 turns -0.0 into 0.0.
    return np.where(np.isnan(labels), np.nan, labels + 0.0).view(np.int64)
