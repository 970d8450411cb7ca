"""Holds out samples of a trigger set: the same percentage of each partition, namely the keys with the smallest hashes of seed and key.

The share is the same in every attempt and for any number of workers, and its size is known before a key is read. A key that is held out in one
trigger set is also held out in other trigger sets, except for a few keys at the boundary of the share.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from modyn.records import Int64Array, TriggerSetInfo

_HELD_OUT = 4
"""Purpose of the seed. Other purposes are in `plan.py`."""


@dataclass(frozen=True, slots=True)
class Share:
    """One share of a trigger set. If `held_out`, the share is `percent` of each partition, rounded down and drawn with `seed`, without the first
    `above` percent, which belong to another share. Otherwise, the share is the rest of each partition.

    Like the trigger set, a share has partitions of one size, and the last may be shorter. Therefore a `Plan` can also plan the batches of a share.
    """

    trigger_set: TriggerSetInfo
    percent: int | Fraction
    held_out: bool
    seed: int = 0
    above: int | Fraction = 0

    @property
    def partition_size(self) -> int:
        """Number of samples of the share in a full partition; may be 0."""
        return self._of(self.trigger_set.partition_size)

    @property
    def num_keys(self) -> int:
        """Number of samples of the share.

        >>> ten = TriggerSetInfo("run", 0, 10, 4, "")
        >>> [Share(ten, 25, held_out).num_keys for held_out in (True, False)]
        [2, 8]
        """
        full, last = divmod(self.trigger_set.num_keys, self.trigger_set.partition_size)
        return full * self.partition_size + self._of(last)

    def rows(self, keys: Int64Array) -> Int64Array:
        """Return the positions of the share within the partition with these `keys`, in increasing order: int64 (n,)."""
        # The keys with the smallest hashes: the same keys in any order of the partition.
        first, end = self._ranks(len(keys))
        return np.sort(np.argsort(_hashes(keys, self.seed), kind="stable")[first:end]).astype(np.int64, copy=False)

    def _of(self, length: int) -> int:
        """Return the number of samples of the share in a partition of this size."""
        first, end = self._ranks(length)
        return end - first

    def _ranks(self, length: int) -> tuple[int, int]:
        """Return the first rank of the share in a partition of this size, and the rank after its last."""
        last = length * self.percent // 100
        return (length * self.above // 100, last) if self.held_out else (last, length)


def _hashes(keys: Int64Array, seed: int) -> npt.NDArray[np.uint64]:
    """Hash each key; different keys have different hashes. The hash is the finalizer of SplitMix64 (Steele, Lea and Flood: Fast Splittable
    Pseudorandom Number Generators, 2014).
    """
    words: npt.NDArray[np.uint64] = keys.astype(np.uint64) ^ np.random.SeedSequence([seed, _HELD_OUT]).generate_state(
        1, np.uint64
    )
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
