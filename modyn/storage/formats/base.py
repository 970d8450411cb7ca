"""What every file format does: say where the samples of one file are, in bounded chunks of columns, without keeping their bytes.

A format never writes, and never decides which files belong to a dataset beyond their names: that is ingestion's.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import numpy as np
from pydantic import ConfigDict

from modyn._core import FileAccessError
from modyn.config.base import Section
from modyn.errors import DataError
from modyn.records import MAX_TIMESTAMP, Int64Array, LabelArray
from modyn.storage.formats.timestamps import TimestampSource, parse_timestamp_source
from modyn.storage.model.samples import IndexedFiles, IndexedSamples

if TYPE_CHECKING:
    from modyn._core import PathTable
    from modyn.storage.files.file_system import FileSystem
    from modyn.storage.model.samples import RecordReader

CHUNK_ROWS = 1 << 18
"""A format yields at most this many samples at once."""

_FINGERPRINT_BYTES = 1 << 16
"""At each end."""
_FINGERPRINT_BLOCKS, _FINGERPRINT_BLOCK_BYTES = 64, 1 << 12
"""Evenly spread between the ends."""


class UnusableNowError(DataError):
    """A file could not be read, which says nothing of what is in it: it is tried again, though its size and time stay the same."""


SAYS_NOTHING_OF_CONTENT = (UnusableNowError, FileAccessError)
"""The same of Python and of C++."""


class SupportsReadAndSeek(Protocol):
    """What is wanted of an open file."""

    def read(self, num_bytes: int, /) -> bytes: ...

    def seek(self, offset: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class FormatResume:
    """How far a file was indexed: continue after byte `end`, after `num_samples` samples, if the bytes before are still the same."""

    end: int
    num_samples: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class NameEndings:
    """How the names of a dataset's files end. companions: of the file that must stand beside each file with samples, in place of `samples`;
    empty if there is none."""

    samples: str
    companions: str = ""


class FormatConfig(Section):
    """Options that every format has."""

    # What stands below a field is what users are told of it.
    model_config = ConfigDict(use_attribute_docstrings=True)

    label_type: Literal["int", "float"] = "int"
    """Labels are whole numbers (int64) or fractions (float64)."""


class FileFormat(ABC):
    """A kind of data file. Built from its own configuration; `timestamp_source` says where a sample's time stands (see `timestamps`).

    Errors in a file are DataError and name the file, the byte offset and what to do; OSError never leaves a format.
    """

    Config: ClassVar[type[FormatConfig]]
    """The format's own section."""
    can_grow: ClassVar[bool] = False
    """Samples that are appended to an indexed file can be indexed alone, from a FormatResume."""

    def __init__(self, config: FormatConfig, timestamp_source: str = "") -> None:
        self.config = config
        self.timestamps: TimestampSource = parse_timestamp_source(timestamp_source)

    @property
    def float_labels(self) -> bool:
        """Labels are float64, not int64."""
        return self.config.label_type == "float"

    @abstractmethod
    def holds_samples(self, path: str) -> bool:
        """Whether a file of this name holds samples (and is not, for example, a label file). Looks at the name only."""

    @abstractmethod
    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """Yield the samples of `path` in file order, at most CHUNK_ROWS at once; an empty file yields nothing.

        With `resume`, only the samples after it. Raises DataError; chunks that were yielded before it are not to be used.
        """

    def endings(self) -> NameEndings | None:
        """Says the same as `holds_samples` and `companions` where endings of names say it all: a folder is then looked at without calling
        these for each file."""
        return None

    def row_begin(self, offset: int) -> int | None:
        """Where the row begins whose payload is at `offset`: so much of a file that grows is indexed up to the size it was seen with. None: not
        known; such a file is left for the next look if it grew while it was indexed."""
        return None

    def companions(self, path: str) -> tuple[str, ...]:
        """Files that must stand beside `path` before it can be indexed, e.g. its label file."""
        return ()

    def row_source(self, paths: PathTable, folder: FileSystem, cache_bytes: int) -> RecordReader | None:
        """What reads payloads that are no ranges of the files' bytes; None: they are. `paths` are the full paths of the files by id.
        cache_bytes: what it may keep of them for the next request."""
        return None

    def resume_point(self, path: str, end: int, num_samples: int) -> FormatResume:
        """What to remember of a file of which `num_samples` samples in the first `end` bytes are indexed. Raises DataError."""
        return FormatResume(end, num_samples, self.fingerprint(path, end))

    def check_unchanged(self, path: str, resume: FormatResume) -> None:
        """Raise DataError if the bytes of `path` that `resume` speaks of are no longer there or no longer the same."""
        size = self.file_size(path)
        if size < resume.end:
            raise DataError(
                f"{path} was cut: {resume.end} bytes of it are indexed, it has {size} now. Samples in it can no longer be read; "
                f"restore the file, or delete its samples and add the data under a new name"
            )
        if self.fingerprint(path, resume.end) != resume.fingerprint:
            raise DataError(
                f"{path} was rewritten: its first {resume.end} bytes, which are indexed, are not the same any more. "
                f"Restore the file, or delete its samples and add the data under a new name"
            )

    def file_size(self, path: str) -> int:
        """Bytes in `path`. Raises DataError."""
        return file_size(path)

    def fingerprint(self, path: str, num_bytes: int) -> str:
        """As the function `fingerprint`. Raises DataError."""
        return fingerprint(path, num_bytes)


class WholeFileFormat(FileFormat):
    """A format with one sample in each file, so that many files are indexed with one call."""

    reads_payloads: ClassVar[bool] = True
    """Looks into the files, and not only at their names, sizes, times and companions."""

    @abstractmethod
    def index_files(self, paths: Sequence[str]) -> IndexedFiles:
        """Index all `paths`; a file that cannot be used is in `problems` and does not disturb the others."""


def beginning(file_format: FileFormat, chunk: IndexedSamples, num_bytes: int) -> IndexedSamples | None:
    """The rows of a chunk that lie in the first `num_bytes` bytes of the file; None if there are none, or if that cannot be told."""
    if chunk.end <= num_bytes:
        return chunk
    kept = int(np.append(chunk.offsets + chunk.lengths > num_bytes, True).argmax())
    end = num_bytes if kept == len(chunk) else file_format.row_begin(int(chunk.offsets[kept]))
    if not kept or end is None:
        return None
    return IndexedSamples(
        chunk.offsets[:kept],
        chunk.lengths if isinstance(chunk.lengths, int) else chunk.lengths[:kept],
        chunk.labels[:kept],
        chunk.timestamps if isinstance(chunk.timestamps, int) else chunk.timestamps[:kept],
        min(end, num_bytes),
    )


def refused_samples(labels: LabelArray, timestamps: Int64Array | int) -> dict[int, str]:
    """Position -> why no format may bring this sample: its label is no finite number, or its time lies in no interval [start, end)."""
    found: dict[int, str] = {}
    for at in np.flatnonzero(~np.isfinite(labels)).tolist() if labels.dtype.kind == "f" else ():
        found[at] = f"the label {labels[at]} is no finite number"
    for at in np.flatnonzero(np.broadcast_to(np.asarray(timestamps) == MAX_TIMESTAMP, len(labels))).tolist():
        found.setdefault(at, f"the time {MAX_TIMESTAMP} lies in no interval; times are smaller")
    return found


def unreadable(path: str, error: OSError, offset: int = 0) -> DataError:
    """The DataError for an OSError on a file of the user."""
    return UnusableNowError(
        f"cannot read {path} at byte {offset}: {error.strerror or error}; make the file readable for the storage service"
    )


def file_size(path: str) -> int:
    """Bytes in `path`. Raises DataError."""
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise unreadable(path, error) from error


def fingerprint(path: str, num_bytes: int) -> str:
    """Hash of the first `num_bytes` bytes of `path`: all of them, or of many bytes the first and the last 64 KiB and 64 blocks of 4 KiB
    between. Raises DataError."""
    try:
        with open(path, "rb") as file:
            return fingerprint_of(file, num_bytes)
    except OSError as error:
        raise unreadable(path, error) from error


def fingerprint_of(file: SupportsReadAndSeek, num_bytes: int) -> str:
    """As `fingerprint`, of an open file. Raises OSError."""
    digest = hashlib.sha256(num_bytes.to_bytes(8, "little"))
    ends, blocks = 2 * _FINGERPRINT_BYTES, _FINGERPRINT_BLOCKS * _FINGERPRINT_BLOCK_BYTES
    if num_bytes <= ends + blocks:
        digest.update(file.read(num_bytes))
        return digest.hexdigest()
    digest.update(file.read(_FINGERPRINT_BYTES))
    # The last block ends where the last 64 KiB begin.
    between = num_bytes - ends - _FINGERPRINT_BLOCK_BYTES
    for number in range(_FINGERPRINT_BLOCKS):
        file.seek(_FINGERPRINT_BYTES + between * number // (_FINGERPRINT_BLOCKS - 1))
        digest.update(file.read(_FINGERPRINT_BLOCK_BYTES))
    file.seek(num_bytes - _FINGERPRINT_BYTES)
    digest.update(file.read(_FINGERPRINT_BYTES))
    return digest.hexdigest()
