"""One segment of the sample index: an immutable file of columns (see `modyn.columnar`), with one entry for each sample, read through a memory map.

A column is stored in one of three ways: as one value if all entries are equal; as a few progressions with a constant step each, such as the offsets
of records of one size; otherwise with the narrowest sufficient integer type.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modyn import _core
from modyn.columnar import ColumnFile, FileKind, write_columns
from modyn.errors import CorruptStateError, InvalidArgumentError, NotFoundError
from modyn.records import Int64Array, LabelArray, SampleBatch, has_label
from modyn.storage.model.samples import IndexedFiles, IndexedSamples

UInt32Array = npt.NDArray[np.uint32]

SEGMENT_ROWS = 1 << 20
"""Largest number of entries that a segment should have. This number bounds the memory that is needed to write a segment (about 100 bytes for each
entry)."""

_KIND = FileKind(
    b"MODYNSEG",
    3,
    "segment",
    "delete the dataset and ingest it again, or restore the folder of the storage service from a backup",
)
_NARROW = tuple(np.dtype(name) for name in ("i1", "i2", "i4", "i8"))
_ROWS_A_RUN = 128
"""Smallest mean number of rows of a run. With longer runs, finding the run of a row is faster than reading a plain column from memory."""
_RUN_BYTES = 24
"""Number of bytes of a stored run."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentColumns:
    """Entries in order of key: arrays of shape (n,).

    file_ids: uint32. offsets, lengths: int64 bytes. labels: int64 or float64. timestamps: int64 seconds.
    """

    file_ids: UInt32Array
    offsets: Int64Array
    lengths: Int64Array
    labels: LabelArray
    timestamps: Int64Array

    def __post_init__(self) -> None:
        if len({len(column) for column in self._columns()}) != 1:
            raise ValueError(f"columns differ in length: {[len(column) for column in self._columns()]}")

    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        return self.file_ids, self.offsets, self.lengths, self.labels, self.timestamps

    def __len__(self) -> int:
        return len(self.file_ids)

    def slice(self, start: int, stop: int) -> SegmentColumns:
        """Return entries [start, stop), as views."""
        return SegmentColumns(*(column[start:stop] for column in self._columns()))

    @staticmethod
    def concatenate(parts: Sequence[SegmentColumns]) -> SegmentColumns:
        """Return the entries of all parts (at least one), in order."""
        return SegmentColumns(*map(np.concatenate, zip(*(part._columns() for part in parts), strict=True)))


class SegmentBuilder:
    """Collects samples from formats until there are enough for a segment."""

    def __init__(self, rows: int = SEGMENT_ROWS) -> None:
        """Args: rows: largest number of samples of a segment."""
        self._rows = rows
        self._parts: list[SegmentColumns] = []
        self._count = 0

    def add(self, file_id: int, samples: IndexedSamples) -> None:
        """Append samples of one file. `SegmentWriter` has checked the labels.

        Args: samples: lengths and timestamps (n,), or one int for all.
        """
        n = len(samples)
        self._append(
            SegmentColumns(
                np.broadcast_to(np.uint32(file_id), n),
                samples.offsets,
                np.broadcast_to(np.asarray(samples.lengths, np.int64), n),
                samples.labels,
                np.broadcast_to(np.asarray(samples.timestamps, np.int64), n),
            )
        )

    def add_files(self, file_ids: UInt32Array, files: IndexedFiles) -> None:
        """Append files of one sample each, without the files that have problems.

        Args: file_ids: uint32, one id for each of `files.good()`.
        """
        good = files.good()
        self._append(
            SegmentColumns(
                file_ids, np.zeros(len(good), np.int64), files.lengths[good], files.labels[good], files.timestamps[good]
            )
        )

    def _append(self, part: SegmentColumns) -> None:
        if len(part):
            self._parts.append(part)
            self._count += len(part)

    def __len__(self) -> int:
        return self._count

    def full(self) -> bool:
        """Whether there are enough samples for a whole segment."""
        return self._count >= self._rows

    def take(self) -> SegmentColumns:
        """Remove and return the entries of a whole segment, or all entries if there are fewer. At least one entry must exist."""
        columns = SegmentColumns.concatenate(self._parts)
        rows = min(self._rows, self._count)
        self._count -= rows
        self._parts = [columns.slice(rows, len(columns))] if self._count else []
        return columns.slice(0, rows)


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """The catalogue's record of a segment. Keys are [first_key, first_key + num_samples)."""

    first_key: int
    num_samples: int
    min_timestamp: int
    max_timestamp: int
    num_bytes: int
    checksum: str
    """SHA-256 of the header, which contains the checksums of the columns."""

    @property
    def end_key(self) -> int:
        """Key after the last sample."""
        return self.first_key + self.num_samples


def write_segment(path: Path, first_key: int, columns: SegmentColumns) -> SegmentInfo:
    """Write a segment of at least one entry. When the function returns, `path` is complete and durable.

    Args: first_key: key of the first entry. The next entries have the next keys.
    Raises: UnavailableError: the disk cannot be written to.
    """
    timestamps = columns.timestamps
    data: dict[str, npt.NDArray[Any]] = {
        "file_ids": columns.file_ids.astype(np.int64),
        "offsets": columns.offsets,
        "lengths": columns.lengths,
        "labels": columns.labels,
        "timestamps": timestamps,
    }
    if np.any(timestamps[1:] < timestamps[:-1]):
        # Keys ascend with the position, so a stable sort by time is the order (timestamp, key).
        data["time_order"] = np.argsort(timestamps, kind="stable")
    encoded = {name: _encoded(values) for name, values in data.items()}
    first, last = int(timestamps.min()), int(timestamps.max())
    meta = {
        "first_key": first_key,
        "num_samples": len(columns),
        "min_timestamp": first,
        "max_timestamp": last,
        "float_labels": columns.labels.dtype.kind == "f",
        "num_unlabelled": int((~has_label(columns.labels)).sum()),
        "encodings": {name: encoding for name, (encoding, _) in encoded.items()},
    }
    written = write_columns(path, _KIND, {name: stored for name, (_, stored) in encoded.items()}, meta)
    return SegmentInfo(first_key, len(columns), first, last, written.num_bytes, written.digest)


def _encoded(values: npt.NDArray[Any]) -> tuple[str, npt.NDArray[Any]]:
    """Encode `values`, numbers of 8 bytes. Returns "constant", "runs" or "plain", and the stored array. Floats are encoded by their bits."""
    bits = np.ascontiguousarray(values).view(np.int64)
    low, high = int(bits.min()), int(bits.max())
    if low == high:
        return "constant", np.array([values[0]])
    narrow = values.dtype
    # The bits of small floats are large integers, so only whole numbers are narrowed.
    if narrow.kind != "f":
        narrow = next(dtype for dtype in _NARROW if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max)
    # With more runs than this, either looking up a row or storing the runs would cost more than a plain column.
    most = min(1 + len(bits) // _ROWS_A_RUN, len(bits) * narrow.itemsize // _RUN_BYTES)
    if most and (runs := _core.find_runs(bits, most)) is not None:
        return "runs", np.concatenate(runs)
    return "plain", np.ascontiguousarray(values, narrow)


class Segment:
    """One open segment. Positions are keys minus `info.first_key`. Ranks are positions in the order (timestamp, key)."""

    __slots__ = (
        "_file",
        "_time_order",
        "file_ids",
        "float_labels",
        "info",
        "labels",
        "lengths",
        "num_unlabelled",
        "offsets",
        "path",
        "timestamps",
    )

    def __init__(self, file: ColumnFile) -> None:
        self.path, self._file, meta = file.path, file, file.meta
        try:
            extent = {name: meta[name] for name in ("first_key", "num_samples", "min_timestamp", "max_timestamp")}
            self.info = SegmentInfo(**extent, num_bytes=file.written.num_bytes, checksum=file.written.digest)
            self.float_labels = bool(meta["float_labels"])
            self.num_unlabelled = int(meta.get("num_unlabelled", 0))
            self.file_ids = self._column("file_ids")
            self.offsets = self._column("offsets")
            self.lengths = self._column("lengths")
            self.labels = self._column("labels")
            """Labels; float64 labels as their bits."""
            self.timestamps = self._column("timestamps")
            self._time_order = self._column("time_order") if "time_order" in file else None
        except (InvalidArgumentError, KeyError, TypeError) as error:
            raise _KIND.corrupt(self.path, f"its columns cannot be: {error}") from error

    def _column(self, name: str) -> _core.Column:
        """Return a column of the file. Raises InvalidArgumentError if the stored bytes are not a column of this number of rows."""
        stored = self._file.column(name)
        return _core.Column(stored.view(np.uint8), self._file.meta["encodings"][name], stored.itemsize, self.info.num_samples)

    @classmethod
    def open(cls, path: Path) -> Segment:
        """Map a segment into memory, after a check of its header and its size. Raises CorruptStateError, UnavailableError."""
        try:
            return cls(ColumnFile.open(path, _KIND))
        except NotFoundError as error:
            # The index refers to this segment, so a missing file is damage.
            raise CorruptStateError(error.message) from error

    def verify(self) -> None:
        """Read the whole file and compare it with its checksums. Raises CorruptStateError, UnavailableError."""
        try:
            self._file.verify()
        except NotFoundError as error:
            raise CorruptStateError(error.message) from error

    def columns(self) -> SegmentColumns:
        """Return all entries."""
        stored = (self.file_ids, self.offsets, self.lengths, self.labels, self.timestamps)
        file_ids, offsets, lengths, labels, timestamps = (column.slice(0, self.info.num_samples) for column in stored)
        return SegmentColumns(file_ids.astype(np.uint32), offsets, lengths, self._typed(labels), timestamps)

    def samples(self, start: int, stop: int) -> SampleBatch:
        """Return the samples at positions [start, stop)."""
        keys = np.arange(start, stop, dtype=np.int64) + self.info.first_key
        return SampleBatch(keys, self.timestamps.slice(start, stop), self._typed(self.labels.slice(start, stop)))

    def samples_by_rank(self, start: int, stop: int) -> SampleBatch:
        """Return the samples at ranks [start, stop), in the order (timestamp, key)."""
        if self._time_order is None:
            return self.samples(start, stop)
        positions = self._time_order.slice(start, stop)
        return SampleBatch(
            positions + self.info.first_key, self.timestamps.take(positions), self._typed(self.labels.take(positions))
        )

    def _typed(self, labels: Int64Array) -> LabelArray:
        return labels.view(np.float64) if self.float_labels else labels

    def rank_after(self, timestamp: int, key: int, first: int = 0, end: int | None = None) -> int:
        """Return the number of samples before or at (timestamp, key) in the order (timestamp, key).

        Args: first, end: smallest and largest possible result, if the caller knows them; None: the number of samples.
        """
        # Keys are whole numbers, so the samples before (timestamp, key + 1) are those up to and including (timestamp, key).
        return bisect_left(range(self.info.num_samples), (timestamp, key + 1), first, end, key=self.order_at)

    def order_at(self, rank: int) -> tuple[int, int]:
        """Return (timestamp, key) of the sample at a rank."""
        position = rank if self._time_order is None else self._time_order.at(rank)
        return self.timestamps.at(position), position + self.info.first_key


def merge_segments(path: Path, segments: Sequence[Segment]) -> SegmentInfo:
    """Write one segment to `path` with the entries of neighbouring `segments`, given in order of key. The old files stay.

    Raises: ValueError: keys are missing between two segments. CorruptStateError: a segment is damaged; new checksums would hide the damage.
    UnavailableError: the disk cannot be read or written to.
    """
    for before, after in pairwise(segments):
        if before.info.end_key != after.info.first_key:
            raise ValueError(
                f"{after.path} begins at key {after.info.first_key}, but {before.path} ends at {before.info.end_key}"
            )
    # A merge computes new checksums, so copied damage could never be detected again.
    for segment in segments:
        segment.verify()
    return write_segment(
        path, segments[0].info.first_key, SegmentColumns.concatenate([segment.columns() for segment in segments])
    )
