"""Which keys of a dataset are deleted: one bit a key, in chunks of 65,536 keys, compressed on disk.

Chunks exist only where something is deleted, so memory is at most one bit for each key of the dataset. A reader sees the state before
or after an `add`, never between.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from modyn.records import Int64Array

BoolArray = npt.NDArray[np.bool_]


class Deletions:
    """Deleted keys of one dataset, in memory and in `path`. One writer at a time; any number of reading threads."""

    @classmethod
    def open(cls, path: Path) -> Deletions:
        """Read `path`; a missing file means that nothing is deleted. Raises CorruptStateError."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """Number of deleted keys."""
        raise NotImplementedError

    def add(self, keys: Int64Array) -> int:
        """Delete `keys` (any order, duplicates allowed, all >= 0); return how many were not deleted before. Durable on return."""
        raise NotImplementedError

    def contains(self, keys: Int64Array) -> BoolArray:
        """For each key, whether it is deleted: bool (n,)."""
        raise NotImplementedError

    def count_between(self, first: int, end: int) -> int:
        """Number of deleted keys in [first, end)."""
        raise NotImplementedError
