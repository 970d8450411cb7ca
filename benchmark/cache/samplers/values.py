"""The state that jobs share: which samples are cached, how often each cached value was served, and to which jobs.

Values stand in slots, which are used in turn. A job looks through the slots round and round, and so meets values in the order in which they came,
which no key decides. A sample takes 5 bytes, a slot 25 (8 of them a bit for each of 64 jobs).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from modyn.errors import ConflictError, InvalidArgumentError
from modyn.records import BoolArray, Int32Array, Int64Array

MOST_JOBS: Final = 64
"""Largest number of jobs of one cache: bits of a mask."""
SLOTS_PER_SAMPLE: Final = 16
"""Largest number of slots to examine for each wanted sample. This limits the time of a batch."""
_NONE: Final = -1


class CachedValues:
    """The cached samples, with at most one value for each sample.

    Args: num_samples: of the dataset; samples are 0 … num_samples − 1. capacity: cached samples at most.
    Raises: InvalidArgumentError: a number is negative.
    """

    def __init__(self, num_samples: int, capacity: int) -> None:
        if num_samples < 0 or capacity < 0:
            raise InvalidArgumentError(f"there is no cache for {capacity} of {num_samples} samples: both are at least 0")
        self.capacity = min(capacity, num_samples)
        self.sharers = np.zeros(num_samples, np.uint8)
        """(num_samples,), how many jobs train on each."""
        self.slot_of = np.full(num_samples, _NONE, np.int32)
        """(num_samples,), the slot of each cached sample; below 0: it is not cached."""
        self.sample_in = np.full(self.capacity, _NONE, np.int32)
        """(capacity,), the sample in each slot; below 0: none."""
        self.servings = np.zeros(self.capacity, np.uint8)
        """(capacity,), how often the value in each slot was served."""
        self.number_in = np.zeros(self.capacity, np.int64)
        """(capacity,), the number of the value in each slot: values are numbered as they are admitted, from 1 on."""
        self.num_admitted = 0
        self.num_free = self.capacity
        self._served_to = np.zeros(self.capacity, np.uint64)
        self._free = np.arange(self.capacity, dtype=np.int32)
        """A ring: the free slots stand from `_next` on, that which is used next first."""
        self._next = 0
        self._places = 0
        self._oldest = 0
        """Slot that is emptied first if space is needed."""

    def __len__(self) -> int:
        return self.capacity - self.num_free

    @property
    def samples(self) -> Int64Array:
        """The cached samples, (n,), ascending."""
        return np.flatnonzero(self.slot_of >= 0)

    def join(self, trigger_set: Int64Array) -> int:
        """Assign a place to a job. Raises ConflictError: all places are used."""
        place = next((place for place in range(MOST_JOBS) if not self._places >> place & 1), None)
        if place is None:
            raise ConflictError(f"{MOST_JOBS} jobs share this cache, and no more can: let one leave, or use another cache")
        self._places |= 1 << place
        self.sharers[trigger_set] += 1
        return place

    def leave(self, place: int, trigger_set: Int64Array) -> None:
        """Free the place of a job. Values that were served to the job no longer count as served to it."""
        self.servings -= self.was_served(place, np.arange(self.capacity)).astype(np.uint8)
        self._places &= ~(1 << place)
        self._served_to &= ~np.uint64(1 << place)
        self.sharers[trigger_set] -= 1

    def was_served(self, place: int, slots: npt.NDArray[np.integer[Any]]) -> BoolArray:
        """Return whether the value in each of these slots was served to the job at `place`, in any of its epochs."""
        served: BoolArray = self._served_to[slots] & np.uint64(1 << place) != 0
        return served

    def serve(self, place: int, slots: Int32Array) -> None:
        """Record that the values in these slots are served to the job at `place`. The slots must be distinct."""
        self.servings[slots] += 1
        self._served_to[slots] |= np.uint64(1 << place)

    def find(self, place: int, seen: BoolArray, hand: int, count: int, unserved: bool) -> tuple[Int64Array, int]:
        """Look through the slots from `hand` on for samples that a job needs, SLOTS_PER_SAMPLE slots for each at most.

        Args: seen: (num_samples,), those that the job at `place` needs no more. unserved: only values that it was never served.
        Returns: `count` samples at most, in the order of the slots; the slot after the last value that was looked at.
        """
        most = min(self.capacity, SLOTS_PER_SAMPLE * count)
        found, num_found, looked, end = [np.empty(0, np.int64)], 0, 0, hand
        while num_found < count and looked < most:
            width = min(max(2 * count, looked), most - looked)
            slots = np.arange(hand + looked, hand + looked + width) % self.capacity
            slots = slots[self.sample_in[slots] >= 0]
            samples = self.sample_in[slots]
            usable = ~seen[samples]
            if unserved:
                usable &= ~self.was_served(place, slots)
            at = np.flatnonzero(usable)[: count - num_found]
            found.append(samples[at].astype(np.int64))
            num_found, looked = num_found + len(at), looked + width
            if len(slots):
                end = int(slots[at[-1] if num_found == count else -1] + 1) % self.capacity
        return np.concatenate(found), end

    def oldest(self, count: int) -> Int64Array:
        """The `count` cached samples, or fewer, whose slots were filled longest ago, but for slots that were emptied and filled out of turn."""
        slots = np.arange(self._oldest, self._oldest + min(self.capacity, SLOTS_PER_SAMPLE * count)) % max(1, self.capacity)
        return self.sample_in[slots[self.sample_in[slots] >= 0][:count]].astype(np.int64)

    def served_out(self, expected: npt.NDArray[np.uint8]) -> Int64Array:
        """The cached samples, (n,), that were served as often as expected. Args: expected: (num_samples,)."""
        samples = self.samples
        return samples[self.servings[self.slot_of[samples]] >= expected[samples]]

    def evict(self, samples: Int64Array) -> None:
        """Empty the slots of distinct cached samples."""
        slots = self.slot_of[samples]
        self._free[np.arange(self._next + self.num_free, self._next + self.num_free + len(slots)) % max(1, self.capacity)] = slots
        self.slot_of[samples] = self.sample_in[slots] = _NONE
        self.num_free += len(slots)
        if len(slots) and self.sample_in[self._oldest] < 0:
            next_slots = np.arange(self._oldest, self._oldest + SLOTS_PER_SAMPLE * len(slots)) % self.capacity
            full = self.sample_in[next_slots] >= 0
            self._oldest = int(next_slots[np.argmax(full) if full.any() else -1])

    def admit(self, samples: Int64Array) -> Int32Array:
        """Store new values of distinct uncached samples in free slots. There must be enough free slots. Returns the slots."""
        slots = self._free[np.arange(self._next, self._next + len(samples)) % max(1, self.capacity)]
        self._next = (self._next + len(samples)) % max(1, self.capacity)
        self.num_free -= len(samples)
        self.slot_of[samples], self.sample_in[slots] = slots, samples
        self.servings[slots] = self._served_to[slots] = 0
        self.number_in[slots] = np.arange(self.num_admitted + 1, self.num_admitted + 1 + len(slots))
        self.num_admitted += len(slots)
        return slots
