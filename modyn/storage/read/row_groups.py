"""Payloads from the row groups of Parquet files: each group is read once for all rows that are asked of it, the last ones are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from modyn._core import FileChangedError
from modyn.errors import DataError, ModynError, UnavailableError
from modyn.records import Int64Array
from modyn.storage.files.file_system import IndexedVersion, changed
from modyn.storage.formats.parquet import joined, payloads_of
from modyn.storage.read.lru_cache import LRUCache

if TYPE_CHECKING:
    from modyn._core import PathTable
    from modyn.storage.files.file_system import FileStatus, FileSystem
    from modyn.storage.model.samples import UInt8Array, UInt32Array

_FOOTERS = 1024
"""Files whose footers are kept."""


class RowGroupReader:
    """Reads the payloads of a dataset of Parquet files. Any number of threads at once."""

    def __init__(self, paths: PathTable, folder: FileSystem, columns: Sequence[str], cache_bytes: int) -> None:
        """Args: paths: full path by file id. folder: that of the files. columns: of which payloads are made, in this order. cache_bytes: of
        payloads of row groups that are kept for the next request.
        """
        self._paths, self._folder, self._columns = paths, folder, list(columns)
        self.cache_bytes = cache_bytes
        self._footers = LRUCache[_Footer](_FOOTERS, lambda footer: 1)
        self._groups = LRUCache[pa.Array](cache_bytes, lambda group: int(group.nbytes))

    def gather(self, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int) -> tuple[UInt8Array, Int64Array]:
        """As `RecordReader.gather`; `offsets` are rows of the files. Raises DataError for a row that is absent or of another length."""
        if not len(file_ids):
            return np.zeros(0, np.uint8), np.zeros(1, np.int64)
        order = np.lexsort((offsets, file_ids))
        parts = list(self._parts(file_ids[order], offsets[order]))
        found = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        if np.any(order[1:] < order[:-1]):
            back = np.empty(len(order), np.int64)
            back[order] = np.arange(len(order))
            found = found.take(pa.array(back))
        data, bounds = joined(found)
        if len(wrong := np.flatnonzero(np.diff(bounds) != lengths)):
            at = int(wrong[0])
            raise DataError(
                f"{self._paths[int(file_ids[at])]}, row {offsets[at]}: the payload has another length than when it was indexed; the file "
                f"was rewritten: restore it, or delete its samples and add the data under a new name"
            )
        return data, bounds

    def _parts(self, file_ids: UInt32Array, rows: Int64Array) -> Iterator[pa.Array]:
        """Payloads of rows that are sorted by file and row, one part for each row group."""
        for start, stop in _runs(file_ids):
            file_id = int(file_ids[start])
            path, indexed = self._paths[file_id], IndexedVersion.of(self._paths, file_id)
            now = self._folder.stamp(path)
            if now is not None and not self._paths.may_be(file_id, now.size, now.mtime_ns):
                raise changed(path, int(rows[start]), f"row {rows[start]}")
            key = path, now or indexed
            try:
                yield from self._of_file(key, indexed, rows[start:stop])
            except FileChangedError as error:
                raise changed(path, int(rows[start]), f"row {rows[start]}") from error

    def _of_file(
        self, key: tuple[str, FileStatus | IndexedVersion | None], indexed: IndexedVersion | None, of_file: Int64Array
    ) -> Iterator[pa.Array]:
        """The parts of one file, whose state `key` names: what is kept of it is of this state."""
        path = key[0]
        footer = self._footers.get(key, partial(self._read_footer, path, indexed))
        if of_file[-1] >= footer.first_rows[-1]:
            raise DataError(
                f"{path} was cut: row {of_file[-1]} of it is indexed, it has {footer.first_rows[-1]} now. Restore the file, or delete "
                f"its samples and add the data under a new name"
            )
        groups = np.searchsorted(footer.first_rows, of_file, side="right") - 1
        for first, last in _runs(groups):
            number = int(groups[first])
            group = self._groups.get((*key, number), partial(self._read_group, path, indexed, footer, number))
            yield group.take(pa.array(of_file[first:last] - footer.first_rows[number]))

    def _read_footer(self, path: str, indexed: IndexedVersion | None) -> _Footer:
        try:
            with self._folder.open(path, indexed) as file:
                metadata = pq.read_metadata(file)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(path, error) from error
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        return _Footer(metadata, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)]))

    def _read_group(self, path: str, indexed: IndexedVersion | None, footer: _Footer, number: int) -> pa.Array:
        # Of an object they are fetched together; for a file of this machine they are not needed.
        ranges = () if self._folder.appends else footer.ranges(number, self._columns)
        try:
            with (
                self._folder.open(path, indexed, ranges) as source,
                pq.ParquetFile(source, metadata=footer.metadata, pre_buffer=True) as file,
            ):
                table = file.read_row_group(number, columns=self._columns)
                for name in self._columns:
                    if table.column(name).null_count:
                        raise DataError(
                            f"{path}: column '{name}' has nulls that were not there when it was indexed; restore the file"
                        )
                return payloads_of(table, self._columns)
        except MemoryError as error:
            raise UnavailableError(
                f"there is not enough memory to read row group {number} of {path}: {error}; try again, or give the process more memory"
            ) from error
        except (pa.ArrowException, OSError, KeyError) as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: str, error: Exception) -> ModynError:
        found = self._folder.read_error(path, error) if isinstance(error, OSError) else None
        if isinstance(found, UnavailableError):
            return found
        return DataError(f"cannot read {path} as Parquet: {error}; restore the file as it was when it was indexed")


@dataclass(frozen=True, slots=True, eq=False)
class _Footer:
    """`first_rows`: int64 (row groups + 1,), the first row of each group and the number of all rows."""

    metadata: pq.FileMetaData
    first_rows: Int64Array

    def ranges(self, number: int, columns: Sequence[str]) -> list[tuple[int, int]]:
        """The bytes [start, stop) that `columns` have in a row group."""
        group = self.metadata.row_group(number)
        chunks = (group.column(i) for i in range(group.num_columns))
        found = []
        for chunk in chunks:
            if chunk.path_in_schema in columns:
                start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)), default=0)
                found.append((start, start + chunk.total_compressed_size))
        return found


def _runs(values: UInt32Array | Int64Array) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) of equal neighbours."""
    edges = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
    return pairwise(edges)
