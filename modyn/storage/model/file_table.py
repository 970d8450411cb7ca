"""The indexed files of a dataset: rows of the catalogue, and the table that holds them in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from modyn import _core
from modyn.records import Int64Array

_PART = 1 << 13
"""Files that pass between Python and the core with one call, which holds the interpreter for some milliseconds."""


class FileRow(NamedTuple):
    """One indexed file.

    A tuple, because there may be one for each sample: making it takes a tenth of the time of a frozen record.
    """

    file_id: int
    path: str
    """Relative to the dataset's folder."""
    size: int
    mtime_ns: int
    indexed_end: int
    """Bytes of the file that are indexed."""
    num_samples: int
    fingerprint: str
    """Checksum of the first `indexed_end` bytes; empty for files of one sample."""
    altered: bool = False
    """The indexed bytes were changed after they were indexed."""
    tail: int = -1
    """CRC-32 of the last 4 KiB before `size`, by which a longer file is known to be the same one; -1 if it cannot grow, or if not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Listed files against indexed files.

    differing: positions in the listing of files that are new, that have another size or time than when they were indexed, or that are altered:
    int64, ascending. absent: ids of indexed files that are not in the listing: int64, ascending.
    """

    differing: Int64Array
    absent: Int64Array


class FileTable:
    """Indexed files by id (dense from 0) and by path, in the core's memory: about 50 bytes each and the path. One writer; readers may look up
    ids that they know."""

    def __init__(self, rows: Iterable[FileRow] = ()) -> None:
        """Args: rows: by id, from 0 without gaps."""
        self.known = _core.KnownFiles()
        """The files as a `FolderScan` takes them."""
        self.altered: set[int] = set()
        self.add(rows)

    def __len__(self) -> int:
        return len(self.known)

    def add(self, rows: Iterable[FileRow]) -> None:
        """Append new files. Raises: ValueError: an id does not follow the last one."""
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
        """Sizes (bytes) and times (ns) with which the files `file_ids`, int64 (n,), were last indexed or found unchanged: int64 (n,) each."""
        sizes, mtimes_ns, _ = self.known.stamps(file_ids)
        return sizes, mtimes_ns

    def path(self, file_id: int) -> str:
        """The path of the file, relative to the dataset's folder."""
        return self.known.path(file_id)

    def id_of(self, path: str) -> int | None:
        """The id of the file at `path`; None if it is not known."""
        found = int(self.known.find([path])[0])
        return found if found >= 0 else None

    def ids(self, paths: Sequence[str]) -> Int64Array:
        """The ids of the files at `paths`: int64 (n,), -1 where none is known."""
        parts = [self.known.find(paths[first : first + _PART]) for first in range(0, len(paths), _PART)]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def compare(self, paths: Sequence[str], sizes: Int64Array, mtimes_ns: Int64Array) -> Comparison:
        """Compare listed files with the indexed ones. Args: paths: relative to the dataset's folder. sizes, mtimes_ns: int64 (n,)."""
        ids = self.ids(paths)
        listed = np.flatnonzero(ids >= 0)
        found = ids[listed]
        known_sizes, known_times = self.stamps(found)
        same = (known_sizes == sizes[listed]) & (known_times == mtimes_ns[listed])
        if self.altered:
            same &= ~np.isin(found, list(self.altered))
        differs = np.ones(len(paths), np.bool_)
        differs[listed[same]] = False
        is_absent = np.ones(len(self), np.bool_)
        is_absent[found] = False
        return Comparison(np.flatnonzero(differs), np.flatnonzero(is_absent))


def _parts(rows: Iterable[FileRow]) -> Iterator[list[FileRow]]:
    remaining = iter(rows)
    while part := list(islice(remaining, _PART)):
        yield part
