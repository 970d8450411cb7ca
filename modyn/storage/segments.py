"""The sample index: immutable, memory-mapped, columnar files, one entry a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modyn.records import Int64Array, Interval, LabelArray, SampleBatch
from modyn.storage.deletions import Deletions
from modyn.storage.formats.base import IndexedFiles, IndexedSamples

UInt32Array = npt.NDArray[np.uint32]

SEGMENT_ROWS = 1 << 20
"""Most entries of one segment: bounds the memory that writing one takes (about 40 bytes an entry, twice)."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentColumns:
    """Entries of one segment, in order of key: arrays of shape (n,).

    file_ids: uint32. offsets, lengths: int64 bytes (lengths may be one int for all). labels: int64 or float64. timestamps: int64 seconds.
    """

    file_ids: UInt32Array
    offsets: Int64Array
    lengths: Int64Array | int
    labels: LabelArray
    timestamps: Int64Array

    def __len__(self) -> int:
        return len(self.file_ids)


class SegmentBuilder:
    """Collects what formats found until there is enough for a segment. `take` never gives more than `rows` entries."""

    def __init__(self, float_labels: bool, rows: int = SEGMENT_ROWS) -> None: ...

    def add(self, file_id: int, samples: IndexedSamples) -> None:
        """Append the samples of one file."""
        raise NotImplementedError

    def add_files(self, file_ids: UInt32Array, files: IndexedFiles) -> None:
        """Append files of one sample each, those with problems left out. file_ids: uint32, one for each of `files.good()`."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def full(self) -> bool:
        """Whether `take` would give a whole segment."""
        raise NotImplementedError

    def take(self) -> SegmentColumns:
        """Remove and return the first min(rows, len) entries."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What the catalogue keeps of a segment. Keys are [first_key, first_key + num_samples)."""

    first_key: int
    num_samples: int
    min_timestamp: int
    max_timestamp: int
    num_bytes: int
    checksum: str
    """Of header and all columns, hex."""


def write_segment(path: Path, first_key: int, columns: SegmentColumns) -> SegmentInfo:
    """Write a segment of at least one entry. `path` is complete and durable when this returns, or does not exist. Raises UnavailableError."""
    raise NotImplementedError


class Segment:
    """One open segment."""

    path: Path
    info: SegmentInfo

    @classmethod
    def open(cls, path: Path) -> Segment:
        """Map a segment; verifies header and size. Raises CorruptStateError."""
        raise NotImplementedError

    def verify(self) -> None:
        """Read everything and compare with the checksums. Raises CorruptStateError."""
        raise NotImplementedError

    def columns(self, start: int = 0, stop: int | None = None) -> SegmentColumns:
        """Entries [start, stop) by position in the segment."""
        raise NotImplementedError


def merge_segments(path: Path, segments: Sequence[Segment]) -> SegmentInfo:
    """Write one segment that holds the entries of neighbouring ones, at most SEGMENT_ROWS. The old files stay. Raises ValueError on a gap."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Locations:
    """Where samples are, in the order asked. file_ids: uint32 (n,). offsets: int64 (n,). lengths: int64 (n,), or one int for all."""

    file_ids: UInt32Array
    offsets: Int64Array
    lengths: Int64Array | int


class SegmentIndex:
    """All segments of a dataset. Immutable: `with_segments` gives a new one, so that readers need no lock."""

    def __init__(self, segments: Sequence[Segment] = (), float_labels: bool = False) -> None:
        """`segments` in any order; must not overlap. Raises CorruptStateError if they do."""
        raise NotImplementedError

    def with_segments(self, segments: Sequence[Segment]) -> SegmentIndex:
        """This index and further segments."""
        raise NotImplementedError

    @property
    def num_samples(self) -> int: ...

    @property
    def next_key(self) -> int:
        """The key after the last."""
        ...

    @property
    def min_timestamp(self) -> int | None: ...

    @property
    def max_timestamp(self) -> int | None: ...

    def contains(self, keys: Int64Array) -> npt.NDArray[np.bool_]:
        """For each key, whether it was ever given to a sample: bool (n,)."""
        raise NotImplementedError

    def locate(self, keys: Int64Array) -> Locations:
        """Locations of `keys`, any order, duplicates allowed. Raises NotFoundError naming unknown keys. Ignores deletions."""
        raise NotImplementedError

    def samples_by_key(self, keys: Int64Array) -> SampleBatch:
        """Labels and timestamps of `keys` in the order asked. Raises NotFoundError. Ignores deletions."""
        raise NotImplementedError

    def samples_from(self, first_key: int, batch_size: int, deletions: Deletions | None = None) -> Iterator[SampleBatch]:
        """Samples with key >= first_key in key order, deleted ones left out, at most batch_size at once."""
        raise NotImplementedError

    def samples_in_interval(
        self, interval: Interval, batch_size: int, after: tuple[int, int] | None = None, deletions: Deletions | None = None
    ) -> Iterator[SampleBatch]:
        """Samples of the interval in the order (timestamp, key), deleted ones left out, at most batch_size at once.

        `after`: only samples behind this (timestamp, key). Memory is bounded by the batch, not by the dataset.
        """
        raise NotImplementedError

    def count_in_interval(self, interval: Interval, deletions: Deletions | None = None) -> int:
        """Number of samples of the interval that are not deleted."""
        raise NotImplementedError
