"""Reads CSV rows from files with any order of columns, and returns their fields in the order of the dataset's columns."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np

from modyn import _core
from modyn._core import FileChangedError, PathTable
from modyn.errors import DataError
from modyn.records import Int64Array
from modyn.storage.files.file_system import FileSystem, IndexedVersion, changed
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats.base import FileFormat, RowOrder
from modyn.storage.model.samples import RecordReader, UInt8Array, UInt32Array

_UNKNOWN, _AS_IT_IS = -1, 0
"""Special numbers of a file's order. _UNKNOWN: the first line of the file was not read yet. _AS_IT_IS: the file has the order of the dataset, so the
rows are not changed."""


class OrderedRowReader:
    """A thread-safe `RecordReader` that reads rows with `rows`, and then arranges the fields in the order of the schema. The first line of each file
    defines the order of its columns. This line is read once, before the first row of the file."""

    def __init__(self, rows: RecordReader, file_format: FileFormat, folder: FileSystem, paths: PathTable) -> None:
        """Args: file_format: format with the schema set. folder: file system of the files. paths: full path of each file id."""
        self._rows, self._format, self._folder, self._paths = rows, file_format, folder, paths
        self._lock = threading.Lock()
        # Protects changes of the two fields below, and lets only one thread read first lines. The fields are read without the lock: each change
        # assigns a new object, and an order is added to `_orders` before a file gets the number of the order.
        self._orders: list[RowOrder | None] = [None]
        self._of_files = np.empty(0, np.int32)
        """File id → number of its order in `_orders`, or _UNKNOWN."""

    def gather(self, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int) -> tuple[UInt8Array, Int64Array]:
        """See `RecordReader.gather`. Further errors: DataError: a file has other columns than the schema, or a row has another number of fields."""
        data, bounds = self._rows.gather(file_ids, offsets, lengths)
        numbers = self._numbers(file_ids)
        for number in np.unique(numbers[numbers != _AS_IT_IS]).tolist():
            order = self._orders[number]
            assert order is not None, "only files in the order of the dataset have none"
            rows = np.flatnonzero(numbers == number)
            wrong = _core.reorder_fields(data, bounds, rows, np.array(order.fields, np.int64), order.separator, order.quote)
            if wrong is not None:
                row, found = wrong
                raise DataError(
                    f"{self._paths[int(file_ids[row])]}, the row at byte {offsets[row]}: it has {found} fields, and the first line of the file names "
                    f"{len(order.fields)} columns, in another order than that of the dataset; delete the sample"
                )
        return data, bounds

    def _numbers(self, file_ids: UInt32Array) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Return the number of each file's order, int32 (n,), and read the first line of files with an unknown order."""
        known = self._of_files
        if len(file_ids) and int(file_ids.max()) < len(known) and (found := known[file_ids]).min() > _UNKNOWN:
            return found
        with self._lock:
            known = np.full(max(len(self._of_files), len(self._paths)), _UNKNOWN, np.int32)
            known[: len(self._of_files)] = self._of_files
            for file_id in np.unique(file_ids).tolist():
                if known[file_id] == _UNKNOWN:
                    # Only the first lines of files that this call needs are read.
                    known[file_id] = self._number(self._read(file_id))
            self._of_files = known
        return known[file_ids]

    def _number(self, order: RowOrder | None) -> int:
        if order not in self._orders:
            self._orders = [*self._orders, order]
        return self._orders.index(order)

    def _read(self, file_id: int) -> RowOrder | None:
        with beginning_of(self._folder, self._paths, file_id) as file:
            return self._format.row_order(self._paths[file_id], file)


@contextmanager
def beginning_of(folder: FileSystem, paths: PathTable, file_id: int) -> Iterator[BinaryIO]:
    """Open an indexed file at its beginning, to read its first line. Raises: DataError: the file cannot be read. FileChangedError."""
    path, copy = paths[file_id], paths.copy(file_id)
    folder = folder if copy is None else LocalFiles("")  # For a compressed file, the unpacked copy is read.
    try:
        with (
            folder.reading(path),
            folder.open(copy or path, IndexedVersion.of(paths, file_id)) as source,
            io.BufferedReader(source) as file,
        ):
            yield file
    except FileChangedError as error:
        raise changed(path, 0, "its first line") from error
