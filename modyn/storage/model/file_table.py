"""The indexed files of a dataset: rows of the catalogue, and the table that holds them in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np

from modyn.records import Int64Array


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


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Listed files against indexed files: positions in the listing, int64, ascending.

    unchanged: size and time are those with which the file was indexed, and it is not altered.
    absent: ids of indexed files that are not in the listing.
    """

    new: Int64Array
    changed: Int64Array
    unchanged: Int64Array
    absent: Int64Array


class FileTable:
    """Indexed files by id (dense from 0) and by path, about 200 bytes each. One writer; readers may look up ids that they know."""

    def __init__(self, rows: Iterable[FileRow] = ()) -> None:
        self.paths: list[str] = []
        self.altered: set[int] = set()
        self._ids: dict[str, int] = {}
        self._sizes = array("q")
        self._mtimes = array("q")
        self.add(rows)

    def __len__(self) -> int:
        return len(self.paths)

    def add(self, rows: Iterable[FileRow]) -> None:
        """Append new files. Raises: ValueError: an id does not follow the last one."""
        for row in rows:
            if row.file_id != len(self.paths):
                raise ValueError(f"file {row.file_id} does not follow {len(self.paths) - 1}")
            self.paths.append(row.path)
            self._ids[row.path] = row.file_id
            self._sizes.append(row.size)
            self._mtimes.append(row.mtime_ns)
            if row.altered:
                self.altered.add(row.file_id)

    def change(self, rows: Iterable[FileRow]) -> None:
        """Replace size, time and `altered` of known files."""
        for row in rows:
            self._sizes[row.file_id], self._mtimes[row.file_id] = row.size, row.mtime_ns
            (self.altered.add if row.altered else self.altered.discard)(row.file_id)

    def stamps(self, file_ids: Int64Array | slice) -> tuple[Int64Array, Int64Array]:
        """Sizes and times (ns) with which these files were last indexed or found unchanged: int64."""
        # Indexing by a slice would share the memory, and the arrays could not grow then.
        return np.array(np.asarray(self._sizes)[file_ids]), np.array(np.asarray(self._mtimes)[file_ids])

    def id_of(self, path: str) -> int | None:
        """The id of the file at `path`; None if it is not known."""
        return self._ids.get(path)

    def compare(self, paths: Sequence[str], sizes: Int64Array, mtimes_ns: Int64Array) -> Comparison:
        """Compare listed files with the indexed ones. Args: paths: relative to the dataset's folder. sizes, mtimes_ns: int64 (n,)."""
        ids = np.fromiter(map(self._ids.get, paths, repeat(-1)), np.int64, len(paths))
        known = np.flatnonzero(ids >= 0)
        found = ids[known]
        same = (np.asarray(self._sizes)[found] == sizes[known]) & (np.asarray(self._mtimes)[found] == mtimes_ns[known])
        if self.altered:
            same &= ~np.isin(found, list(self.altered))
        is_absent = np.ones(len(self), np.bool_)
        is_absent[found] = False
        return Comparison(np.flatnonzero(ids < 0), known[~same], known[same], np.flatnonzero(is_absent))
