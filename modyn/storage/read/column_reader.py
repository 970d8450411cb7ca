"""Reads the values of a column from the files of samples, by key, and checks that the column exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from modyn.errors import ConfigError, DataError
from modyn.records import Int64Array
from modyn.registry import nearest
from modyn.storage.files.file_system import FileSystem
from modyn.storage.formats import FILE_FORMATS, REGISTRY, build_format
from modyn.storage.formats.base import FileFormat, RowColumn, RowGroups
from modyn.storage.model.dataset_records import ColumnValues
from modyn.storage.model.samples import UInt32Array
from modyn.storage.model.schema import listed
from modyn.storage.read.column_values import ValueEncoder
from modyn.storage.read.payload_reader import LocatedSamples, locate
from modyn.storage.read.row_order import beginning_of
from modyn.storage.read.snapshot import DatasetSnapshot

KEYS_AT_ONCE = 65_536
"""Largest number of samples that are looked up at once."""
BYTES_AT_ONCE = 32 << 20
"""Approximate number of bytes of rows that are read at once. At least one row is read."""
LOOKED_AT = 1_000
"""A column is searched in this number of first samples of a dataset, and in the same number of last samples."""


class ColumnReader:
    """Reads the column `column` of a dataset. Only one thread may use the object."""

    def __init__(self, snapshot: Callable[[], DatasetSnapshot], folder: FileSystem, column: str) -> None:
        """Args: snapshot: returns the newest snapshot of the dataset. folder: folder of the dataset's files.

        Raises: ConfigError: the dataset's format has no columns, or no column can have this name.
        """
        self._snapshot, self._folder, self._column = snapshot, folder, column
        config = snapshot().config
        self._where = f"dataset '{config.name}'"
        try:
            declared = build_format(config.file_wrapper, config.file_wrapper_config, config.timestamp_source).column(column)
        except ConfigError as error:
            raise ConfigError(f"{self._where}: {error.message}") from error
        if declared is None:
            with_columns = [id_ for id_ in FILE_FORMATS if REGISTRY.get(id_).column is not FileFormat.column]
            raise ConfigError(
                f"{self._where} is of the format {config.file_wrapper}, whose samples have no columns, so '{column}' cannot be read; choose a "
                f"strategy without a column, such as LabelBalanced, or register the data in one of the formats {', '.join(with_columns)}"
            )
        self._declared: RowColumn | RowGroups = declared

    def check(self) -> None:
        """Check that one of the first or the last LOOKED_AT samples has the column, and that its values can be encoded. Without samples, nothing is
        checked.

        Raises: ConfigError: no sample has the column (the message names the most similar column), or a value cannot be encoded. DataError: samples
        cannot be read.
        """
        names = dict[str, None]()
        for keys in self._looked_at():
            names |= dict.fromkeys(self._names(keys))
            if self._column in names:
                for _ in self.values(keys):
                    pass  # Encoding checks the types of the values.
                return
        if not names:
            return
        # The message does not show the names of a first line, because any text file can be read as CSV, and its first line may contain a secret.
        there = "" if isinstance(self._declared, RowColumn) and self._declared.has_header else f" It has {listed(list(names))}."
        near = nearest(self._column, list(names)) or "."
        raise ConfigError(
            f"{self._where} has no column '{self._column}' in its first and last samples{near}{there} Correct the name of the column"
        )

    def names(self) -> list[str]:
        """Return the names of the columns that the first and the last LOOKED_AT samples have. Raises: DataError: samples cannot be read."""
        return list(dict.fromkeys(self._names(np.union1d(*self._looked_at()))))

    def values(self, keys: Int64Array, identity: str = "") -> Iterator[ColumnValues]:
        """Yield the values of samples in the given order, for at most KEYS_AT_ONCE samples at once. A sample that was deleted or does not have the
        column has no value.

        Args: keys: int64 (n,). identity: identity of the keys' registration; empty: any.
        Raises: ConfigError: a value is not a short text, a number or a time. DataError: a file cannot be read. NotFoundError: the dataset never had
        one of the keys, or is another registration.
        """
        for first in range(0, len(keys), KEYS_AT_ONCE):
            located = locate(self._snapshot, keys[first : first + KEYS_AT_ONCE], "skip", identity)
            encoder, numbers = ValueEncoder(self._column), np.full(min(KEYS_AT_ONCE, len(keys) - first), -1, np.int64)
            try:
                for rows in _parts(located) if isinstance(self._declared, RowColumn) else [slice(0, len(located))]:
                    numbers[located.where[rows]] = self._numbers(located, rows, encoder)
            except ConfigError as error:
                raise ConfigError(f"{self._where}: {error.message}") from error
            yield ColumnValues(encoder.values, numbers)

    def _numbers(self, located: LocatedSamples, rows: slice, encoder: ValueEncoder) -> Int64Array:
        """Return the numbers of the values of some located samples."""
        column = self._declared
        if isinstance(column, RowGroups):
            from modyn.storage.read.row_groups import RowGroupColumn  # Loads pyarrow.parquet, which other formats do not need.

            return located.gather(
                rows,
                lambda now, file_ids, offsets, _: RowGroupColumn(now.paths, self._folder, self._column, encoder).gather(
                    file_ids, offsets
                ),
            )
        found = np.full(len(located.keys[rows]), -1, np.int64)
        for header, chosen, payloads in self._rows(located, rows, column):
            done = 0

            def values(of: Sequence[bytes] = payloads, names: Sequence[str] = header) -> Iterator[object]:
                nonlocal done
                for value in column.values(of, names):
                    yield value
                    done += 1

            try:
                found[chosen] = encoder.numbers(values())
            except ValueError as error:
                raise self._unreadable(int(located.keys[rows][chosen[done]]), error) from error
        return found

    def _unreadable(self, key: int, error: ValueError) -> DataError:
        return DataError(
            f"the columns of the sample with key {key} of {self._where} cannot be read: {error}; delete the sample", key
        )

    def _looked_at(self) -> tuple[Int64Array, Int64Array]:
        """Return the keys of the first and of the last LOOKED_AT samples."""
        now = self._snapshot()
        first = next((batch.keys for batch in now.samples_from(0, LOOKED_AT)), np.zeros(0, np.int64))
        return first, np.arange(max(0, now.index.next_key - LOOKED_AT), now.index.next_key)

    def _names(self, keys: Int64Array) -> Iterator[str]:
        """Yield the names of the columns of samples. A name may occur several times."""
        located, column = locate(self._snapshot, keys, "skip"), self._declared
        if isinstance(column, RowGroups):
            from modyn.storage.read.row_groups import RowGroupColumn

            files = RowGroupColumn(self._snapshot().paths, self._folder, self._column, ValueEncoder(self._column))
            for file_id in np.unique(located.entries.file_ids).tolist():
                yield from files.names(file_id)
            return
        for part in _parts(located):
            for header, _, payloads in self._rows(located, part, column):
                if column.has_header:
                    yield from header
                    continue
                for number, row in enumerate(payloads, part.start):
                    try:
                        yield from column.names(row)
                    except ValueError as error:
                        raise self._unreadable(int(located.keys[number]), error) from error

    def _rows(
        self, located: LocatedSamples, rows: slice, column: RowColumn
    ) -> list[tuple[Sequence[str], Int64Array, list[bytes]]]:
        """Read rows. Returns groups of (header, positions of the rows in `rows`, bytes of the rows). If the column needs headers, there is one group
        for each file, otherwise one group for all rows."""

        def read(
            now: DatasetSnapshot, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int
        ) -> list[tuple[Sequence[str], Int64Array, list[bytes]]]:
            data, bounds = now.reader.gather(file_ids, offsets, lengths)
            payloads = [data[start:stop].tobytes() for start, stop in pairwise(bounds.tolist())]
            if not column.has_header:
                return [((), np.arange(len(payloads)), payloads)]
            order = np.argsort(file_ids, kind="stable")
            of_files = np.split(order, np.flatnonzero(np.diff(file_ids[order])) + 1) if len(order) else []
            return [
                (self._header(now, int(file_ids[chosen[0]]), column), chosen, [payloads[i] for i in chosen.tolist()])
                for chosen in of_files
            ]

        return located.gather(rows, read)

    def _header(self, now: DatasetSnapshot, file_id: int, column: RowColumn) -> Sequence[str]:
        with beginning_of(self._folder, now.paths, file_id) as file:
            names = column.header(now.paths[file_id], file)
        # Rows are read in the order of the schema, unless the file has other columns, because it was indexed before the schema was decided.
        return now.schema.names if now.schema is not None and set(now.schema.names) == set(names) else names


def _parts(located: LocatedSamples) -> list[slice]:
    """Divide samples into ranges. The payloads of a range have about BYTES_AT_ONCE bytes, or more if a single sample is larger."""
    ends = np.cumsum(np.broadcast_to(np.asarray(located.entries.lengths), len(located)))
    edges = np.flatnonzero(np.diff(ends // BYTES_AT_ONCE)) + 1
    return [slice(start, stop) for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(located)], strict=True)]
