"""Samples of a trigger set that are held out: a fixed share of each partition, of the keys that rank lowest by a hash of seed and key.

So the share is the same at every attempt and for any number of workers, its size is known before a key is read, and a key that is held out in
one trigger set is held out in another, but for the few whose rank lies at the edge of the share in one of the two partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from modyn.records import Int64Array, TriggerSetInfo

_HELD_OUT = 4
"""Purpose of the seed: others are in `plan.py`."""


@dataclass(frozen=True, slots=True)
class Share:
    """One of the shares of a trigger set: `percent` of each partition, rounded down, drawn by `seed`; or, if not `held_out`, the rest. Of those
    that are held out, the first `above` percent belong to another share.

    Like the trigger set, a share is made of partitions of one size, of which the last may be shorter: it is planned by the same arithmetic.
    """

    trigger_set: TriggerSetInfo
    percent: int | Fraction
    held_out: bool
    seed: int = 0
    above: int | Fraction = 0

    @property
    def partition_size(self) -> int:
        """Samples of the share in a full partition; 0: there is none."""
        return self._of(self.trigger_set.partition_size)

    @property
    def num_keys(self) -> int:
        """Samples of the share.

        >>> ten = TriggerSetInfo("run", 0, 10, 4, "")
        >>> [Share(ten, 25, held_out).num_keys for held_out in (True, False)]
        [2, 8]
        """
        full, last = divmod(self.trigger_set.num_keys, self.trigger_set.partition_size)
        return full * self.partition_size + self._of(last)

    def rows(self, keys: Int64Array) -> Int64Array:
        """The positions of the share within a partition of these `keys`, in increasing order: int64 (n,)."""
        first, end = self._ranks(len(keys))
        return np.sort(np.argsort(_hashes(keys, self.seed), kind="stable")[first:end]).astype(np.int64, copy=False)

    def _of(self, length: int) -> int:
        """Samples of the share in a partition of so many."""
        first, end = self._ranks(length)
        return end - first

    def _ranks(self, length: int) -> tuple[int, int]:
        """From which rank up to which the share has the keys of a partition of so many."""
        last = length * self.percent // 100
        return (length * self.above // 100, last) if self.held_out else (last, length)


def _hashes(keys: Int64Array, seed: int) -> npt.NDArray[np.uint64]:
    """One hash a key, no two alike: the finalizer of SplitMix64 (Steele, Lea and Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    words: npt.NDArray[np.uint64] = keys.astype(np.uint64) ^ np.random.SeedSequence([seed, _HELD_OUT]).generate_state(
        1, np.uint64
    )
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
