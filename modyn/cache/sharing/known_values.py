"""Knowledge of one job about shared values: the slots of the values of its own samples."""

from __future__ import annotations

from typing import Final

import numpy as np

from modyn.cache.sharing.state import GONE, UInt8Array, ValueEntries
from modyn.records import BoolArray, Int64Array

SLOTS_PER_VALUE: Final = 16
"""Largest number of slots that a search reads for each wanted value. This number bounds the time of a batch."""
_NONE: Final = -1


class KnownValues:
    """The values that a job knows, with numbers below `end`. A value is found by its number, or by the rank of its sample: the position of the
    sample, 0 … n − 1, in the ascending keys of the job. The knowledge may be stale; the answers of the state then show that values are gone.

    Args: keys: keys of the job's samples, ascending. num_slots: number of slots of the ring. first: no value with a smaller number exists.
    """

    def __init__(self, keys: Int64Array, num_slots: int, first: int) -> None:
        self._keys, self._num_slots = keys, num_slots
        self._is_dense = int(keys[-1]) - int(keys[0]) == len(keys) - 1
        """Whether keys are consecutive, so that ranks need no search. A search among many keys takes longer than all other work."""
        self._rank_in = np.full(num_slots, _NONE, np.int32)
        """(num_slots,), the rank of the sample whose value is in the slot; negative: no value, or no sample of the job."""
        self._is_barred = np.zeros(num_slots, np.bool_)
        """(num_slots,), whether the job has used the value, or may have used it."""
        self._number_of = np.full(len(keys), _NONE, np.int64)
        """(n,), the last known number of a value of each sample."""
        # `_new`: number of the first value that `find` has not examined yet. `_hand`: number at which its cycle through older values continues.
        self.first = self.end = self._hand = self._new = first

    def ranks_of(self, keys: Int64Array) -> Int64Array:
        """Return the rank of each key; negative: the key does not belong to the job."""
        if self._is_dense:
            ranks = keys - self._keys[0]
            return np.where((ranks >= 0) & (ranks < len(self._keys)), ranks, _NONE)
        ranks = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[ranks] == keys, ranks, _NONE)

    def add(self, start: int, keys: Int64Array, reads: UInt8Array | None) -> None:
        """Add values whose numbers begin at `start`, which is at most `end`.

        Args: reads: (n,), by rank. If an entry is positive, a batch of the job may have read the new value instead of an older one, so the value
        counts as used. None: all values count as used.
        """
        new = np.arange(max(start, self.end), start + len(keys))
        ranks, slots = self.ranks_of(keys[len(keys) - len(new) :]), new % self._num_slots
        self._rank_in[slots] = ranks
        self._is_barred[slots] = True if reads is None else reads[ranks] > 0
        self._number_of[ranks[ranks >= 0]] = new[ranks >= 0]
        self.end = max(self.end, start + len(keys))

    def compare(self, start: int, entries: ValueEntries) -> None:
        """Remove known values that are gone."""
        self.forget(start + np.flatnonzero(entries.stages == GONE))

    def forget(self, numbers: Int64Array) -> None:
        """Remove values that are gone. numbers: unique."""
        numbers = numbers[(numbers >= self.first) & (numbers >= self.end - self._num_slots) & (numbers < self.end)]
        slots = numbers % self._num_slots
        ranks = self._rank_in[slots]
        mine = ranks >= 0
        is_last = self._number_of[ranks[mine]] == numbers[mine]
        self._number_of[ranks[mine][is_last]] = _NONE
        self._rank_in[slots] = _NONE

    def bar(self, numbers: Int64Array) -> None:
        """Record that the job has used these values, or may have used them."""
        self._is_barred[numbers % self._num_slots] = True

    def number_of(self, ranks: Int64Array) -> Int64Array:
        """Return the number of each sample's value; −1: no value is known."""
        numbers = self._number_of[ranks]
        return np.where(numbers >= self.first, numbers, _NONE)

    def rank_of(self, numbers: Int64Array) -> Int64Array:
        """Return the rank of the sample of each value; negative: the sample does not belong to the job."""
        return self._rank_in[numbers % self._num_slots].astype(np.int64)

    def usable(self, numbers: Int64Array, seen: BoolArray, unserved: bool) -> BoolArray:
        """Select the known values that the job needs. Args: seen, unserved: as for `find`."""
        slots = numbers % self._num_slots
        ranks = self._rank_in[slots]
        usable: BoolArray = (numbers >= self.first) & (ranks >= 0) & ~seen[ranks]
        return usable & ~self._is_barred[slots] if unserved else usable

    def find(self, seen: BoolArray, count: int, unserved: bool) -> Int64Array:
        """Find values that the job needs. New values come first, then older values, in a cycle that continues in the next call. Returns at most
        `count` numbers.

        Args: seen: (n,), samples that the epoch has served. unserved: whether to return only values that the job has never used.
        """
        most = SLOTS_PER_VALUE * count
        new = self._scan(max(self._new, self.first), self.end, count, most, seen, unserved)
        found, self._new = [new[0]], new[1]
        # If the first pass reaches the newest value, the second pass continues with the oldest.
        for _ in range(2):
            start = self._hand if self.first <= self._hand < self._new else self.first
            old, self._hand = self._scan(start, self._new, count - sum(map(len, found)), most, seen, unserved)
            found.append(old)
            most -= self._hand - start
        numbers, at = np.unique(np.concatenate(found), return_index=True)
        return numbers[np.argsort(at)]

    def _scan(self, start: int, stop: int, count: int, most: int, seen: BoolArray, unserved: bool) -> tuple[Int64Array, int]:
        """Return at most `count` needed values of a range, and the number at which the search continues. At most `most` values are examined."""
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
