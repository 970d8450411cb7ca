"""Reads rows of Parquet files by row groups: payloads, with a cache of the last row groups, and values of a column."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from modyn._core import FileChangedError
from modyn.errors import ConfigError, DataError, ModynError, UnavailableError
from modyn.records import Int64Array
from modyn.storage.files.file_system import IndexedVersion, changed
from modyn.storage.formats.parquet import READ_AS_DICTIONARIES, joined, payloads_of
from modyn.storage.formats.parquet_types import check_types, is_bytes, type_of

if TYPE_CHECKING:
    from modyn._core import PathTable
    from modyn.storage.files.file_system import FileStatus, FileSystem
    from modyn.storage.model.samples import UInt8Array, UInt32Array
    from modyn.storage.read.column_values import ValueEncoder

T = TypeVar("T")

_OR_AGAIN = "or index what it contains now with `modyn data reindex NAME FILE`"

_FOOTERS = 1024
"""Number of files whose footers are kept in memory."""
_COLUMN_ROWS, _COLUMN_BYTES = 16_384, 64 << 20
"""Largest number of rows of a column that are read at once, and approximate largest number of their bytes."""
_Version = tuple[str, "FileStatus | IndexedVersion | None"]
"""Path and state of a file. Each cached value belongs to one version of a file."""


class RowGroupFiles(ABC, Generic[T]):
    """Parquet files of a dataset, whose rows are read by row groups. Thread-safe."""

    def __init__(self, paths: PathTable, folder: FileSystem, columns: Sequence[str]) -> None:
        """Args: paths: full path of each file id. folder: file system of the files. columns: names of the columns to read."""
        self._paths, self._folder, self._columns = paths, folder, list(columns)
        self._footers = LRUCache[_Footer](_FOOTERS, lambda footer: 1)

    @abstractmethod
    def _of_group(self, key: _Version, indexed: IndexedVersion | None, footer: _Footer, number: int, rows: Int64Array) -> T:
        """Read `rows` of row group `number`, and return their content. Args: key: path and state of the file. rows: counted from the first row of the
        group.
        """

    def _parts(self, file_ids: UInt32Array, rows: Int64Array) -> Iterator[T]:
        """Read rows, which must be sorted by file and row. Yields the content of the rows of each row group."""
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

    def _of_file(self, key: _Version, indexed: IndexedVersion | None, of_file: Int64Array) -> Iterator[T]:
        """Like `_parts`, for rows of one file. Args: key: path and state of the file; values that were cached for another state are not used."""
        path = key[0]
        footer = self._footers.get(key, partial(self._read_footer, path, indexed))
        if of_file[-1] >= footer.first_rows[-1]:
            raise DataError(
                f"{path} was cut: row {of_file[-1]} of it is indexed, it has {footer.first_rows[-1]} now. Restore the file, {_OR_AGAIN}"
            )
        groups = np.searchsorted(footer.first_rows, of_file, side="right") - 1
        for first, last in _runs(groups):
            number = int(groups[first])
            yield self._of_group(key, indexed, footer, number, of_file[first:last] - footer.first_rows[number])

    def _read_footer(self, path: str, indexed: IndexedVersion | None) -> _Footer:
        try:
            with self._folder.open(path, indexed) as file:
                metadata = pq.read_metadata(file)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(path, error) from error
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        return _Footer(metadata, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)]))

    @contextmanager
    def _open(
        self, path: str, indexed: IndexedVersion | None, footer: _Footer, number: int, **options: Any
    ) -> Iterator[pq.ParquetFile]:
        """Open the file to read its row group `number`. Args: options: options of the reader."""
        # The ranges of an object are fetched together, before they are read. A local file is read directly, so it needs no ranges.
        ranges = () if self._folder.appends else footer.ranges(number, self._columns)
        try:
            with (
                self._folder.open(path, indexed, ranges) as source,
                pq.ParquetFile(
                    source, metadata=footer.metadata, pre_buffer=True, coerce_int96_timestamp_unit="us", **options
                ) as file,
            ):
                yield file
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
        return DataError(f"cannot read {path} as Parquet: {error}; restore the file as it was when it was indexed, {_OR_AGAIN}")


class RowGroupReader(RowGroupFiles[pa.Array]):
    """Reads the payloads of a dataset of Parquet files."""

    def __init__(
        self, paths: PathTable, folder: FileSystem, columns: Sequence[str], cache_bytes: int, types: Sequence[str] = ()
    ) -> None:
        """Args: columns: columns that make up the payload, in this order. cache_bytes: largest number of payload bytes that are cached. types: types
        to which the columns are converted; empty: the columns keep the types of each file."""
        super().__init__(paths, folder, columns)
        self._types, self._kinds = types, list(map(type_of, types))
        self.cache_bytes = cache_bytes
        self._groups = LRUCache[pa.Array](cache_bytes, lambda group: int(group.nbytes))

    def gather(self, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int) -> tuple[UInt8Array, Int64Array]:
        """See `RecordReader.gather`; `offsets` are rows of the files. Raises DataError if a row is missing or its payload has another length."""
        if not len(file_ids):
            return np.zeros(0, np.uint8), np.zeros(1, np.int64)
        # Rows are sorted by file and row, so that each row group is opened once for all its rows.
        order = np.lexsort((offsets, file_ids))
        parts = list(self._parts(file_ids[order], offsets[order]))
        if len({part.type for part in parts}) > 1:
            parts = [part.cast(pa.large_binary()) for part in parts]
        found = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        if np.any(order[1:] < order[:-1]):
            found = found.take(pa.array(_inverse(order)))
        data, bounds = joined(found)
        if len(wrong := np.flatnonzero(np.diff(bounds) != lengths)):
            at = int(wrong[0])
            raise DataError(
                f"{self._paths[int(file_ids[at])]}, row {offsets[at]}: the payload has another length than when it was indexed; the file "
                f"was rewritten: restore it, {_OR_AGAIN}"
            )
        return data, bounds

    def _of_group(
        self, key: _Version, indexed: IndexedVersion | None, footer: _Footer, number: int, rows: Int64Array
    ) -> pa.Array:
        group = self._groups.get((*key, number), partial(self._read_group, key[0], indexed, footer, number))
        return group.take(pa.array(rows))

    def _read_group(self, path: str, indexed: IndexedVersion | None, footer: _Footer, number: int) -> pa.Array:
        with self._open(path, indexed, footer, number) as file:
            table = file.read_row_group(number, columns=self._columns)
            # Usually the file has the wanted types, and this comparison is much faster than a cast.
            types = () if [table.field(name).type for name in self._columns] == self._kinds else self._types
            check_types(path, table.schema, self._columns, types)
            for name in self._columns:
                if table.column(name).null_count:
                    raise DataError(
                        f"{path}: column '{name}' has nulls that were not there when it was indexed; restore the file, {_OR_AGAIN}"
                    )
            return payloads_of(table, self._columns, types)


class RowGroupColumn(RowGroupFiles[Int64Array]):
    """Reads the values of one column of Parquet files, a limited number of rows at once. Rows of a file without the column have no value."""

    def __init__(self, paths: PathTable, folder: FileSystem, column: str, encoder: ValueEncoder) -> None:
        """Args: paths, folder: as for `RowGroupFiles`. encoder: numbers the values."""
        super().__init__(paths, folder, [column])
        self._column, self._encoder = column, encoder

    def gather(self, file_ids: UInt32Array, rows: Int64Array) -> Int64Array:
        """Return the numbers of the values of rows, int64 (n,), in the requested order. Raises: ConfigError: the values cannot be encoded.
        DataError.
        """
        order = np.lexsort((rows, file_ids))
        found = np.concatenate([np.zeros(0, np.int64), *self._parts(file_ids[order], rows[order])])
        numbers: Int64Array = found[_inverse(order)]
        return numbers

    def names(self, file_id: int) -> list[str]:
        """Return the names of the columns of a file. Raises: DataError: the file cannot be read."""
        footer = self._read_footer(self._paths[file_id], IndexedVersion.of(self._paths, file_id))
        names: list[str] = footer.metadata.schema.to_arrow_schema().names
        return names

    def _of_group(
        self, key: _Version, indexed: IndexedVersion | None, footer: _Footer, number: int, rows: Int64Array
    ) -> Int64Array:
        schema, column, done, found = footer.metadata.schema.to_arrow_schema(), self._column, 0, [np.zeros(0, np.int64)]
        if not (places := schema.get_all_field_indices(column)):
            return np.full(len(rows), -1, np.int64)
        kind = schema.field(places[0]).type
        if len(places) > 1 or pa.types.is_nested(kind):
            what = "has two of that name" if len(places) > 1 else f"has the type {kind}, not a single value"
            raise ConfigError(f"the column '{column}' of {key[0]} {what}; choose another column")
        chunk = footer.chunk(number, column)
        # With a dictionary, a repeated value is in memory once. Without a dictionary, it may be copied for each row, so few rows are read at once.
        packed = set(chunk.encodings) <= READ_AS_DICTIONARIES
        at_once = (
            _COLUMN_ROWS if packed else min(_COLUMN_ROWS, max(1, _COLUMN_BYTES // max(1, int(chunk.total_uncompressed_size))))
        )
        texts = [column] if packed and is_bytes(kind) else []
        with self._open(key[0], indexed, footer, number, read_dictionary=texts) as file:
            for batch in file.iter_batches(at_once, row_groups=[number], columns=[column]):
                start, stop = np.searchsorted(rows, [done, done + len(batch)])
                if start < stop:
                    found.append(self._encoder.numbers_of_array(batch.column(0).take(pa.array(rows[start:stop] - done))))
                done += len(batch)
        return np.concatenate(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Footer:
    """`first_rows`: int64 (row groups + 1,), the first row of each group and the number of all rows."""

    metadata: pq.FileMetaData
    first_rows: Int64Array

    def chunk(self, number: int, column: str) -> pq.ColumnChunkMetaData:
        """Return the metadata of a column in a row group. The row group must have the column."""
        group = self.metadata.row_group(number)
        return next(chunk for chunk in map(group.column, range(group.num_columns)) if chunk.path_in_schema == column)

    def ranges(self, number: int, columns: Sequence[str]) -> list[tuple[int, int]]:
        """Return the ranges [start, stop) of bytes that `columns` have in a row group."""
        group = self.metadata.row_group(number)
        chunks = (group.column(i) for i in range(group.num_columns))
        found = []
        for chunk in chunks:
            if chunk.path_in_schema in columns:
                start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)), default=0)
                found.append((start, start + chunk.total_compressed_size))
        return found


def _runs(values: UInt32Array | Int64Array) -> Iterator[tuple[int, int]]:
    """Return the ranges [start, stop) of equal neighbours."""
    edges = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
    return pairwise(edges)


def _inverse(order: Int64Array) -> Int64Array:
    """Return the permutation that undoes `order`: int64 (n,)."""
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return back


class LRUCache(Generic[T]):
    """Keeps the last used values, up to a total size. Each value is made once, even if several threads request the value at the same time."""

    def __init__(self, limit: int, size_of: Callable[[T], int]) -> None:
        """Args: limit: largest sum of the sizes of all values. size_of: returns the size of a value in the unit of `limit`; called with the lock
        held. The size of a value must not change.
        """
        self._limit, self._size_of = limit, size_of
        self._lock = threading.Lock()
        """Protects the table and the size. The lock is not held while a value is made, so that other values can be used meanwhile."""
        self._found: OrderedDict[Hashable, Future[T]] = OrderedDict()
        self._size = 0

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of `key`. If there is no value, `make` is called once. An error of `make` is raised in all threads that wait for the
        value.
        """
        with self._lock:
            future = self._found.get(key)
            if future is not None:
                self._found.move_to_end(key)
            else:
                mine = self._found[key] = Future()
        if future is not None:
            # The lock is not held during this wait. The wait ends when `make` returns or raises in the thread that requested the value first.
            return future.result()
        try:
            made = make()
        except BaseException as error:
            with self._lock:
                # The failed entry is removed first, so that a thread that asks after the error tries again.
                del self._found[key]
            mine.set_exception(error)
            raise
        with self._lock:
            mine.set_result(made)
            self._size += self._size_of(made)
            while self._size > self._limit:
                # A value that is still being made has no size yet, so it is not removed.
                oldest = next(old for old, future in self._found.items() if future.done())
                self._size -= self._size_of(self._found.pop(oldest).result())
        return made

    def forget(self, key: Hashable) -> None:
        """Remove the value of `key`, so that the next `get` makes it again. A value that is being made stays."""
        with self._lock:
            future = self._found.get(key)
            if future is not None and future.done():
                self._size -= self._size_of(self._found.pop(key).result())
