"""The samples of a stream that exist: deleted ones have no number here, so that all that a policy counts and draws is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from modyn._core import KeySet
from modyn.records import Int64Array, SampleBatch
from modyn.selector.window.reader import BLOCK, SampleReader

MOST_RANGES = 65_536
"""Ranges of one trigger set: 1 MiB."""
NO_KEYS = KeySet(np.zeros(0, np.int64))


class LiveReader:
    """Samples [start, end) of a stream without those whose keys are deleted, numbered from 0 in stream order.

    All keys are read once when it is made. Memory: 16 bytes for each BLOCK samples and each of `marks`, and a block.
    """

    def __init__(self, reader: SampleReader, start: int, end: int, deleted: KeySet, marks: Sequence[int] = ()) -> None:
        """marks: positions, in ascending order, whose numbers will be asked for with `number_of`."""
        self._reader, self._end, self._deleted = reader, end, deleted
        self._positions = np.unique(np.array([*range(start, end, BLOCK), *marks, end], np.int64))
        self._numbers = np.zeros_like(self._positions)
        """How many samples exist before each of `_positions`."""
        num_before = 0
        for first in range(start, end, BLOCK):
            last = min(first + BLOCK, end)
            exists = np.concatenate([[0], np.cumsum(~deleted.contains(reader.read_keys(first, last)))])
            inside = (self._positions >= first) & (self._positions <= last)
            self._numbers[inside] = num_before + exists[self._positions[inside] - first]
            num_before += int(exists[-1])

    def __len__(self) -> int:
        return int(self._numbers[-1])

    def number_of(self, mark: int) -> int:
        """How many samples exist before the position `mark`, one of `marks`."""
        return int(self._numbers[np.searchsorted(self._positions, mark)])

    def read(self, start: int, end: int) -> SampleBatch:
        """Return the samples with numbers [start, end)."""
        batches = []
        for first, _, chosen in self._blocks(start, end):
            held = self._reader.read(first, first + int(chosen[-1]) + 1)
            batches.append(SampleBatch(held.keys[chosen], held.timestamps[chosen], held.labels[chosen]))
        return SampleBatch.concatenate(batches) if batches else self._reader.read(self._end, self._end)

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of the samples with numbers [start, end): int64 (end - start,)."""
        return np.concatenate([np.zeros(0, np.int64), *(keys[chosen] for _, keys, chosen in self._blocks(start, end))])

    def ranges(self, start: int, end: int) -> list[tuple[int, int]] | None:
        """Return the samples with numbers [start, end) as ranges of positions in the stream; None if these are more than MOST_RANGES, or
        more than half as many as the samples."""
        found: list[tuple[int, int]] = []
        for first, _, chosen in self._blocks(start, end):
            breaks = np.flatnonzero(np.diff(chosen) != 1) + 1
            for run in np.split(chosen + first, breaks):
                begin, stop = int(run[0]), int(run[-1]) + 1
                if found and found[-1][1] == begin:
                    begin = found.pop()[0]
                found.append((begin, stop))
            if len(found) > min(MOST_RANGES, (end - start) // 2):
                return None
        return found

    def _blocks(self, start: int, end: int) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Yield, for blocks that hold samples with numbers [start, end): first position, all keys, and which of them are these samples."""
        nearest = int(np.searchsorted(self._numbers, start, "right")) - 1
        position, number = int(self._positions[nearest]), int(self._numbers[nearest])
        while number < end and position < self._end:
            keys = self._reader.read_keys(position, min(position + BLOCK, self._end))
            existing = np.flatnonzero(~self._deleted.contains(keys))
            if len(chosen := existing[max(start - number, 0) : end - number]):
                yield position, keys, chosen
            position, number = position + len(keys), number + len(existing)
