"""One segment of the sample index: an immutable file of columns, one entry a sample, read through a memory map.

Layout: a prefix (magic, version, size and CRC-32 of the header), the header as JSON, then the columns, each aligned to 64 bytes. A
column is stored as one value if all its entries are equal; as runs, in each of which values rise by the same step, where they are few: the
files and offsets of records of one size, the times of files; with the narrowest integer type that holds it otherwise.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from modyn import _core
from modyn.atomic_write import write_atomically
from modyn.errors import CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.records import Int64Array, LabelArray, SampleBatch
from modyn.storage.model.samples import IndexedFiles, IndexedSamples

UInt32Array = npt.NDArray[np.uint32]

SEGMENT_ROWS = 1 << 20
"""Most entries that a segment should have: bounds the memory that writing one takes (about 100 bytes an entry)."""

_MAGIC = b"MODYNSEG"
_VERSION = 2
_READABLE = (1, 2)
"""Version 1 is the same without runs."""
_PREFIX = struct.Struct("<8sIII")
_ALIGNMENT = 64
_NARROW = tuple(np.dtype(name) for name in ("i1", "i2", "i4", "i8"))
_ROWS_A_RUN = 128
"""Fewest rows that a run must have on average: looking for the run of a row then costs less than reading a column from memory."""
_RUN_BYTES = 24


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
        columns = (self.file_ids, self.offsets, self.lengths, self.labels, self.timestamps)
        if len({len(column) for column in columns}) != 1:
            raise ValueError(f"columns differ in length: {[len(column) for column in columns]}")

    def __len__(self) -> int:
        return len(self.file_ids)

    def slice(self, start: int, stop: int) -> SegmentColumns:
        """Entries [start, stop), as views."""
        part = np.s_[start:stop]
        return SegmentColumns(
            self.file_ids[part], self.offsets[part], self.lengths[part], self.labels[part], self.timestamps[part]
        )

    @staticmethod
    def concatenate(parts: Sequence[SegmentColumns]) -> SegmentColumns:
        """The entries of all parts (at least one), in order."""
        return SegmentColumns(
            np.concatenate([part.file_ids for part in parts]),
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.timestamps for part in parts]),
        )


class SegmentBuilder:
    """Collects what formats found until there is enough for a segment."""

    def __init__(self, float_labels: bool, rows: int = SEGMENT_ROWS) -> None:
        self._label_type = np.dtype(np.float64 if float_labels else np.int64)
        self._rows = rows
        self._parts: list[SegmentColumns] = []
        self._count = 0

    def add(self, file_id: int, samples: IndexedSamples) -> None:
        """Append the samples of one file."""
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
        """Append files of one sample each, those with problems left out. file_ids: uint32, one for each of `files.good()`."""
        good = files.good()
        self._append(
            SegmentColumns(
                file_ids, np.zeros(len(good), np.int64), files.lengths[good], files.labels[good], files.timestamps[good]
            )
        )

    def _append(self, part: SegmentColumns) -> None:
        if part.labels.dtype != self._label_type:
            raise ValueError(f"labels are {part.labels.dtype}, but the dataset's are {self._label_type}")
        if len(part):
            self._parts.append(part)
            self._count += len(part)

    def __len__(self) -> int:
        return self._count

    def full(self) -> bool:
        """Whether `take` would give a whole segment."""
        return self._count >= self._rows

    def take(self) -> SegmentColumns:
        """Remove and return the first entries: as many as a segment has, or all. There must be one."""
        taken: list[SegmentColumns] = []
        wanted = min(self._rows, self._count)
        while wanted:
            part = self._parts.pop(0)
            if len(part) > wanted:
                self._parts.insert(0, part.slice(wanted, len(part)))
                part = part.slice(0, wanted)
            taken.append(part)
            wanted -= len(part)
            self._count -= len(part)
        return SegmentColumns.concatenate(taken)


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What the catalogue keeps of a segment. Keys are [first_key, first_key + num_samples)."""

    first_key: int
    num_samples: int
    min_timestamp: int
    max_timestamp: int
    num_bytes: int
    checksum: str
    """SHA-256 of the header, which holds the checksums of the columns."""

    @property
    def end_key(self) -> int:
        return self.first_key + self.num_samples


def write_segment(path: Path, first_key: int, columns: SegmentColumns) -> SegmentInfo:
    """Write a segment of at least one entry. `path` is complete and durable when this returns. Raises UnavailableError."""
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
    described: dict[str, dict[str, object]] = {}
    parts: list[memoryview] = []
    position = 0
    for name, values in data.items():
        encoding, stored = _encoded(values)
        entry: dict[str, object] = {
            "dtype": stored.dtype.str,
            "offset": position,
            "num_bytes": stored.nbytes,
            "crc32": zlib.crc32(stored.data),
        }
        if encoding != "plain":
            entry[encoding] = True
        described[name] = entry
        padding = -stored.nbytes % _ALIGNMENT
        parts += [stored.data.cast("B"), memoryview(bytes(padding))]
        position += stored.nbytes + padding
    header = json.dumps(
        {
            "first_key": first_key,
            "num_samples": len(columns),
            "min_timestamp": int(timestamps.min()),
            "max_timestamp": int(timestamps.max()),
            "label_dtype": columns.labels.dtype.str,
            "columns": described,
        }
    ).encode()
    prefix = _PREFIX.pack(_MAGIC, _VERSION, len(header), zlib.crc32(header))
    padding = -(len(prefix) + len(header)) % _ALIGNMENT
    write_atomically(path, [prefix, header, bytes(padding), *parts])
    return SegmentInfo(
        first_key,
        len(columns),
        int(timestamps.min()),
        int(timestamps.max()),
        len(prefix) + len(header) + padding + position,
        hashlib.sha256(header).hexdigest(),
    )


def _encoded(values: npt.NDArray[Any]) -> tuple[str, npt.NDArray[Any]]:
    """`values`, numbers of 8 bytes, as stored: "constant", "runs" or "plain", and what is written. Floats are encoded by their bits."""
    bits = np.ascontiguousarray(values).view(np.int64)
    low, high = int(bits.min()), int(bits.max())
    if low == high:
        return "constant", np.array([values[0]])
    narrow = values.dtype
    if narrow.kind != "f":
        narrow = next(dtype for dtype in _NARROW if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max)
    most = min(1 + len(bits) // _ROWS_A_RUN, len(bits) * narrow.itemsize // _RUN_BYTES)
    if most and (runs := _core.find_runs(bits, most)) is not None:
        return "runs", np.concatenate(runs)
    return "plain", np.ascontiguousarray(values, narrow)


_ADVICE = "delete the dataset and ingest it again, or restore the folder of the storage service from a backup"


@dataclass(frozen=True, slots=True)
class _Header:
    """What stands before the columns. described: what is stored of each column, by name; their offsets count from data_start."""

    info: SegmentInfo
    float_labels: bool
    described: dict[str, dict[str, Any]]
    data_start: int

    @staticmethod
    def read(path: Path, content: npt.NDArray[np.uint8]) -> _Header:
        """Raises CorruptStateError."""
        start = content[: _PREFIX.size].tobytes()
        if len(start) < _PREFIX.size or start[:8] != _MAGIC:
            raise CorruptStateError(f"{path} is not a segment; {_ADVICE}")
        _, version, header_size, checksum = _PREFIX.unpack(start)
        if version not in _READABLE:
            raise CorruptStateError(
                f"segment {path} has version {version}, this Modyn reads versions {_READABLE[0]} to {_VERSION}; use the Modyn that wrote it"
            )
        raw = content[_PREFIX.size : _PREFIX.size + header_size].tobytes()
        if len(raw) != header_size or zlib.crc32(raw) != checksum:
            raise CorruptStateError(f"the header of segment {path} is damaged; {_ADVICE}")
        header = json.loads(raw)
        data_start = _aligned(_PREFIX.size + header_size)
        num_bytes = data_start + max(_aligned(entry["offset"] + entry["num_bytes"]) for entry in header["columns"].values())
        if len(content) != num_bytes:
            raise CorruptStateError(f"segment {path} has {len(content)} bytes, but its header promises {num_bytes}; {_ADVICE}")
        info = SegmentInfo(
            header["first_key"],
            header["num_samples"],
            header["min_timestamp"],
            header["max_timestamp"],
            num_bytes,
            hashlib.sha256(raw).hexdigest(),
        )
        return _Header(info, header["label_dtype"] == np.dtype(np.float64).str, header["columns"], data_start)

    def stored(self, name: str, content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The bytes of a column."""
        entry = self.described[name]
        start = self.data_start + int(entry["offset"])
        return content[start : start + int(entry["num_bytes"])]

    def column(self, name: str, content: npt.NDArray[np.uint8]) -> _core.Column:
        """Raises InvalidArgumentError if the bytes that the header promises are not a column of so many rows."""
        entry = self.described[name]
        encoding: Literal["constant", "runs", "plain"] = (
            "constant" if "constant" in entry else "runs" if "runs" in entry else "plain"
        )
        return _core.Column(self.stored(name, content), encoding, int(entry["dtype"][2:]), self.info.num_samples)


class Segment:
    """One open segment. Positions are keys minus `info.first_key`; ranks are positions in the order (timestamp, key)."""

    __slots__ = (
        "_content",
        "_time_order",
        "file_ids",
        "float_labels",
        "info",
        "labels",
        "lengths",
        "offsets",
        "path",
        "timestamps",
    )

    def __init__(self, path: Path, content: npt.NDArray[np.uint8], header: _Header) -> None:
        self.path = path
        self.info = header.info
        self.float_labels = header.float_labels
        self._content = content
        try:
            self.file_ids = header.column("file_ids", content)
            self.offsets = header.column("offsets", content)
            self.lengths = header.column("lengths", content)
            self.labels = header.column("labels", content)
            """Of type float64: their bits."""
            self.timestamps = header.column("timestamps", content)
            self._time_order = header.column("time_order", content) if "time_order" in header.described else None
        except InvalidArgumentError as error:
            raise CorruptStateError(f"the columns of segment {path} are damaged: {error}; {_ADVICE}") from error

    @classmethod
    def open(cls, path: Path) -> Segment:
        """Map a segment; verifies its header and its size. Raises CorruptStateError, UnavailableError."""
        try:
            content = _core.map_file(path)
        except _core.FileVanishedError as error:
            raise CorruptStateError(f"segment {path} is missing; {_ADVICE}") from error
        except _core.FileAccessError as error:
            raise UnavailableError(f"cannot open segment: {error}") from error
        return cls(path, content, _Header.read(path, content))

    def verify(self) -> None:
        """Read everything and compare with the checksums. Raises CorruptStateError."""
        header = _Header.read(self.path, self._content)
        for name, entry in header.described.items():
            if zlib.crc32(header.stored(name, self._content).data) != entry["crc32"]:
                raise CorruptStateError(f"column {name} of segment {self.path} is damaged; {_ADVICE}")

    def columns(self, start: int = 0, stop: int | None = None) -> SegmentColumns:
        """Entries at positions [start, stop)."""
        stop = self.info.num_samples if stop is None else stop
        return SegmentColumns(
            self.file_ids.slice(start, stop).astype(np.uint32),
            self.offsets.slice(start, stop),
            self.lengths.slice(start, stop),
            self._typed(self.labels.slice(start, stop)),
            self.timestamps.slice(start, stop),
        )

    def samples(self, start: int, stop: int) -> SampleBatch:
        """Samples at positions [start, stop)."""
        keys = np.arange(start, stop, dtype=np.int64) + self.info.first_key
        return SampleBatch(keys, self.timestamps.slice(start, stop), self._typed(self.labels.slice(start, stop)))

    def samples_by_rank(self, start: int, stop: int) -> SampleBatch:
        """Samples at ranks [start, stop): in the order (timestamp, key)."""
        if self._time_order is None:
            return self.samples(start, stop)
        positions = self._time_order.slice(start, stop)
        return SampleBatch(
            positions + self.info.first_key, self.timestamps.take(positions), self._typed(self.labels.take(positions))
        )

    def _typed(self, labels: Int64Array) -> LabelArray:
        return labels.view(np.float64) if self.float_labels else labels

    def rank(self, timestamp: int) -> int:
        """How many samples are before `timestamp`."""
        return self.rank_behind(timestamp, -1)

    def rank_behind(self, timestamp: int, key: int) -> int:
        """How many samples are before or at (timestamp, key) in the order (timestamp, key)."""
        return bisect_left(range(self.info.num_samples), (timestamp, key + 1), key=self._order_at)

    def _order_at(self, rank: int) -> tuple[int, int]:
        position = rank if self._time_order is None else self._time_order.at(rank)
        return self.timestamps.at(position), position + self.info.first_key


def _aligned(position: int) -> int:
    return position + -position % _ALIGNMENT


def merge_segments(path: Path, segments: Sequence[Segment]) -> SegmentInfo:
    """Write one segment with the entries of neighbouring ones, given in order of key. The old files stay. Raises ValueError on a gap."""
    for before, after in pairwise(segments):
        if before.info.end_key != after.info.first_key:
            raise ValueError(
                f"{after.path} begins at key {after.info.first_key}, but {before.path} ends at {before.info.end_key}"
            )
    return write_segment(
        path, segments[0].info.first_key, SegmentColumns.concatenate([segment.columns() for segment in segments])
    )
