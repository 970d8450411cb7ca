"""A hash table from 64-bit hashes to numbers, with vectorised lookups."""

from __future__ import annotations

from typing import Final

import numpy as np

from modyn.preprocessing.columns import Int64Array
from modyn.preprocessing.statistics.string_hash import UInt64Array

_FIRST_SLOTS: Final = 64
_SLOTS_PER_KEY: Final = 3
"""Smallest number of slots for each hash, so that most lookups end at the first slot."""


class HashIndex:
    """A table from hashes to numbers from 1, with open addressing and linear probing. Each step probes for all hashes that are not yet found."""

    def __init__(self) -> None:
        self._size = 0
        self._keys: UInt64Array = np.zeros(_FIRST_SLOTS, np.uint64)
        self._numbers: Int64Array = np.zeros(_FIRST_SLOTS, np.int64)
        """Number in each slot; 0 means that the slot is free."""

    def find(self, keys: UInt64Array) -> Int64Array:
        """Return the numbers of hashes; 0 for unknown hashes. Args: keys: uint64 (m,). Returns: int64 (m,)."""
        slots = (keys & self._mask).astype(np.int64)
        found = self._numbers[slots]
        other = (self._keys[slots] != keys) & (found != 0)
        left = np.flatnonzero(other)
        found[left] = 0
        while len(left):
            slots_left = slots[left] = (slots[left] + 1) & int(self._mask)
            numbers = self._numbers[slots_left]
            same = self._keys[slots_left] == keys[left]
            found[left[same]] = numbers[same]
            left = left[(numbers != 0) & ~same]
        return found

    def add(self, keys: UInt64Array, numbers: Int64Array) -> None:
        """Add unknown hashes. Args: keys: uint64 (m,). numbers: int64 (m,), at least 1."""
        self._size += len(keys)
        if self._size * _SLOTS_PER_KEY > len(self._keys):
            taken = self._numbers != 0
            keys, numbers = np.concatenate([self._keys[taken], keys]), np.concatenate([self._numbers[taken], numbers])
            num_slots = 1 << int(self._size * _SLOTS_PER_KEY * 2 - 1).bit_length()
            self._keys, self._numbers = np.zeros(num_slots, np.uint64), np.zeros(num_slots, np.int64)
        slots = (keys & self._mask).astype(np.int64)
        left = np.arange(len(keys))
        while len(left):
            free = left[self._numbers[slots[left]] == 0]
            _, first = np.unique(
                slots[free], return_index=True
            )  # If several hashes need the same slot, the first hash gets the slot.
            placed = free[first]
            self._keys[slots[placed]], self._numbers[slots[placed]] = keys[placed], numbers[placed]
            waiting = np.ones(len(keys), bool)
            waiting[placed] = False
            left = left[waiting[left]]
            slots[left] = (slots[left] + 1) & int(self._mask)

    @property
    def _mask(self) -> np.uint64:
        return np.uint64(len(self._keys) - 1)
