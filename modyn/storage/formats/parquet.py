"""Parquet: a row is a sample. The payload of a sample is the bytes of one column, or numeric columns packed one after the other.

A row has no byte range of its own. The index has the number of the row instead, and payloads are read by row groups (`read/row_groups.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import BinaryIO, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, field_validator, model_validator

from modyn.errors import DataError
from modyn.json_codec import sanitize
from modyn.records import Int64Array, LabelArray
from modyn.storage.files.local import LocalFiles, open_native
from modyn.storage.formats.arrow_times import have_unit, holds_times, times_of
from modyn.storage.formats.base import FormatConfig, FormatResume, OpenedFile, RangedFormat, RowGroups
from modyn.storage.formats.json_fields import ROUNDED
from modyn.storage.formats.parquet_types import TypedColumns, is_bytes, is_number, is_text, type_name, type_of
from modyn.storage.model.samples import IndexedSamples, UInt8Array
from modyn.storage.model.schema import DatasetSchema, SchemaColumn, listed

MAX_GROUP_BYTES = 2**31 - 1
"""Largest number of payload bytes in one row group, because a row group is read at once. An Arrow array cannot contain more bytes of a column."""
_SHORT_BYTES = 64
"""If a column has at most this mean number of bytes per row, its values are short or repeated, and its dictionary is examined."""
_ENCODINGS_OF_EACH_VALUE = {"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"}
"""Encodings in which a decompressed page contains the bytes of every value. With other encodings, a value may be stored once and repeated."""
_ENCODINGS_BY_DICTIONARY = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
READ_AS_DICTIONARIES = _ENCODINGS_OF_EACH_VALUE | _ENCODINGS_BY_DICTIONARY
"""Encodings that Arrow reads as dictionaries. In a dictionary, a repeated value is in memory once."""
INT96: Final = {"coerce_int96_timestamp_unit": "s"}
"""Option of a `ParquetFile` to read INT96 as seconds. Seconds in int64 cover all days of INT96. Nanoseconds would silently wrap around before 1677
and after 2262."""
_MAX_TIME_BYTES = 100
"""Largest number of bytes of a time that is text."""


class ParquetConfig(FormatConfig):
    """Options of `ParquetFileWrapper`."""

    payload_columns: list[str] = Field(min_length=1)
    """One column of bytes or text, whose values are the payloads; or columns of numbers, which are packed little-endian in this order."""
    payload_types: dict[str, str] = Field(default_factory=dict)
    """Arrow types of payload columns by name, e.g. {age: float64}; default: the types in the first file. Files with other types are converted if no
    value changes (int32 to int64, int64 to float64), and refused otherwise."""
    label_column: str = Field(min_length=1)
    """Column of the label."""
    file_extension: str = ".parquet"
    """Ending of the names of files with samples."""

    @field_validator("payload_columns")
    @classmethod
    def _once_each(cls, names: list[str]) -> list[str]:
        if len(set(names)) < len(names):
            raise ValueError(f"a column is named twice in payload_columns: {names}")
        return names

    @model_validator(mode="after")
    def _types_of_payloads(self) -> ParquetConfig:
        for name, kind in self.payload_types.items():
            if name not in self.payload_columns:
                raise ValueError(f"payload_types names the column '{name}', and payload_columns does not")
            type_of(kind)
        return self


class ParquetFormat(RangedFormat):
    """Rows of flat columns, without nulls in the used columns. Reads in random order are fastest with row groups of a few megabytes."""

    Config: ClassVar[type[ParquetConfig]] = ParquetConfig
    config: ParquetConfig
    offsets_name = "row"
    has_classes = True
    row_times = (r"(?s)column:(?!\d+$)(.+)", "a ParquetFileWrapper allows '', 'name:REGEX', 'column:NAME'")
    batch_bytes = 64 << 20
    """Approximate number of bytes of rows that are in memory at once."""
    max_group_bytes = MAX_GROUP_BYTES
    _last: tuple[DatasetSchema | None, pa.Schema, TypedColumns] | None = None
    """The newest conversion of columns, with the schemas of dataset and file. The next file reuses this conversion, because most files have the
    schema of the previous file."""

    def payload_reader(self) -> RowGroups:
        """Return the reader of `payload_columns` in the row groups."""
        types = tuple(column.type for column in self.schema.columns) if self.schema else ()
        return RowGroups(tuple(self.config.payload_columns), types)

    @property
    def decides_schema(self) -> bool:
        """Return True: the first file decides the schema of all files."""
        return True

    def schema_in(self, path: str, file: BinaryIO) -> DatasetSchema:
        """Return the payload columns and their types, see `FileFormat.schema_in`."""
        with readable(path):
            return self._schema_of(path, pq.read_schema(file))

    def declared(self, schema: DatasetSchema) -> DatasetSchema:
        """Return the schema with the types of the option `payload_types`."""
        types = self.config.payload_types
        columns = tuple(SchemaColumn(column.name, types.get(column.name, column.type)) for column in schema.columns)
        return replace(schema, columns=columns)

    def _schema_of(self, path: str, found: pa.Schema) -> DatasetSchema:
        self._check_schema(path, found)
        columns = (SchemaColumn(name, type_name(found.field(name).type)) for name in self.config.payload_columns)
        return self.declared(DatasetSchema("values", tuple(columns)))

    def column(self, name: str) -> RowGroups:
        """Return the reader of a column of the row groups."""
        return RowGroups((name,))

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """See `FileFormat.index`. Payloads are not read if their length is fixed and the metadata exclude nulls.

        A repeated value may be stored once, so a few bytes can expand to gigabytes. Therefore columns with repeated bytes or texts are read as
        dictionaries, or a few rows at a time. A row group whose payloads are too large for a reader is refused.
        """
        with readable(path):
            status = os.stat(path)
            with open_native(path, self.roots) as source:
                yield from self.index_opened(OpenedFile(path, status.st_size, status.st_mtime_ns, source))

    def index_opened(self, file: OpenedFile) -> Iterator[IndexedSamples]:
        """See `RangedFormat.index_opened`. The method reads the footer, and the parts of the columns that `index` needs."""
        path, source = file.path, file.source
        with readable(path):
            shared = self.file_time(path, file.mtime_ns)
            metadata = read_footer(file)
            payload, schema = self.config.payload_columns, metadata.schema.to_arrow_schema()
            typed = self._typed(path, schema)
            # Texts may repeat, so they are read as dictionaries.
            used = [*self._time_column(), *([self.config.label_column] if self.names_classes else [])]
            used_texts = [name for name in used if is_text(schema.field(name).type)]
            typed_times = any(have_unit(schema.field(name).type) for name in self._time_column())
            texts, fixed = typed.texts, typed.num_bytes

            # There are at most two readers: one reads texts as dictionaries, one reads each text in full.
            @cache
            def reader(*, unpacked: bool) -> pq.ParquetFile:
                dictionaries = used_texts if unpacked else [*texts, *used_texts]
                return pq.ParquetFile(source, metadata=metadata, read_dictionary=dictionaries, **INT96)

            # Payloads are not read if lengths are known and no value is null.
            unread = fixed is not None and _certainly_without_nulls(metadata, payload)
            read = typed.inexact if unread else payload
            columns = list(dict.fromkeys([self.config.label_column, *read, *self._time_column()]))
            groups = _GroupSizes(path, metadata, payload, self.max_group_bytes)
            groups.add(0, fixed, metadata.num_rows)
            first = 0
            rows_at_once = self._rows_at_once(metadata, columns, fixed)
            # Neighbouring row groups that can be read in the same way are read together.
            alike = groupby(
                range(metadata.num_row_groups),
                lambda i: min(rows_at_once, self._unpacked_at_once(metadata, i, texts[0], reader)) if texts else 0,
            )
            batches = (
                batch
                for rows, numbers in alike
                for batch in reader(unpacked=rows > 0).iter_batches(
                    rows or rows_at_once, row_groups=list(numbers), columns=columns
                )
            )
            for batch in batches:
                # A null is a missing payload, label or time, so it is refused, and the error names the row.
                for name in columns:
                    _refuse_null(path, first, name, batch.column(name))
                typed.refuse_inexact(path, first, batch)
                sizes = fixed if fixed is not None else _lengths_of_bytes(batch.column(payload[0]))
                groups.add(first, None if fixed is not None else sizes, len(batch))
                times = shared if shared is not None else self._times(path, first, batch)
                classes, labels = self._labels(path, first, batch.column(self.config.label_column))
                offsets = np.arange(first, first + len(batch), dtype=np.int64)
                # A file is indexed as a whole, so every chunk has the end of the file.
                yield IndexedSamples(
                    offsets, sizes, labels, times, file.size, schema=typed.schema, typed_times=typed_times, classes=classes
                )
                first += len(batch)

    def _typed(self, path: str, found: pa.Schema) -> TypedColumns:
        """Return the conversion of the payload columns of a file with the columns `found`. Raises: DataError: the columns cannot be used, or cannot
        be read with the types of the dataset."""
        if self._last is None or self._last[0] is not self.schema or not self._last[1].equals(found):
            decided = self._schema_of(path, found)
            self._last = self.schema, found, TypedColumns(path, found, self.schema or decided)
        return self._last[2]

    def _unpacked_at_once(self, metadata: pq.FileMetaData, group: int, name: str, reader: Callable[..., pq.ParquetFile]) -> int:
        """Return the number of rows of a column of bytes or text that can be read at once without a dictionary; 0: read the column as a dictionary.
        A read without a dictionary is several times faster if values are short, or if the file stores each value in full."""
        found = metadata.row_group(group)
        columns = (found.column(i) for i in range(found.num_columns))
        column = next(column for column in columns if column.path_in_schema == name)
        encodings = set(column.encodings)
        if encodings <= _ENCODINGS_OF_EACH_VALUE:
            return self.chunk_rows
        if not encodings <= READ_AS_DICTIONARIES:
            # A repeated value is at most as large as the column.
            return max(1, self.batch_bytes // max(1, int(column.total_uncompressed_size)))
        if not found.num_rows or column.total_uncompressed_size / found.num_rows > _SHORT_BYTES:
            return 0
        # The dictionary precedes the rows, so reading the first row reads the whole dictionary.
        first = next(reader(unpacked=False).iter_batches(1, row_groups=[group], columns=[name])).column(0)
        longest = int(np.max(lengths(first.dictionary), initial=0))
        return self.chunk_rows if int(found.num_rows) * longest <= self.batch_bytes else 0

    def _rows_at_once(self, metadata: pq.FileMetaData, columns: list[str], fixed: int | None) -> int:
        """Return the number of rows that have about `batch_bytes` bytes in `columns`, in the row group with the widest rows."""
        wanted = [i for i in range(len(metadata.schema)) if metadata.schema.column(i).path in columns]
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        row_bytes = [sum(group.column(i).total_uncompressed_size for i in wanted) / max(1, group.num_rows) for group in groups]
        return min(self.chunk_rows, max(1, int(self.batch_bytes / max(1.0, fixed or 0, *row_bytes))))

    def _time_column(self) -> list[str]:
        return [self.time_place[1]] if self.time_place else []

    def _check_schema(self, path: str, schema: pa.Schema) -> None:
        """Check the columns of a file. Raises DataError if a column is missing or has a type that cannot be used."""
        payload = self.config.payload_columns
        for name in [*payload, self.config.label_column, *self._time_column()]:
            found = schema.get_all_field_indices(name)
            if len(found) != 1:
                raise DataError(f"{path} has {len(found) or 'no'} columns '{name}'; its columns are {listed(schema.names)}")
        known = {column.name: column.type for column in self.schema.columns} if self.schema else {}
        for name in payload:
            kind = schema.field(name).type
            if not is_number(kind) and not (len(payload) == 1 and is_bytes(kind)):
                expected = f", not {known[name]} as in its dataset," if known.get(name) else ""
                raise DataError(
                    f"{path}: column '{name}' is of type {kind}{expected} and cannot be {'the payload' if len(payload) == 1 else 'packed'}; "
                    f"a payload is one column of bytes or text, or columns of numbers, none of them nested"
                )
        for name in self._time_column():
            kind = schema.field(name).type
            if not holds_times(kind):
                raise DataError(
                    f"{path}: column '{name}' is of type {kind}, which holds no times; write timestamps, dates, whole numbers, float64 or text"
                )
        kind = schema.field(self.config.label_column).type
        of_texts = kind.value_type if pa.types.is_dictionary(kind) else kind
        is_class = self.names_classes and of_texts in (pa.string(), pa.large_string())
        if not (pa.types.is_integer(kind) or is_class or (self.float_labels and pa.types.is_floating(kind))):
            wanted = {"float": "numbers", "int": "whole numbers", "class": "texts or whole numbers"}[self.config.label_type]
            raise DataError(f"{path}: labels are {wanted}, but column '{self.config.label_column}' is of type {kind}")

    def _classes(self, path: str, first: int, column: pa.Array) -> tuple[tuple[str, ...], Int64Array]:
        found = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        try:
            names = tuple(map(sanitize, found.dictionary.cast(pa.string()).to_pylist()))
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: the labels in column '{self.config.label_column}' are not UTF-8: {error}; write them again"
            ) from error
        codes = found.indices.to_numpy().astype(np.int64)
        for code in (code for code, name in enumerate(names) if not name):
            for row in np.flatnonzero(codes == code)[:1].tolist():
                raise DataError(
                    f"{path}, row {first + row}: the label in column '{self.config.label_column}' is empty, and it names a class"
                )
        return names, codes

    def _labels(self, path: str, first: int, column: pa.Array) -> tuple[tuple[str, ...], LabelArray]:
        """Return the labels. If they name classes, return the names, and the position of each label in them."""
        if self.names_classes:
            return self._classes(path, first, column)
        kind = pa.float64() if self.float_labels else pa.int64()
        try:
            labels: LabelArray = column.cast(kind, safe=not self.float_labels).to_numpy()
            # From 2^53 on, float64 does not represent every whole number.
            if self.float_labels and pa.types.is_integer(column.type) and (np.abs(labels) >= 2.0**53).any():
                self._refuse_rounded(path, first, column, labels)
        except pa.ArrowInvalid as error:
            row, value = next((row, value) for row, value in enumerate(column.to_pylist(), first) if value >= 2**63)
            raise DataError(
                f"{path}, row {row}: the label in column '{self.config.label_column}' '{value}' is out of the range of {kind}; correct it"
            ) from error
        return (), labels

    def _refuse_rounded(self, path: str, first: int, column: pa.Array, labels: LabelArray) -> None:
        """Raise DataError if float64 does not represent a whole number exactly."""
        for row, (exact, label) in enumerate(zip(column.to_pylist(), labels.tolist(), strict=True), first):
            if exact != int(label):
                raise DataError(f"{path}, row {row}: the label in column '{self.config.label_column}' '{exact}' {ROUNDED}")

    def _times(self, path: str, first: int, batch: pa.RecordBatch) -> Int64Array:
        (name,) = self._time_column()
        column = batch.column(name)
        if is_text(column.type.value_type if pa.types.is_dictionary(column.type) else column.type):
            _refuse_long(path, first, name, column)
        found = times_of(column, self.times)
        if found.first_bad >= 0:
            raise DataError(f"{path}, row {first + found.first_bad}: the time in column '{name}' {found.reason}")
        return found.seconds


def _refuse_long(path: str, first: int, name: str, texts: pa.Array) -> None:
    """Raise DataError if a text is too long to be a time, because the text may expand to gigabytes."""
    sizes = _lengths_of_bytes(texts)
    if len(long := np.flatnonzero(np.broadcast_to(sizes, len(texts)) > _MAX_TIME_BYTES)):
        raise DataError(
            f"{path}, row {first + int(long[0])}: the time in column '{name}' has more than {_MAX_TIME_BYTES} bytes; correct the row"
        )


def _lengths_of_bytes(column: pa.Array) -> Int64Array | int:
    """Return the number of bytes of each value of a column of bytes or text without nulls. Dictionaries are not expanded."""
    if not pa.types.is_dictionary(column.type):
        return lengths(column)
    values = column.dictionary
    if pa.types.is_fixed_size_binary(values.type):
        return int(values.type.byte_width)
    of_values = lengths(values)
    assert not isinstance(of_values, int)
    sizes: Int64Array = of_values[column.indices.to_numpy()]
    return sizes


class _GroupSizes:
    """Sums the payload bytes of each row group. Raises DataError if a row group has more than `limit` bytes."""

    def __init__(self, path: str, metadata: pq.FileMetaData, payload: Sequence[str], limit: int) -> None:
        self._path, self._limit = path, limit
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        self._ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
        self._bytes = np.zeros(len(groups), np.int64)
        wanted = [i for i in range(len(metadata.schema)) if metadata.schema.column(i).path in payload]
        # The decompressed size is checked too, because a reader always decompresses whole pages.
        self._check(np.array([sum(group.column(i).total_uncompressed_size for i in wanted) for group in groups], np.int64))

    def add(self, first: int, sizes: Int64Array | int | None, num_rows: int) -> None:
        """Add the payloads of `num_rows` rows from row `first` on: int64 (num_rows,), or one size for all; None: add nothing."""
        if sizes is None:
            return
        begin, group = 0, int(np.searchsorted(self._ends, first, side="right"))
        # A batch may have rows of several row groups.
        while begin < num_rows:
            end = min(num_rows, int(self._ends[group]) - first)
            self._bytes[group] += sizes * (end - begin) if isinstance(sizes, int) else sizes[begin:end].sum()
            begin, group = end, group + 1
        self._check(self._bytes)

    def _check(self, sizes: Int64Array) -> None:
        if len(sizes) and sizes.max() > self._limit:
            raise DataError(
                f"{self._path}: row group {sizes.argmax()} holds {sizes.max()} bytes of payloads once it is unpacked, and a row group is read as "
                f"a whole: write the file with row groups of at most {self._limit} bytes, better of some megabytes"
            )


def _refuse_null(path: str, first: int, name: str, column: pa.Array) -> None:
    if column.null_count:
        row = first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{path}, row {row}: column '{name}' is null; fill it or leave the row out")


def _certainly_without_nulls(metadata: pq.FileMetaData, columns: list[str]) -> bool:
    """Whether the statistics of the file exclude nulls in all of these columns."""
    leaves = [(i, metadata.schema.column(i)) for i in range(len(metadata.schema))]
    nullable = [i for i, leaf in leaves if leaf.path in columns and leaf.max_definition_level]
    found = (metadata.row_group(group).column(i).statistics for i in nullable for group in range(metadata.num_row_groups))
    # If a file lacks statistics, its values are read and checked.
    return all(statistics is not None and statistics.has_null_count and not statistics.null_count for statistics in found)


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Convert errors of Arrow and the system to errors of `modyn.errors`. A MemoryError is not converted, so that the file is tried again.

    Raises: DataError: the file is not a Parquet file, or cannot be read. UnavailableError: trying again may help.
    """
    try:
        yield
    except MemoryError:  # Arrow's MemoryError is an ArrowException too.
        raise
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise LocalFiles("").read_error(path, error) from error
        # An OSError without a number comes from Arrow, and means that the file is damaged.
        raise DataError(f"{path} cannot be read as Parquet: {error}; write the file again") from error


def lengths(values: pa.Array) -> Int64Array | int:
    """Return the number of bytes of each value of a column of bytes or text without nulls, int64 (n,); one int if the type fixes the length."""
    if pa.types.is_fixed_size_binary(values.type):
        return int(values.type.byte_width)
    ends = _ends(values)
    return np.subtract(ends[1:], ends[:-1], dtype=np.int64)


def joined(values: pa.Array) -> tuple[UInt8Array, Int64Array]:
    """Return all bytes of the payloads that `payloads_of` made, uint8, and the bounds of each payload in these bytes: int64 (n + 1,). The bytes are
    not copied."""
    data = np.frombuffer(values.buffers()[-1] or b"", np.uint8)
    if pa.types.is_fixed_size_binary(values.type):
        width, first, count = values.type.byte_width, values.offset, len(values)
        return data[first * width : (first + count) * width], np.arange(count + 1, dtype=np.int64) * width
    ends = _ends(values)
    return data[ends[0] : ends[-1]], (ends - ends[0]).astype(np.int64, copy=False)


def _ends(values: pa.Array) -> Int64Array | npt.NDArray[np.int32]:
    """Return the bounds of the values in their bytes, (n + 1,): int64 for large types, int32 for others, without a copy."""
    kind = np.dtype(np.int64 if pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type) else np.int32)
    if not len(values):
        return np.zeros(1, kind)
    return np.frombuffer(values.buffers()[1], kind, len(values) + 1, kind.itemsize * values.offset)


def payloads_of(rows: pa.Table | pa.RecordBatch, columns: Sequence[str], types: Sequence[str] = ()) -> pa.Array:
    """Make the payloads of `rows` from `columns`. The columns have types that the format accepts, and no nulls.

    Args: types: types to which numbers are cast; empty: numbers keep their types.
    Returns: large_binary or fixed_size_binary, without nulls.
    """
    first = rows.column(columns[0])
    if is_bytes(first.type):
        array = first.combine_chunks() if isinstance(first, pa.ChunkedArray) else first
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        # The payloads get offsets of 64 bits, because all payloads together may have more than 2 GiB.
        return array if pa.types.is_fixed_size_binary(array.type) else array.cast(pa.large_binary())
    numbers = [rows.column(name) for name in columns]
    numbers = [column.cast(type_of(kind)) for column, kind in zip(numbers, types, strict=True)] if types else numbers
    parts = [np.ascontiguousarray(column.to_numpy()).view(np.uint8).reshape(len(rows), -1) for column in numbers]
    packed = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    width = packed.shape[1]
    return pa.Array.from_buffers(pa.binary(width), len(rows), [None, pa.py_buffer(packed)])


_READ_AHEAD = 1 << 16
"""Number of bytes at the end of a file that are read first. Arrow reads the same number."""
_SIGNATURE_BYTES = 28
"""Size of the signature at the end of a readable footer in a file with encrypted columns."""


def read_footer(file: OpenedFile) -> pq.FileMetaData:
    """Read the metadata of a file, with as many requests as Arrow makes.

    Raises: DataError: the file is encrypted, wholly or in some columns. OSError, pa.ArrowException: also if the file does not end with a footer.
    """
    tail = _last_bytes(file, _READ_AHEAD)
    encrypted = DataError(
        f"{file.path} is encrypted Parquet, wholly or in some columns, and Modyn has no keys; write it again without encryption"
    )
    # An encrypted footer ends with another mark than a readable footer.
    if tail.endswith(b"PARE"):
        raise encrypted
    length = int.from_bytes(tail[-8:-4], "little")
    if not tail.endswith(b"PAR1") or not 0 < length <= file.size - 12:
        return pq.read_metadata(file.source)  # Arrow raises an error with the reason.
    # The footer is longer than the bytes that were read at first.
    if len(tail) < length + 8:
        tail = _last_bytes(file, length + 8)
    metadata = pq.ParquetFile(pa.BufferReader(tail[-length - 8 :])).metadata
    # If columns are encrypted, a readable footer has a signature after its metadata.
    if length == metadata.serialized_size + _SIGNATURE_BYTES:
        raise encrypted
    return metadata


def _last_bytes(file: OpenedFile, size: int) -> bytes:
    file.source.seek(max(0, file.size - size))
    found: bytes = file.source.read(min(file.size, size))
    return found
