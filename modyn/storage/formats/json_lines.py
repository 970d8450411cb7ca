"""JSON Lines: a line is a sample. The payload of a sample is the bytes of the line without the line break. A field of the line's object is the label.

Arrow parses label and time of a block of lines at once. If a block does not clearly have one object in each line, it is parsed line by line, which
gives exact errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import chain
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pydantic import Field, field_validator

from modyn.errors import ConfigError, DataError
from modyn.json_codec import MAX_EXACT_INT
from modyn.records import Int64Array
from modyn.storage.files.local import reading
from modyn.storage.formats.arrow_times import times_of
from modyn.storage.formats.bad_rows import BadRows, LineCounter, RowsConfig
from modyn.storage.formats.base import FileFormat, FormatResume, RowColumn, class_codes
from modyn.storage.formats.json_fields import (
    FIELD_TIMES,
    FieldPath,
    class_in,
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
"""A float64 of at least this number may be a rounded whole number."""
_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n"[0], b"\r"[0], b"{"[0], b"}"[0]


class JsonLinesConfig(RowsConfig):
    """Options of `JsonLinesFileWrapper`."""

    label_field: str = Field(min_length=1)
    """Field of the label; a field of an inner object is written with dots: `meta.label`."""
    file_extension: str = ".jsonl"
    """Ending of the names of files with samples; for compressed files, .gz, .zst or .bz2 follows."""
    required_fields: list[str] | None = None
    """Fields, without fields of inner objects, that each file must have in some line. Default: the fields that all of the first 1,000 lines of the
    first file have. If null replaces a list, the first file decides again. With a list, all other columns of the section `preprocessing` may be
    absent from whole files, and count as missing values there."""

    @field_validator("label_field")
    @classmethod
    def _is_a_path(cls, text: str) -> str:
        field_path(text)
        return text


class JsonLinesFormat(FileFormat):
    """Each line is one JSON object, and ends with \\n or \\r\\n. The last line may end with the file. Blank lines are not samples."""

    Config: ClassVar[type[JsonLinesConfig]] = JsonLinesConfig
    config: JsonLinesConfig
    can_grow = True
    offsets_name = "line"
    packed = True
    has_classes = True
    row_times = (FIELD_TIMES, "a JsonLinesFileWrapper allows '', 'name:REGEX', 'field:NAME' and 'field:OUTER.INNER'")
    block_bytes = 8 << 20
    """Number of bytes that are parsed at once."""
    max_line_bytes = 1 << 30
    """Largest number of bytes of a line."""

    def __init__(self, config: JsonLinesConfig, timestamp_source: str = "") -> None:
        """Raises: ConfigError: see `FileFormat`; or the field of the label is inside the field of the time, or contains it."""
        super().__init__(config, timestamp_source)
        self._label = label = field_path(config.label_field)
        self._time = time = field_path(self.time_place[1]) if self.time_place else None
        if time is not None and (time[: len(label)] == label or label[: len(time)] == time):
            raise ConfigError(
                f"the label is the field '{'.'.join(label)}' and the time the field '{'.'.join(time)}', and one holds the other; "
                f"correct label_field or timestamp_source"
            )
        label_types = [pa.string(), pa.int64()] if self.names_classes else [pa.float64() if self.float_labels else pa.int64()]
        times = [[]] if time is None else [[(time, pa.int64())], [(time, pa.string())], [(time, pa.float64())]]
        self._schemas = [pa.schema(_struct_fields([(label, kind), *column])) for kind in label_types for column in times]
        """One Arrow schema for each type of times and labels. The last schema that could read a block comes first."""
        if config.required_fields is not None:
            self.schema = schema_of(config.required_fields)

    def row_begin(self, offset: int) -> int:
        """Return `offset`: the payload is the whole line."""
        return offset

    def column(self, name: str) -> JsonColumn:
        """Return the reader of a field. Dots separate the names of nested objects. Raises: ConfigError: no field can have this name."""
        try:
            return JsonColumn(field_path(name))
        except ValueError as error:
            raise ConfigError(f"a column is a field: {error}") from error

    @property
    def decides_schema(self) -> bool:
        """Return True: the first file decides the schema of all files."""
        return True

    def declared(self, schema: DatasetSchema) -> DatasetSchema:
        """Return the schema with the fields of the option `required_fields`."""
        fields = self.config.required_fields
        return schema if fields is None else schema_of(fields)

    def schema_in(self, path: str, file: BinaryIO) -> DatasetSchema | None:
        """Return the fields that all of the first lines have, and the fields that only some have, see `FileFormat.schema_in`; None: no line can be
        read.
        """
        found = decided_schema(objects_in(file, self.max_line_bytes))
        return found and self.declared(found)

    def _schema_with(self, path: str, file: BinaryIO, resume: FormatResume | None, begin: bytes) -> DatasetSchema | None:
        """Return the schema of the dataset after a file has decided or updated it; None: the schema does not change. Appended lines decide no fields.
        If appended lines are among the first lines of a file, they may have a field that the file lacked.

        Args: begin: the first bytes of a new file. Raises: DataError: a field that all files have is in no line of a new file.
        """
        num_before = resume.num_samples if resume is not None else 0
        # The first lines were compared with the schema when they were indexed, and later lines decide nothing.
        if self.schema is not None and num_before >= FIRST_LINES:
            return None
        if self.schema is None:
            file.seek(0)
            return self.schema_in(path, file)
        # For most files, the first line in `begin` is enough. Reading each small file again would take a twentieth of its indexing time.
        objects = chain(objects_in(BytesIO(begin), self.max_line_bytes), self._objects_after(begin, file))
        return compared_schema(path, objects, self.schema, has_grown=num_before > 0)

    def _objects_after(self, begin: bytes, file: BinaryIO) -> Iterator[dict[str, object]]:
        """Yield the objects in the lines of the file after the whole lines in its first bytes."""
        file.seek(begin.rfind(b"\n") + 1)
        yield from objects_in(file, self.max_line_bytes)

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """See `FileFormat.index`, in blocks of about `block_bytes`; a DataError names the lines and their bytes."""
        start = resume.end if resume else 0
        with reading(path), self.open(path) as file:
            shared = self.file_time(path, os.fstat(file.fileno()).st_mtime_ns)
            begin = b""
            if start:
                _check_line_ended(path, file, start)
            else:
                begin = file.read(self.block_bytes)
                refuse_other_text(path, begin[:HEAD_BYTES])
                start = len(UTF8_MARK) if begin.startswith(UTF8_MARK) else 0
            schema = self._schema_with(path, file, resume, begin)
            file.seek(len(begin) or start)
            bad_rows = BadRows(path, self.config.max_bad_rows)
            for offset, block in self._blocks(path, file, start, begin[start:]):
                unended = "" if block.endswith(b"\n") else f"the line that begins at byte {offset} has no line break"
                for chunk in self._index_block(path, file, offset, block, bad_rows):
                    times = chunk.timestamps if shared is None else shared
                    yield replace(chunk, schema=schema, timestamps=times, unended=unended)
            bad_rows.check()

    def _blocks(self, path: str, file: BinaryIO, offset: int, new: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield `new` and the rest of the file in blocks of whole lines, each with its offset. An incomplete last line is a block of its own."""
        rest = b""
        while True:
            # A line longer than a block is read with growing sizes, so that its bytes are searched only a few times.
            new = new or file.read(max(self.block_bytes, len(rest)))
            block = rest + new
            if not block:
                return
            cut = len(block) if not new else block.rfind(b"\n") + 1
            if not cut and len(block) > self.max_line_bytes:
                raise DataError(
                    f"{path}, line {LineCounter().number(file, offset)} at byte {offset}: it is longer than {self.max_line_bytes} bytes; "
                    f"split it, or give the data as files of one sample each"
                )
            if cut:
                yield offset, block[:cut]
            offset, rest, new = offset + cut, block[cut:], b""

    def _index_block(self, path: str, file: BinaryIO, offset: int, block: bytes, bad_rows: BadRows) -> Iterator[IndexedSamples]:
        """Yield the samples of a block of whole lines at `offset`. If the lines contain no times, the times of the samples are 0."""
        lines = _lines(block)
        columns = self._parse_block(block, lines)
        if columns is None:
            lines, columns = self._parse_lines(path, file, offset, block, lines, bad_rows)
        labels, timestamps = columns
        if not len(labels) and (skipped := bad_rows.take()):
            none = np.empty(0, np.int64)
            yield IndexedSamples(
                none, none, labels.astype(np.float64 if self.float_labels else np.int64), none, offset + len(block), skipped
            )
        for first in range(0, len(labels), self.chunk_rows):
            rows = slice(first, first + self.chunk_rows)
            begins, ends, next_begins = lines[:, rows]
            times = 0 if timestamps is None else timestamps[rows]
            # The last chunk of the block reports the skipped rows, and then covers the block to its end.
            skipped = bad_rows.take() if rows.stop >= len(labels) else ()
            end = len(block) if skipped else int(next_begins[-1])
            classes, numbers = class_codes(labels[rows].tolist()) if self.names_classes else ((), labels[rows])
            yield IndexedSamples(begins + offset, ends - begins, numbers, times, offset + end, skipped, classes=classes)

    def _parse_block(self, block: bytes, lines: Int64Array) -> _Columns | None:
        """Parse all `lines` of the block at once. Return None if the lines must be parsed one by one."""
        data, (begins, ends, _) = np.frombuffer(block, np.uint8), lines
        # If each line begins with { and ends with }, no object extends over several lines, because within an object { never directly follows }.
        if not np.all(data[begins] == _OPEN) or not np.all(data[ends - 1] == _CLOSE) or not len(begins) or not _is_utf8(block):
            return None
        for schema in self._schemas:
            try:
                table = _read(block, schema)
                columns = self._columns(table)
            except pa.ArrowInvalid:
                # The times may have another type, which the next schema reads.
                continue
            if columns is None or table.num_rows != len(begins):
                return None
            # Later blocks most likely have times of the same type.
            self._schemas = [schema, *(other for other in self._schemas if other is not schema)]
            return columns
        return None

    def _columns(self, table: pa.Table) -> _Columns | None:
        """Return labels and times. Returns None if a value is missing, out of range or not a time."""
        label = _column(table, self._label)
        time = None if self._time is None else _column(table, self._time)
        if label.null_count or (time is not None and time.null_count):
            return None
        if self.names_classes:
            label = label.cast(pa.string())
        labels = label.to_numpy(zero_copy_only=False)
        if self.names_classes and "" in labels:
            return None
        if (
            self.float_labels and not (np.abs(labels) < _LEAST_ROUNDED).all()
        ):  # There are infinite numbers, or whole numbers that Arrow may have rounded.
            return None
        if time is None:
            return labels, None
        if pa.types.is_floating(time.type) and not (np.abs(time.to_numpy()) <= MAX_EXACT_INT).all():
            return None  # Among fractions, Arrow reads whole numbers as float64, which may round them.
        times = times_of(time, self.times)
        return None if times.first_bad >= 0 else (labels, times.seconds)

    def _parse_lines(
        self, path: str, file: BinaryIO, offset: int, block: bytes, lines: Int64Array, bad_rows: BadRows
    ) -> tuple[Int64Array, _Columns]:
        """Parse the non-blank lines one by one. Lines that differ from the declaration are bad rows."""
        rows: list[int] = []
        labels: list[int | float | str] = []
        times: list[int] = []
        for row, (begin, end, _) in enumerate(lines.T.tolist()):
            if not (line := block[begin:end]).strip():
                continue
            try:
                label, time = self._parse_line(line)
            except ValueError as error:
                number = bad_rows.lines.number(file, offset + begin)
                advice = "end lines with \\n and not with \\r" if b"\r" in line else "correct the line"
                bad_rows.add(BadRow(offset + begin, f"{path}, line {number} at byte {offset + begin}: {error}; {advice}"))
                continue
            rows.append(row)
            labels.append(label)
            times.append(time)
        label_column = np.array(labels, object if self.names_classes else np.float64 if self.float_labels else np.int64)
        return lines[:, rows], (label_column, None if self._time is None else np.array(times, np.int64))

    def _parse_line(self, line: bytes) -> tuple[int | float | str, int]:
        """Return the label and the time of a line. If lines contain no times, the time is 0. Raises: ValueError: the line is wrong; the message gives
        the reason."""
        try:
            found = parse_object(line)
        except ValueError:
            # Arrow accepts deep nesting and Inf, but Python does not. So Arrow reads the line here too, as it would read it in a block.
            if (columns := self._parse_block(line, _lines(line))) is None:
                raise
            labels, times = columns
            return labels.tolist()[0], 0 if times is None else int(times[0])
        time = 0 if self._time is None else seconds_in(found, self._time, self.times)
        label = class_in(found, self._label) if self.names_classes else label_in(found, self._label, floats=self.float_labels)
        return label, time


class JsonColumn(RowColumn):
    """A field of JSON objects. If the field is null or missing, the sample has no value."""

    def __init__(self, path: FieldPath) -> None:
        self._path = path
        kinds = (pa.string(), pa.int64())
        self._schemas = [pa.schema(_struct_fields([(path, kind)])) for kind in kinds]

    def names(self, row: bytes) -> Iterable[str]:
        """Return the names of all fields of the object."""
        return field_names(parse_object(row))

    def values(self, rows: Sequence[bytes], header: Sequence[str]) -> Iterator[object]:
        """See `RowColumn.values`. If all values are texts, or all are whole numbers, Arrow parses all rows at once."""
        for schema in self._schemas if rows else ():
            try:
                found = _column(_read(b"\n".join(rows), schema), self._path)
            except pa.ArrowInvalid:
                continue
            if len(found) == len(rows):
                return iter(found.to_pylist())
        return (value_in(parse_object(row), self._path) for row in rows)


def _read(block: bytes, schema: pa.Schema) -> pa.Table:
    """Read the fields of a schema from lines with one object each. Raises: pa.ArrowInvalid: fields have other types, or a line is not an object."""
    return pyarrow.json.read_json(
        pa.BufferReader(block),
        # The block is parsed in one piece by one thread: threads would split it, and files are indexed in parallel already.
        pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


_Columns = tuple[Any, Int64Array | None]
"""Labels of lines, as numbers or (object array) names of classes; and their times if the lines contain times."""


def _struct_fields(columns: list[tuple[FieldPath, pa.DataType]]) -> list[pa.Field]:
    """Return the fields of a struct that has only the columns at these paths. No column may be inside another column."""
    found = []
    for name in dict.fromkeys(path[0] for path, _ in columns):
        inner = [(path[1:], kind) for path, kind in columns if path[0] == name]
        found.append(pa.field(name, pa.struct(_struct_fields(inner)) if inner[0][0] else inner[0][1]))
    return found


def _column(table: pa.Table, path: FieldPath) -> pa.Array:
    chunked = table.column(path[0])
    column = chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _lines(block: bytes) -> Int64Array:
    """Return positions of the non-empty lines of a block, int64 (3, n): for each line its first byte, its end, and the byte after its line break."""
    data = np.frombuffer(block, np.uint8)
    (ends,) = (data == _NEWLINE).nonzero()
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(data))
    lines = np.empty((3, len(ends)), np.int64)
    lines[0, 0], lines[0, 1:], lines[1], lines[2] = 0, ends[:-1] + 1, ends, np.minimum(ends + 1, len(data))
    if b"\r" in block:
        lines[1] -= (lines[1] > lines[0]) & (data[np.maximum(ends, 1) - 1] == _RETURN)
    is_line = lines[1] > lines[0]
    return lines if is_line.all() else lines[:, is_line]


def _is_utf8(block: bytes) -> bool:
    if block.isascii():  # This check is many times faster, and most blocks are ASCII.
        return True
    # Validating a text column checks the bytes without decoding them.
    bounds = pa.array([0, len(block)], pa.int64()).buffers()[1]
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, bounds, pa.py_buffer(block)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _check_line_ended(path: str, file: BinaryIO, end: int) -> None:
    """Set the file's position to byte `end`. Raises: DataError: the last indexed line ended at `end` without a line break, and the file was then
    continued within this line.
    """
    file.seek(end - 1)
    # The byte before the end, and at most "\r\n" after it, show whether the indexed line was continued.
    before, after = file.read(1), file.read(2)
    file.seek(end)
    if before != b"\n" and after and not after.startswith((b"\n", b"\r\n")):
        raise DataError(
            f"{path}: the line that ended at byte {end} was continued since it was indexed; restore the file, or index what it contains now with "
            f"`modyn data reindex NAME FILE`; a last line that ends with a line break is taken when it is whole"
        )
