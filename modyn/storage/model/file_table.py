"""The indexed files of a dataset: rows of the catalogue, and a table of all files in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from modyn import _core
from modyn.records import Int64Array

UNKNOWN_TAG = -1
"""The tag of a local file, of an object without an ETag, and of an object that was indexed before tags were stored."""
_PART = 1 << 13
"""Number of files in one call from Python to the core. One call holds the GIL for some milliseconds."""


class FileRow(NamedTuple):
    """One indexed file.

    The class is a tuple, because a dataset may have as many files as samples, and a tuple is built ten times as fast as a frozen dataclass.
    """

    file_id: int
    path: str
    """Path relative to the dataset's folder."""
    size: int
    mtime_ns: int
    indexed_end: int
    """Bytes of the file that are indexed."""
    num_samples: int
    fingerprint: str
    """Checksum of the first `indexed_end` bytes; empty for files of one sample."""
    altered: bool = False
    """Whether bytes of the file changed after they were indexed."""
    tail: int = UNKNOWN_TAG
    """Number that identifies the content, in addition to size and time. For a file that can grow: the CRC-32 of the last 4 KiB before `size`, by
    which the grown file is recognised. For an object in a bucket: its tag, 63 bits of a hash of its ETag. -1: the number is missing or unknown."""


class Checksum(NamedTuple):
    """CRC-32 of the first `num_bytes` bytes of a file; if `num_bytes` is 0, the checksum is not known."""

    num_bytes: int = 0
    crc32: int = 0


class CheckedFile(NamedTuple):
    """An indexed file, and the checksum with which a scrub compares the file."""

    row: FileRow
    checksum: Checksum = Checksum()
    """Checksum of the bytes that were indexed when a scrub last read the file."""
    times_forgotten: int = 0
    """Number of times that the file's samples were deleted to index the file again. Checksums from before the last deletion are ignored."""


class FileTable:
    """Indexed files by id (dense from 0) and by path, in the core's memory. A file takes about 50 bytes plus its path. One thread at a time may
    change the table. Meanwhile, other threads may look up known ids."""

    def __init__(self, rows: Iterable[FileRow] = ()) -> None:
        """Args: rows: in the order of their ids, from 0 without gaps."""
        self.known = _core.KnownFiles()
        """The files in the form that `FolderScan` reads."""
        self.altered: set[int] = set()
        self.add(rows)

    def __len__(self) -> int:
        return len(self.known)

    def add(self, rows: Iterable[FileRow]) -> None:
        """Append new files. Raises: ValueError: the ids do not continue the existing ids without gaps."""
        for part in _parts(rows):
            for file_id, row in enumerate(part, len(self)):
                if row.file_id != file_id:
                    raise ValueError(f"file {row.file_id} does not follow {file_id - 1}")
            _, paths, sizes, mtimes_ns, _, _, _, altered, tails = zip(*part, strict=True)
            size_column, time_column, tail_column = (np.array(column, np.int64) for column in (sizes, mtimes_ns, tails))
            self.known.append(paths, size_column, time_column, altered, tail_column)
            self.altered.update(row.file_id for row in part if row.altered)

    def change(self, rows: Iterable[FileRow]) -> None:
        """Replace size, time, `altered` and tail of known files."""
        for row in rows:
            self.known.change(row.file_id, row.size, row.mtime_ns, row.altered, row.tail)
            (self.altered.add if row.altered else self.altered.discard)(row.file_id)

    def stamps(self, file_ids: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return two arrays, int64 (n,): size (bytes) and modification time (ns) of each file of `file_ids`, int64 (n,). Both values were stored when
        the file was last indexed or found unchanged."""
        sizes, mtimes_ns, _ = self.known.stamps(file_ids)
        return sizes, mtimes_ns

    def path(self, file_id: int) -> str:
        """Return the path of the file, relative to the dataset's folder."""
        return self.known.path(file_id)

    def id_of(self, path: str) -> int | None:
        """Return the id of the file at `path`; None if the file is not known."""
        found = int(self.known.find([path])[0])
        return found if found >= 0 else None

    def ids(self, paths: Sequence[str]) -> Int64Array:
        """Return the ids of the files at `paths`: int64 (n,), -1 for unknown files."""
        parts = [self.known.find(paths[first : first + _PART]) for first in range(0, len(paths), _PART)]
        return np.concatenate([np.empty(0, np.int64), *parts])


class Comparison:
    """Compares a listing with the indexed files, chunk by chunk. The object stores a byte for each indexed file, and no chunk of the listing."""

    def __init__(self, table: FileTable) -> None:
        self._table = table
        self._is_absent = np.ones(len(table), np.bool_)

    def differing(
        self, paths: Sequence[str], sizes: Int64Array, mtimes_ns: Int64Array, tags: Int64Array | None = None
    ) -> Int64Array:
        """Return the positions of new, changed or altered files in this chunk of the listing: int64, ascending.

        Args: paths: relative to the dataset's folder. sizes, mtimes_ns, tags: int64 (n,). Two tags are compared only if both are known.
        """
        ids = self._table.ids(paths)
        listed = np.flatnonzero(ids >= 0)
        found = ids[listed]
        known_sizes, known_times, known_tags = self._table.known.stamps(found)
        same = (known_sizes == sizes[listed]) & (known_times == mtimes_ns[listed])
        # Tags are compared only if both are known. A file that an older version of Modyn indexed has no tag.
        if tags is not None:
            now = tags[listed]
            same &= (known_tags == now) | (known_tags == UNKNOWN_TAG) | (now == UNKNOWN_TAG)
        # An altered file is always returned, because it may have its old content again.
        if self._table.altered:
            same &= ~np.isin(found, list(self._table.altered))
        differs = np.ones(len(paths), np.bool_)
        differs[listed[same]] = False
        # A listed file is not absent, whether it has changed or not.
        self._is_absent[found] = False
        return np.flatnonzero(differs)

    def absent(self) -> Int64Array:
        """Return the ids of indexed files that were in no chunk of the listing: int64, ascending."""
        return np.flatnonzero(self._is_absent)


def _parts(rows: Iterable[FileRow]) -> Iterator[list[FileRow]]:
    remaining = iter(rows)
    while part := list(islice(remaining, _PART)):
        yield part
