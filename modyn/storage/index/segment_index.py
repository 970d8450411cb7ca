"""The sample index of a dataset, made of all its segments. The index finds samples by key and by interval of time.

An index is immutable, so readers need no lock. When a segment is added, a new index is made over the same open files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from modyn import _core
from modyn.errors import CorruptStateError
from modyn.records import Int64Array, Interval, LabelArray, SampleBatch
from modyn.storage.index.segment_file import Segment
from modyn.storage.index.tombstones import Tombstones
from modyn.storage.model.samples import UInt32Array

MERGED_ROWS = 1 << 18
"""Number of samples that a query over overlapping segments keeps in memory. The query keeps at least one sample of each segment."""


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The positions and labels of samples, in the requested order. Arrays have shape (n,).

    file_ids: uint32. offsets: int64 bytes. lengths: int64 bytes, or one int for all. labels: int64 or float64.
    """

    file_ids: UInt32Array
    offsets: Int64Array
    lengths: Int64Array | int
    labels: LabelArray


class SegmentIndex:
    """All segments of a dataset."""

    def __init__(
        self, segments: Sequence[Segment] = (), float_labels: bool = False, damaged: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Args: segments: in any order. float_labels: whether the dataset's labels are float64; otherwise int64. damaged: file name of each damaged
        segment → reason; every read of its samples raises CorruptStateError with this reason.
        Raises: CorruptStateError: two segments contain the same key, or the labels of a segment do not have the dataset's type.
        """
        self.segments = tuple(sorted(segments, key=lambda segment: segment.info.first_key))
        self._float_labels = float_labels
        self._first_keys = np.array([segment.info.first_key for segment in self.segments], np.int64)
        self._end_keys = np.array([segment.info.end_key for segment in self.segments], np.int64)
        if len(overlap := np.flatnonzero(self._first_keys[1:] < self._end_keys[:-1])):
            first, second = self.segments[overlap[0]], self.segments[overlap[0] + 1]
            raise CorruptStateError(
                f"segments {first.path} and {second.path} both hold key {second.info.first_key}; remove the newer one"
            )
        for segment in self.segments:
            if segment.float_labels != float_labels:
                raise CorruptStateError(
                    f"the labels of segment {segment.path} are not of the dataset's type; ingest the dataset again"
                )
        self._damaged = {
            segment.info.first_key: damaged[segment.path.name] for segment in segments if segment.path.name in damaged
        }
        self._columns = _core.SampleIndex(
            self._first_keys, tuple((s.file_ids, s.offsets, s.lengths, s.labels, s.timestamps) for s in self.segments)
        )

    @property
    def num_samples(self) -> int:
        """Number of samples, including deleted samples."""
        return int((self._end_keys - self._first_keys).sum())

    @cached_property
    def num_unlabelled(self) -> int:
        """Number of samples that arrived without a label, including deleted samples. The number is computed at the first use."""
        return sum(segment.num_unlabelled for segment in self.segments)

    @property
    def next_key(self) -> int:
        """Key after the last sample."""
        return self.segments[-1].info.end_key if self.segments else 0

    @property
    def min_timestamp(self) -> int | None:
        """The earliest timestamp in seconds since 1970; None while there is no segment."""
        return min((segment.info.min_timestamp for segment in self.segments), default=None)

    @property
    def max_timestamp(self) -> int | None:
        """The latest timestamp in seconds since 1970; None while there is no segment."""
        return max((segment.info.max_timestamp for segment in self.segments), default=None)

    @property
    def time_range(self) -> tuple[int, int] | None:
        """The earliest and the latest timestamp; None if there are no samples."""
        earliest, latest = self.min_timestamp, self.max_timestamp
        return None if earliest is None or latest is None else (earliest, latest)

    def contains(self, keys: Int64Array) -> npt.NDArray[np.bool_]:
        """Return for each key whether a sample with this key exists or was deleted: bool (n,). Args: keys: int64 (n,)."""
        return self._columns.contains(keys)

    def entries(self, keys: Int64Array) -> Entries | None:
        """Return the entries of `keys`, int64 (n,), in the given order, including duplicates and deleted samples; None if a key is unknown."""
        self._refuse_damaged_keys(keys)
        found = self._columns.entries(keys)
        return None if found is None else Entries(*found[:3], self._typed(found[3]))

    def samples_by_key(self, keys: Int64Array) -> SampleBatch | None:
        """Return labels and timestamps of `keys`, like `entries`."""
        self._refuse_damaged_keys(keys)
        found = self._columns.labels_and_timestamps(keys)
        return None if found is None else SampleBatch(keys, found[1], self._typed(found[0]))

    def _typed(self, labels: Int64Array) -> LabelArray:
        return labels.view(np.float64) if self._float_labels else labels

    def samples_from(self, first_key: int, batch_size: int, tombstones: Tombstones | None = None) -> Iterator[SampleBatch]:
        """Yield the samples with key >= first_key in order of key, at most batch_size at once.

        Args: tombstones: keys of deleted samples, which are left out; None: no sample is left out.
        """
        return _rebatched(_without_deleted(self._in_key_order(first_key, batch_size), tombstones), batch_size)

    def _in_key_order(self, first_key: int, batch_size: int) -> Iterator[SampleBatch]:
        # Iteration begins with the first segment that ends after `first_key`.
        for segment in self.segments[int(np.searchsorted(self._end_keys, first_key, "right")) :]:
            self._refuse_damaged(segment)
            begin = max(0, first_key - segment.info.first_key)
            for start in range(begin, segment.info.num_samples, batch_size):
                yield segment.samples(start, min(start + batch_size, segment.info.num_samples))

    def samples_in_interval(
        self,
        interval: Interval,
        batch_size: int,
        after: tuple[int, int] | None = None,
        tombstones: Tombstones | None = None,
        end_key: int | None = None,
        merged_rows: int = MERGED_ROWS,
    ) -> Iterator[SampleBatch]:
        """Yield the samples of the interval in the order (timestamp, key), at most batch_size at once. The memory depends on batch_size and
        merged_rows, not on the size of the dataset.

        Args: after: only samples after this (timestamp, key). tombstones: keys of deleted samples, which are left out; None: no sample is left out.
            end_key: only samples with smaller keys. merged_rows: see `MERGED_ROWS`.
        """
        segments = self._touched(interval, end_key)
        parts = [_Ranks(segment, *_ranks(segment, interval, after)) for segment in segments]
        merged = _merged([part for part in parts if part.next < part.end], merged_rows)
        return _rebatched(_without_deleted(_before(merged, end_key), tombstones), batch_size)

    def count_in_interval(self, interval: Interval, tombstones: Tombstones | None = None, end_key: int | None = None) -> int:
        """Return the number of samples of the interval that are not deleted. With `end_key`, count only samples with smaller keys."""
        count = 0
        for segment in self._touched(interval, end_key):
            # All samples of the interval are counted by their ranks. Then deleted samples, and samples with keys from `end_key` on, are subtracted.
            first, end = _ranks(segment, interval, None)
            count += end - first
            info = segment.info
            last_key = info.end_key if end_key is None else min(info.end_key, end_key)
            left_out = [] if tombstones is None else [tombstones.keys.between(info.first_key, last_key)]
            for keys in (*left_out, np.arange(last_key, info.end_key)):
                times = segment.timestamps.take(keys - info.first_key)
                count -= int(np.count_nonzero((times >= interval.start) & (times < interval.end)))
        return count

    def _touched(self, interval: Interval, end_key: int | None) -> list[Segment]:
        """Return the segments that may contain samples of the interval with keys below `end_key`."""
        before = self.segments if end_key is None else self.segments[: int(np.searchsorted(self._first_keys, end_key))]
        touched = [segment for segment in before if _touches(segment, interval)]
        for segment in touched:
            self._refuse_damaged(segment)
        return touched

    def _refuse_damaged_keys(self, keys: Int64Array) -> None:
        for segment in self.segments if self._damaged else ():
            if ((keys >= segment.info.first_key) & (keys < segment.info.end_key)).any():
                self._refuse_damaged(segment)

    def _refuse_damaged(self, segment: Segment) -> None:
        info = segment.info
        if (reason := self._damaged.get(info.first_key)) is not None:
            raise CorruptStateError(f"the samples with the keys {info.first_key} to {info.end_key - 1} are not read: {reason}")


def _touches(segment: Segment, interval: Interval) -> bool:
    return segment.info.max_timestamp >= interval.start and segment.info.min_timestamp < interval.end


def _ranks(segment: Segment, interval: Interval, after: tuple[int, int] | None) -> tuple[int, int]:
    """Return the ranks [first, end) of the segment's samples in the interval and after `after`."""
    info = segment.info
    first = segment.rank_after(interval.start, -1) if info.min_timestamp < interval.start else 0
    end = segment.rank_after(interval.end, -1) if info.max_timestamp >= interval.end else info.num_samples
    # If the condition is false, all samples of the segment come after `after`.
    if after is not None and (info.min_timestamp, info.first_key) <= after:
        first = max(first, segment.rank_after(*after))
    return first, max(first, end)


@dataclass(slots=True)
class _Ranks:
    """The ranks [next, end) of a segment's samples that must still be merged: at least one rank."""

    segment: Segment
    next: int
    end: int

    def last(self, rows: int) -> tuple[int, int]:
        """Return (timestamp, key) of the last of the next `rows` samples."""
        return self.segment.order_at(min(self.next + rows, self.end) - 1)

    def take(self, bound: tuple[int, int], rows: int) -> SampleBatch:
        """Remove and return the samples up to the (timestamp, key) `bound`. There are at most `rows` such samples."""
        first, self.next = self.next, self.segment.rank_after(*bound, self.next, min(self.next + rows, self.end))
        return self.segment.samples_by_rank(first, self.next)


def _merged(parts: Sequence[_Ranks], max_rows: int) -> Iterator[SampleBatch]:
    """Yield the samples of all parts in the order (timestamp, key), in batches of any size.

    A block contains the next rows of one segment. Each step yields all samples up to `bound`, the smallest last sample of all blocks. Segments whose
    first sample may precede `bound` get a block first, so no sample outside the blocks precedes `bound`. Each step uses up at least one block.
    """
    # The segment with the earliest sample is last in the list, because `pop` removes the last element.
    waiting = sorted(parts, key=lambda part: part.last(1), reverse=True)
    active: list[_Ranks] = []
    while active or waiting:
        active = active or [waiting.pop()]
        while True:
            rows = max(1, max_rows // len(active))
            bound = min(part.last(rows) for part in active)
            # Each round at most doubles the number of blocks: fewer new blocks would cause more rounds, more new blocks would make blocks smaller.
            count = len(active)
            while waiting and len(active) < 2 * count and waiting[-1].last(1) <= bound:
                active.append(waiting.pop())
            if len(active) == count:
                break
        yield _in_time_order([part.take(bound, rows) for part in active])
        active = [part for part in active if part.next < part.end]


def _in_time_order(parts: list[SampleBatch]) -> SampleBatch:
    parts = [part for part in parts if len(part)]
    # Samples of one segment are already in order. Samples of several segments must be sorted.
    if len(parts) == 1:
        return parts[0]
    together = SampleBatch.concatenate(parts)
    order = np.lexsort((together.keys, together.timestamps))
    return SampleBatch(together.keys[order], together.timestamps[order], together.labels[order])


def _without_deleted(batches: Iterable[SampleBatch], tombstones: Tombstones | None) -> Iterator[SampleBatch]:
    for batch in batches:
        if tombstones is None or not (deleted := tombstones.keys.contains(batch.keys)).any():
            yield batch
        else:
            kept = ~deleted
            yield SampleBatch(batch.keys[kept], batch.timestamps[kept], batch.labels[kept])


def _before(batches: Iterable[SampleBatch], end_key: int | None) -> Iterator[SampleBatch]:
    for batch in batches:
        if end_key is None or (kept := batch.keys < end_key).all():
            yield batch
        else:
            yield SampleBatch(batch.keys[kept], batch.timestamps[kept], batch.labels[kept])


def _rebatched(batches: Iterable[SampleBatch], batch_size: int) -> Iterator[SampleBatch]:
    """Yield the same samples in batches of exactly `batch_size` samples, except for the last batch."""
    held: list[SampleBatch] = []
    count = 0
    for batch in batches:
        start = 0
        while count + len(batch) - start >= batch_size:
            stop = start + batch_size - count
            yield SampleBatch.concatenate([*held, batch.slice(start, stop)])
            held, count, start = [], 0, stop
        if start < len(batch):
            held.append(batch.slice(start, len(batch)))
            count += len(batch) - start
    if count:
        yield SampleBatch.concatenate(held)
