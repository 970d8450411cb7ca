"""JSON Lines: a line is a sample. Its payload is the line's bytes without the line break; a field of its object is the label.

Blocks of lines are parsed at once by Arrow, and only the label and the time. A block that is not plainly one object a line is parsed line by
line, which gives exact errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pydantic import Field, field_validator

from modyn.errors import ConfigError, DataError
from modyn.json_codec import MAX_EXACT_INT
from modyn.records import Int64Array, LabelArray
from modyn.storage.files.local import reading
from modyn.storage.formats.arrow_times import times_of
from modyn.storage.formats.bad_rows import BadRows, RowsConfig
from modyn.storage.formats.base import FileFormat, FormatResume, RowColumn
from modyn.storage.formats.json_fields import (
    FIELD_TIMES,
    FieldPath,
    field_names,
    field_path,
    label_in,
    parse_object,
    seconds_in,
    value_in,
)
from modyn.storage.formats.json_schema import FIRST_LINES, compared_schema, decided_schema, objects_in, schema_of
from modyn.storage.formats.text_start import HEAD_BYTES, UTF8_MARK, refuse_other_text
from modyn.storage.model.samples import BadRow, IndexedSamples
from modyn.storage.model.schema import DatasetSchema

_LEAST_ROUNDED = 2.0**53
_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n"[0], b"\r"[0], b"{"[0], b"}"[0]


class JsonLinesConfig(RowsConfig):
    """Options of `JsonLinesFileWrapper`."""

    label_field: str = Field(min_length=1)
    """Field of the label; a field of an inner object is written with dots: `meta.label`."""
    file_extension: str = ".jsonl"
    """Ending of the names of files with samples; compressed ones have .gz, .zst or .bz2 after it."""
    required_fields: list[str] | None = None
    """Fields, without those of inner objects, that each file must have in some line. By default those that each of the first 1,000 lines of the first
    file has; null after a list: the first file decides anew. Where it is set, a column of the section `preprocessing` that is none of them may be
    absent from whole files, where it is missing."""

    @field_validator("label_field")
    @classmethod
    def _is_a_path(cls, text: str) -> str:
        field_path(text)
        return text


class JsonLinesFormat(FileFormat):
    """Lines of one JSON object each, ended by \\n or \\r\\n, the last one also by the end of the file. Blank lines are no samples."""

    Config: ClassVar[type[JsonLinesConfig]] = JsonLinesConfig
    config: JsonLinesConfig
    can_grow = True
    packed = True
    row_times = (FIELD_TIMES, "a JsonLinesFileWrapper allows '', 'name:REGEX', 'field:NAME' and 'field:OUTER.INNER'")
    block_bytes = 8 << 20
    """Bytes that are parsed at once."""
    max_line_bytes = 1 << 30

    def __init__(self, config: JsonLinesConfig, timestamp_source: str = "") -> None:
        """Raises: ConfigError: as `FileFormat`, or one of the fields of label and time contains the other."""
        super().__init__(config, timestamp_source)
        self._label = label = field_path(config.label_field)
        self._time = time = field_path(self.time_place[1]) if self.time_place else None
        if time is not None and (time[: len(label)] == label or label[: len(time)] == time):
            raise ConfigError(
                f"the label is the field '{'.'.join(label)}' and the time the field '{'.'.join(time)}', and one holds the other; "
                f"correct label_field or timestamp_source"
            )
        label_type = pa.float64() if self.float_labels else pa.int64()
        times = [[]] if time is None else [[(time, pa.int64())], [(time, pa.string())], [(time, pa.float64())]]
        self._schemas = [pa.schema(_struct_fields([(label, label_type), *column])) for column in times]
        """One for each kind of times, the kind that was found last first."""
        if config.required_fields is not None:
            self.schema = schema_of(config.required_fields)

    def row_begin(self, offset: int) -> int:
        """The payload is the whole line."""
        return offset

    def column(self, name: str) -> JsonColumn:
        """A field, of inner objects with dots between. Raises: ConfigError: the name is none of a field."""
        try:
            return JsonColumn(field_path(name))
        except ValueError as error:
            raise ConfigError(f"a column is a field: {error}") from error

    @property
    def decides_schema(self) -> bool:
        """True: the first file decides."""
        return True

    def declared(self, schema: DatasetSchema) -> DatasetSchema:
        """Return the schema with the fields of the option `required_fields`."""
        fields = self.config.required_fields
        return schema if fields is None else schema_of(fields)

    def schema_in(self, path: str, file: BinaryIO) -> DatasetSchema | None:
        """Return the fields that each of the first lines has, and those that some have, see `FileFormat.schema_in`; None: no line can be read."""
        found = decided_schema(objects_in(file, self.max_line_bytes))
        return found and self.declared(found)

    def _schema_with(self, path: str, resume: FormatResume | None) -> DatasetSchema | None:
        """The schema of the dataset, with what is known of it by a file, or the one that this file decides; None: what is known of it stays.

        Lines that are added to a file decide no fields. Those of its first ones may have a field that it lacked. Raises: DataError: no line of a new
        file has one of the fields that all files have.
        """
        num_before = resume.num_samples if resume is not None else 0
        if self.schema is not None and num_before >= FIRST_LINES:
            return None
        with self.open(path) as file:
            if self.schema is None:
                return self.schema_in(path, file)
            return compared_schema(path, objects_in(file, self.max_line_bytes), self.schema, has_grown=num_before > 0)

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """As `FileFormat.index`, in blocks of about `block_bytes`; a DataError names the lines and their bytes."""
        start = resume.end if resume else 0
        with reading(path):
            schema = self._schema_with(path, resume)
        with reading(path), self.open(path) as file:
            shared = self.file_time(path, os.fstat(file.fileno()).st_mtime_ns)
            if start:
                _check_line_ended(path, file, start)
            if resume is None:
                refuse_other_text(path, file.read(HEAD_BYTES))
            if not start:
                file.seek(0)
                start = len(UTF8_MARK) if file.read(len(UTF8_MARK)) == UTF8_MARK else 0
            file.seek(start)
            bad_rows = BadRows(path, self.config.max_bad_rows)
            for offset, block in self._blocks(path, file, start):
                unended = "" if block.endswith(b"\n") else f"the line that begins at byte {offset} has no line break"
                for chunk in self._index_block(path, file, offset, block, bad_rows):
                    times = chunk.timestamps if shared is None else shared
                    yield replace(chunk, schema=schema, timestamps=times, unended=unended)
            bad_rows.check()

    def _blocks(self, path: str, file: BinaryIO, offset: int) -> Iterator[tuple[int, bytes]]:
        """The rest of the file in blocks of whole lines, each with its offset; the last line alone, if it does not end."""
        rest = b""
        while True:
            new = file.read(max(self.block_bytes, len(rest)))
            block = rest + new
            if not block:
                return
            cut = len(block) if not new else block.rfind(b"\n") + 1
            if not cut and len(block) > self.max_line_bytes:
                raise DataError(
                    f"{path}, line {_lines_before(file, offset) + 1} at byte {offset}: it is longer than {self.max_line_bytes} bytes; "
                    f"split it, or give the data as files of one sample each"
                )
            if cut:
                yield offset, block[:cut]
            offset, rest = offset + cut, block[cut:]

    def _index_block(self, path: str, file: BinaryIO, offset: int, block: bytes, bad_rows: BadRows) -> Iterator[IndexedSamples]:
        """Yield the samples of a block of whole lines at `offset`; their times are 0 if the lines hold none."""
        lines = _lines(block)
        columns = self._parse_block(block, lines)
        if columns is None:
            lines, columns = self._parse_lines(path, file, offset, block, lines, bad_rows)
        labels, timestamps = columns
        if not len(labels) and (skipped := bad_rows.take()):
            none = np.empty(0, np.int64)
            yield IndexedSamples(none, none, labels, none, offset + len(block), skipped)
        for first in range(0, len(labels), self.chunk_rows):
            rows = slice(first, first + self.chunk_rows)
            begins, ends, next_begins = lines[:, rows]
            times = 0 if timestamps is None else timestamps[rows]
            skipped = bad_rows.take() if rows.stop >= len(labels) else ()
            end = len(block) if skipped else int(next_begins[-1])
            yield IndexedSamples(begins + offset, ends - begins, labels[rows], times, offset + end, skipped)

    def _parse_block(self, block: bytes, lines: Int64Array) -> _Columns | None:
        """Parse all `lines` of the block at once; None if they must be parsed one by one."""
        data, (begins, ends, _) = np.frombuffer(block, np.uint8), lines
        # A line that begins and ends so holds whole objects: inside of one, a brace that opens never follows one that closes directly.
        if not np.all(data[begins] == _OPEN) or not np.all(data[ends - 1] == _CLOSE) or not len(begins) or not _is_utf8(block):
            return None
        for schema in self._schemas:
            try:
                table = _read(block, schema)
                columns = self._columns(table)
            except pa.ArrowInvalid:
                continue
            if columns is None or table.num_rows != len(begins):
                return None
            self._schemas = [schema, *(other for other in self._schemas if other is not schema)]
            return columns
        return None

    def _columns(self, table: pa.Table) -> _Columns | None:
        """None if a value is missing, out of range or no time."""
        label = _column(table, self._label)
        time = None if self._time is None else _column(table, self._time)
        if label.null_count or (time is not None and time.null_count):
            return None
        labels: LabelArray = label.to_numpy()
        if (
            self.float_labels and not (np.abs(labels) < _LEAST_ROUNDED).all()
        ):  # infinite ones, and whole numbers that Arrow rounds
            return None
        if time is None:
            return labels, None
        if pa.types.is_floating(time.type) and not (np.abs(time.to_numpy()) <= MAX_EXACT_INT).all():
            return None  # among fractions, whole numbers are float64 too
        times = times_of(time, self.times)
        return None if times.first_bad >= 0 else (labels, times.seconds)

    def _parse_lines(
        self, path: str, file: BinaryIO, offset: int, block: bytes, lines: Int64Array, bad_rows: BadRows
    ) -> tuple[Int64Array, _Columns]:
        """Parse the lines that hold more than spaces one by one; those that are not as declared are bad rows."""
        rows: list[int] = []
        labels: list[int | float] = []
        times: list[int] = []
        lines_before: int | None = None
        for row, (begin, end, _) in enumerate(lines.T.tolist()):
            if not (line := block[begin:end]).strip():
                continue
            try:
                label, time = self._parse_line(line)
            except ValueError as error:
                if lines_before is None:
                    lines_before = _lines_before(file, offset)
                number = lines_before + block.count(b"\n", 0, begin) + 1
                advice = "end lines with \\n and not with \\r" if b"\r" in line else "correct the line"
                bad_rows.add(BadRow(offset + begin, f"{path}, line {number} at byte {offset + begin}: {error}; {advice}"))
                continue
            rows.append(row)
            labels.append(label)
            times.append(time)
        label_column: LabelArray = np.array(labels, np.float64) if self.float_labels else np.array(labels, np.int64)
        return lines[:, rows], (label_column, None if self._time is None else np.array(times, np.int64))

    def _parse_line(self, line: bytes) -> tuple[int | float, int]:
        """The label and the time of a line, 0 if it holds none. Raises: ValueError: what is wrong with it."""
        try:
            found = parse_object(line)
        except ValueError:
            # Arrow takes a little more than Python: deep nesting, and Inf. A line is read alike, alone and among any others.
            if (columns := self._parse_block(line, _lines(line))) is None:
                raise
            labels, times = columns
            return labels[0].item(), 0 if times is None else int(times[0])
        time = 0 if self._time is None else seconds_in(found, self._time, self.times)
        return label_in(found, self._label, floats=self.float_labels), time


class JsonColumn(RowColumn):
    """A field of JSON objects. One that is null or not there is no value."""

    def __init__(self, path: FieldPath) -> None:
        self._path = path
        kinds = (pa.string(), pa.int64())
        self._schemas = [pa.schema(_struct_fields([(path, kind)])) for kind in kinds]

    def names(self, row: bytes) -> Iterable[str]:
        """All fields of the object."""
        return field_names(parse_object(row))

    def values(self, rows: Sequence[bytes], header: Sequence[str]) -> Iterator[object]:
        """As `RowColumn.values`: of texts alone, and of whole numbers alone, read by Arrow."""
        for schema in self._schemas if rows else ():
            try:
                found = _column(_read(b"\n".join(rows), schema), self._path)
            except pa.ArrowInvalid:
                continue
            if len(found) == len(rows):
                return iter(found.to_pylist())
        return (value_in(parse_object(row), self._path) for row in rows)


def _read(block: bytes, schema: pa.Schema) -> pa.Table:
    """The fields of a schema in lines that are one object each. Raises: pa.ArrowInvalid: they are of other types, or the lines are not that."""
    return pyarrow.json.read_json(
        pa.BufferReader(block),
        pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


_Columns = tuple[LabelArray, Int64Array | None]
"""Labels, and times if the lines hold them."""


def _struct_fields(columns: list[tuple[FieldPath, pa.DataType]]) -> list[pa.Field]:
    """The fields of a struct with only the columns at these paths, none of which lies in another."""
    found = []
    for name in dict.fromkeys(path[0] for path, _ in columns):
        inner = [(path[1:], kind) for path, kind in columns if path[0] == name]
        found.append(pa.field(name, pa.struct(_struct_fields(inner)) if inner[0][0] else inner[0][1]))
    return found


def _column(table: pa.Table, path: FieldPath) -> pa.Array:
    column = table.column(path[0]).combine_chunks()
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _lines(block: bytes) -> Int64Array:
    """The non-empty lines of a block: int64 (3, n), positions in it. A line's bytes are [first, second); the third is behind its line break."""
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    next_begins = ends + 1
    if not len(data) or data[-1] != _NEWLINE:
        next_begins, ends = np.append(next_begins, len(data)), np.append(ends, len(data))
    begins = np.concatenate([np.zeros(1, np.int64), next_begins[:-1]])
    ends = ends - ((ends > begins) & (data[np.maximum(ends, 1) - 1] == _RETURN))
    lines: Int64Array = np.stack([begins, ends, next_begins])
    return lines[:, ends > begins]


def _is_utf8(block: bytes) -> bool:
    bounds = pa.array([0, len(block)], pa.int64()).buffers()[1]
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, bounds, pa.py_buffer(block)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _check_line_ended(path: str, file: BinaryIO, end: int) -> None:
    """Go to byte `end`. Raises: DataError: the line that ended with the file there was continued: it is indexed as it was."""
    file.seek(end - 1)
    before, after = file.read(1), file.read(2)
    file.seek(end)
    if before != b"\n" and after and not after.startswith((b"\n", b"\r\n")):
        raise DataError(
            f"{path}: the line that ended at byte {end} was continued since it was indexed; restore the file, or take what it holds now with "
            f"`modyn data reindex NAME FILE`; a last line that ends with a line break is taken when it is whole"
        )


def _lines_before(file: BinaryIO, offset: int) -> int:
    """Line breaks in the first `offset` bytes, for an error message."""
    count, before = 0, file.tell()
    file.seek(0)
    while offset > 0 and (part := file.read(min(offset, 1 << 20))):
        count += part.count(b"\n")
        offset -= len(part)
    file.seek(before)
    return count
