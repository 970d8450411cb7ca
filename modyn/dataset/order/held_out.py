"""Samples of a trigger set that are held out: a fixed share of each partition, the same at every attempt and for any number of workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modyn.records import Int64Array, TriggerSetInfo

_HELD_OUT = 4
"""Purpose of the generator: others are in `plan.py`."""


@dataclass(frozen=True, slots=True)
class Share:
    """One of the two shares of a trigger set: `percent` of each partition, rounded down, drawn uniformly; or, if not `held_out`, the rest.

    Like the trigger set, a share is made of partitions of one size, of which the last may be shorter: it is planned by the same arithmetic.
    """

    trigger_set: TriggerSetInfo
    percent: int
    held_out: bool

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

    def rows(self, partition: int) -> Int64Array:
        """The positions of the share within a partition, in increasing order: int64 (n,)."""
        whole = self.trigger_set
        length = min(whole.partition_size, whole.num_keys - partition * whole.partition_size)
        drawn = np.random.default_rng([whole.trigger_id, partition, _HELD_OUT]).permutation(length)
        num_held_out = length * self.percent // 100
        return np.sort(drawn[:num_held_out] if self.held_out else drawn[num_held_out:]).astype(np.int64)

    def _of(self, length: int) -> int:
        """Samples of the share in a partition of so many."""
        num_held_out = length * self.percent // 100
        return num_held_out if self.held_out else length - num_held_out
