"""What one job knows of the values that are shared: which stand where, of its own samples."""

from __future__ import annotations

from typing import Final

import numpy as np

from modyn.cache.sharing.state import GONE, UInt8Array, ValueEntries
from modyn.records import BoolArray, Int64Array

SLOTS_PER_VALUE: Final = 16
"""Slots that are looked at, at most, for each value that is looked for: what bounds the time of a batch."""
_NONE: Final = -1


class KnownValues:
    """Values below the number `end`, by number and by rank. Ranks are 0 … n − 1 in the ascending keys of the job.

    It may take a value for being there that is gone: the state says so when it is asked.

    Args: keys: of the job. num_slots: of the ring. first: no value below it is there.
    """

    def __init__(self, keys: Int64Array, num_slots: int, first: int) -> None:
        self._keys, self._num_slots = keys, num_slots
        self._is_dense = int(keys[-1]) - int(keys[0]) == len(keys) - 1
        """Whether ranks need not be searched: among many keys that takes longer than all else."""
        self._rank_in = np.full(num_slots, _NONE, np.int32)
        """(num_slots,), the rank of the sample whose value stands there; below 0: none, or of no sample of the job."""
        self._is_barred = np.zeros(num_slots, np.bool_)
        """(num_slots,), values that the job has been served, or may have been."""
        self._number_of = np.full(len(keys), _NONE, np.int64)
        """(n,), the last known number of a value of each sample."""
        self.first = self.end = self._hand = self._new = first

    def ranks_of(self, keys: Int64Array) -> Int64Array:
        """The rank of each key; below 0: it is none of the job's."""
        if self._is_dense:
            ranks = keys - self._keys[0]
            return np.where((ranks >= 0) & (ranks < len(self._keys)), ranks, _NONE)
        ranks = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[ranks] == keys, ranks, _NONE)

    def add(self, start: int, keys: Int64Array, reads: UInt8Array | None) -> None:
        """Learn of values from `start` on, which is at most `end`.

        Args: reads: (n,), by rank: where it is above 0, a batch may have read the new value instead of an older one, and it counts as served. None:
        all do.
        """
        new = np.arange(max(start, self.end), start + len(keys))
        ranks, slots = self.ranks_of(keys[len(keys) - len(new) :]), new % self._num_slots
        self._rank_in[slots] = ranks
        self._is_barred[slots] = True if reads is None else reads[ranks] > 0
        self._number_of[ranks[ranks >= 0]] = new[ranks >= 0]
        self.end = max(self.end, start + len(keys))

    def compare(self, start: int, entries: ValueEntries) -> None:
        """Forget those values, known already, that are gone."""
        self.forget(start + np.flatnonzero(entries.stages == GONE))

    def forget(self, numbers: Int64Array) -> None:
        """Note that values are gone, none twice."""
        numbers = numbers[(numbers >= self.first) & (numbers >= self.end - self._num_slots) & (numbers < self.end)]
        slots = numbers % self._num_slots
        ranks = self._rank_in[slots]
        mine = ranks >= 0
        is_last = self._number_of[ranks[mine]] == numbers[mine]
        self._number_of[ranks[mine][is_last]] = _NONE
        self._rank_in[slots] = _NONE

    def bar(self, numbers: Int64Array) -> None:
        """Note that the job has been served these values, or may have been."""
        self._is_barred[numbers % self._num_slots] = True

    def number_of(self, ranks: Int64Array) -> Int64Array:
        """The number of the value of each sample; −1: none is known."""
        numbers = self._number_of[ranks]
        return np.where(numbers >= self.first, numbers, _NONE)

    def rank_of(self, numbers: Int64Array) -> Int64Array:
        """The rank of the sample of each value; below 0: it is none of the job's."""
        return self._rank_in[numbers % self._num_slots].astype(np.int64)

    def usable(self, numbers: Int64Array, seen: BoolArray, unserved: bool) -> BoolArray:
        """Which of some values the job needs, as far as it knows. Args: seen, unserved: as `find`."""
        slots = numbers % self._num_slots
        ranks = self._rank_in[slots]
        usable: BoolArray = (numbers >= self.first) & (ranks >= 0) & ~seen[ranks]
        return usable & ~self._is_barred[slots] if unserved else usable

    def find(self, seen: BoolArray, count: int, unserved: bool) -> Int64Array:
        """Look for values that the job needs: new ones first, then on through the others, round and round. Returns their numbers, `count` at most.

        Args: seen: (n,), samples that the epoch serves no more. unserved: only values that the job was never served.
        """
        most = SLOTS_PER_VALUE * count
        new = self._scan(max(self._new, self.first), self.end, count, most, seen, unserved)
        found, self._new = [new[0]], new[1]
        for _ in range(2):
            start = self._hand if self.first <= self._hand < self._new else self.first
            old, self._hand = self._scan(start, self._new, count - sum(map(len, found)), most, seen, unserved)
            found.append(old)
            most -= self._hand - start
        numbers, at = np.unique(np.concatenate(found), return_index=True)
        return numbers[np.argsort(at)]

    def _scan(self, start: int, stop: int, count: int, most: int, seen: BoolArray, unserved: bool) -> tuple[Int64Array, int]:
        """Values of a range that the job needs, `count` at most, and where to look on; no more than `most` are looked at."""
        found, num_found, width = [np.empty(0, np.int64)], 0, 2 * count
        stop = min(stop, start + max(0, most))
        while num_found < count and start < stop:
            numbers = np.arange(start, min(stop, start + width))
            start, width = start + len(numbers), 2 * width
            numbers = numbers[self.usable(numbers, seen, unserved)]
            if len(numbers) > count - num_found:
                numbers = numbers[: count - num_found]
                start = int(numbers[-1]) + 1
            found.append(numbers)
            num_found += len(numbers)
        return np.concatenate(found), start
