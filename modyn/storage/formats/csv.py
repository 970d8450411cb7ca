"""CSV: a row is a sample. The payload of a sample is the bytes of the row in the file, without the line break. One column is the label."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import BinaryIO, ClassVar, Final, TextIO

from pydantic import Field, field_validator, model_validator

from modyn import _core
from modyn.errors import ConfigError, DataError
from modyn.storage.files.local import reading
from modyn.storage.formats.bad_rows import BadRows, RowsConfig
from modyn.storage.formats.base import FileFormat, FormatResume, RowColumn, RowOrder, class_codes
from modyn.storage.formats.text_start import HEAD_BYTES, refuse_other_text
from modyn.storage.model.samples import BadRow, IndexedSamples
from modyn.storage.model.schema import DatasetSchema, SchemaColumn, field_order, listed

_UTF8: Final = frozenset({"utf-8", "utf-8-sig", "ascii"})
_VALUE: Final = re.compile(r"[-+.]?\d")
"""Beginning of a number or a date. A first line in which no field begins like this most likely names the columns."""
HEADER_CHARACTERS: Final = 1 << 22
"""Largest number of characters of a first line with column names, so that a file without line breaks is not read into memory."""


class CsvConfig(RowsConfig):
    """Options of `CsvFileWrapper`."""

    separator: str = Field(default=",", min_length=1, max_length=1)
    """Character between columns."""
    quote: str = Field(default='"', max_length=1)
    """Quote character. A field within quotes may contain separators, line breaks and doubled quotes. Empty: no quoting."""
    label_index: int | None = Field(None, ge=0)
    """Number of the label's column, from 0; or give label_column."""
    label_column: str | None = Field(None, min_length=1)
    """Name of the label's column in the first line."""
    ignore_first_line: bool = False
    """The first line names the columns; implied if a column is chosen by its name. If the first line cannot be read, or has another number of columns
    than most rows, it is not skipped as a bad row: the file is set aside."""
    columns: list[str] | None = Field(None, min_length=1)
    """Names of the columns, in the order in which rows are read. Default: the names in the first file. Other files have the same columns in any
    order. If first lines have no names, the columns get these names."""
    encoding: str = "utf-8"
    """Encoding of the file and of the payloads. ASCII characters must be single bytes, which are not part of other characters."""
    max_field_lines: int = Field(1000, ge=1)
    """If a quoted field has more lines, its closing quote is missing: the row cannot be used, and the next row begins after its first line."""
    file_extension: str = ".csv"
    """Ending of the names of files with samples; for compressed files, .gz, .zst or .bz2 follows."""

    @field_validator("columns")
    @classmethod
    def _once_each(cls, names: list[str] | None) -> list[str] | None:
        if names is not None and len(set(names)) < len(names):
            raise ValueError(f"a column is named twice in columns: {names}")
        return names

    @field_validator("encoding")
    @classmethod
    def _ascii_is_ascii(cls, encoding: str) -> str:
        try:
            name = codecs.lookup(encoding).name
        except LookupError as error:
            raise ValueError(f"'{encoding}' is not an encoding that Python knows") from error
        if name not in {"utf-8", "utf-8-sig", "euc_jp", "euc_kr", "gb2312"} and not _is_ascii_superset(name):
            raise ValueError(f"rows cannot be found in '{encoding}' by looking at bytes; convert the files to utf-8")
        return encoding

    @model_validator(mode="after")
    def _one_label(self) -> CsvConfig:
        if (self.label_index is None) == (self.label_column is None):
            raise ValueError("label_index or label_column is required, and not both: the column of the label")
        return self

    @model_validator(mode="after")
    def _characters(self) -> CsvConfig:
        for name, character in (("separator", self.separator), ("quote", self.quote)):
            if not character.isascii() or character in {"\n", "\r"}:
                raise ValueError(f"{name} must be an ASCII character and no line break, not {character!r}")
        if self.separator == self.quote:
            raise ValueError(f"separator and quote are both {self.quote!r}")
        return self


class CsvFormat(FileFormat):
    """Rows end with \\n, \\r\\n or \\r. The last row may end with the file. Empty lines are not rows. A row is bad if it has another number of fields
    than the line with names (or else than most of the first rows), an unclosed quote, text after a closing quote, a NUL byte or invalid UTF-8."""

    Config: ClassVar[type[CsvConfig]] = CsvConfig
    config: CsvConfig
    label_options = ("separator", "quote")
    has_classes = True
    can_grow = True
    packed = True
    isolated = False
    offsets_name = "line"
    row_times = (r"column:(.+)", "a CsvFileWrapper allows '', 'name:REGEX', 'column:N', 'column:NAME'")

    def __init__(self, config: CsvConfig, timestamp_source: str = "") -> None:
        """See `FileFormat`."""
        super().__init__(config, timestamp_source)
        if config.columns is not None:
            self.schema = _schema_of(config.columns)

    def row_begin(self, offset: int) -> int:
        """Return `offset`: the payload is the whole row."""
        return offset

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """See `FileFormat.index`; a DataError names the rows and their bytes."""
        with reading(path):
            shared_timestamp = self.file_time(path, os.stat(path).st_mtime_ns)
        config = self.config
        time = self.time_place[1] if self.time_place else None
        columns: list[str] = []
        if resume is None:
            with reading(path), self.open(path) as file:
                # Text in another encoding would cause misleading errors of rows, so it is refused here with the real reason.
                refuse_other_text(path, file.read(HEAD_BYTES))
        if self._names_columns():
            with reading(path), self.open(path) as file:
                columns = self._header(path, file)
        schema = self.schema or (_schema_of(columns) if columns else None)  # The option `columns` has set `self.schema`.
        order = field_order(path, columns, schema) if columns and schema else None

        def position(number: int) -> int:
            """Return the position of column `number` of the schema in the file."""
            return number if order is None or number >= len(order) else order[number]

        open_rows = partial(
            _core.CsvIndexer,
            path,
            roots=self.roots,
            separator=config.separator,
            quote=config.quote,
            label_column=_position(path, columns, config.label_column)
            if config.label_index is None
            else position(config.label_index),
            float_labels=self.float_labels,
            class_labels=self.names_classes,
            timestamp_column=-1 if time is None else position(int(time)) if time.isdigit() else _position(path, columns, time),
            utf8=codecs.lookup(config.encoding).name in _UTF8,
            max_field_lines=config.max_field_lines,
            times=self.times,
        )
        indexer = open_rows(
            start=resume.end if resume else 0,
            first_row=resume.num_samples + resume.num_skipped if resume else 0,
            skip_first_line=self._names_columns(),
        )
        num_columns = indexer.num_columns
        if columns and num_columns not in (0, len(columns)):  # The label would be read from another column.
            raise DataError(
                f"the first line of {path} names {len(columns)} columns, and has {num_columns} fields as rows are read; correct its "
                "quotes and separators"
            )
        bad_rows = BadRows(path, config.max_bad_rows)
        is_first = resume is None or not resume.end
        """Whether the next chunk contains the first row of the file."""
        while (rows := indexer.next(self.chunk_rows)) is not None:
            offsets, lengths, labels, timestamps, bad, is_unended, texts = rows
            classes: tuple[str, ...] = ()
            if texts:
                # Few texts differ, so each is decoded once.
                names = {text: text.decode(config.encoding, "replace") for text in set(texts)}
                classes, labels = class_codes([names[text] for text in texts])
            if is_first and self._names_columns():
                self._check_names(path, columns, lambda: open_rows(start=0, first_row=0, skip_first_line=False).num_columns, bad)
            # A bad row precedes the first good row, so the first line may contain column names although no option says so.
            elif is_first and bad and (not len(offsets) or bad[0][0] < offsets[0]):
                self._check_no_names(path, *bad[0])
            is_first = False
            for offset, reason in bad:
                bad_rows.add(BadRow(offset, reason))
            times = timestamps if shared_timestamp is None else shared_timestamp
            assert times is not None, "rows have a time each or share one"
            # A row that waits for its end is the only row of its chunk. `begins` contains the first byte of this row.
            begins = [*offsets.tolist(), *(offset for offset, _ in bad)] if is_unended else []
            unended = (
                f"the row that begins at byte {begins[0]} has no line break, or a quote in it is not closed" if begins else ""
            )
            found = schema and replace(schema, mixed_order=order is not None)
            skipped = bad_rows.take()
            yield IndexedSamples(offsets, lengths, labels, times, indexer.position, skipped, unended, found, classes=classes)
        bad_rows.check()

    def _check_names(self, path: str, columns: Sequence[str], usual: Callable[[], int], bad: Sequence[tuple[int, str]]) -> None:
        """Refuse a file with rows if its first line does not name the columns, because the fields would be read by position.

        Args: columns: names in the first line. usual: returns the number of fields of most first rows; called only if there are bad rows, because the
        call reads the rows again.
        """
        if not columns and self.schema is not None and self.config.columns is None:
            raise DataError(
                f"the first line of {path} names no columns, and those of the dataset, {self.schema.decider}, are {listed(self.schema.names)}; write "
                "them there"
            )
        if columns and bad and (num_fields := usual()) != len(columns):
            raise DataError(
                f"the first line of {path} names {len(columns)} columns, and most of the first rows have {num_fields} fields; correct the first "
                "line, or the separators and quotes of the rows"
            )

    def _check_no_names(self, path: str, offset: int, reason: str) -> None:
        """Refuse a file if its first row, which is bad for `reason`, looks like column names, although no option says that files begin with names."""
        with reading(path), self.open(path) as file:
            file.seek(offset)
            line, *_ = file.read(HEADER_CHARACTERS).splitlines(keepends=True)
        fields = [
            field.strip(f" \r\n{self.config.quote}")
            for field in line.decode(self.config.encoding, "replace").split(self.config.separator)
        ]
        is_whole = line.endswith((b"\n", b"\r"))
        if is_whole and any(fields) and not any(map(_VALUE.match, fields)):
            raise DataError(
                f"{reason}. None of the values in this first row begins with a digit, so that it most likely names the columns, and is not skipped: "
                "set label_column or ignore_first_line, or correct it"
            )

    def column(self, name: str) -> CsvColumn:
        """Return the reader of a column by its number, from 0, or its name. Raises: ConfigError: the column is given by its name, but first lines
        name no columns."""
        if not name.isdigit() and not self._names_columns():
            raise ConfigError(
                f"the column '{name}' is named, but the first lines of the files name no columns; give it by number, from 0, or register the dataset "
                "with ignore_first_line"
            )
        return CsvColumn(self.config, name)

    @property
    def decides_schema(self) -> bool:
        """Whether first lines or an option name columns."""
        return self._names_columns() or self.config.columns is not None

    def declared(self, schema: DatasetSchema) -> DatasetSchema:
        """Return the schema with the columns of the option `columns`, in their order."""
        return schema if self.config.columns is None else replace(schema, columns=_schema_of(self.config.columns).columns)

    def schema_in(self, path: str, file: BinaryIO) -> DatasetSchema | None:
        """Return the schema that the first line names, see `FileFormat.schema_in`."""
        names = self._header(path, file) if self._names_columns() else []
        return _schema_of(names) if names else self.schema

    def row_order(self, path: str, file: BinaryIO) -> RowOrder | None:
        """Return the order of fields that the first line names, see `FileFormat.row_order`."""
        names = self._header(path, file) if self._names_columns() else []
        if self.schema is None or not (self._chooses_by_name() or set(names) == set(self.schema.names)):
            return None  # An older version of Modyn indexed the file without a comparison, so the first line may be a comment.
        order = field_order(path, names, self.schema)
        return None if order is None else RowOrder(tuple(order), self.config.separator, self.config.quote or None)

    def _header(self, path: str, file: BinaryIO) -> list[str]:
        """Return the names in the first line; an empty list if the line is empty and no column is chosen by name. Raises: see `read_header`."""
        return read_header(self.config, path, file, may_be_empty=not self._chooses_by_name())

    def _chooses_by_name(self) -> bool:
        return self.config.label_column is not None or (self.time_place is not None and not self.time_place[1].isdigit())

    def _names_columns(self) -> bool:
        """Whether the first line of each file names columns."""
        return self.config.ignore_first_line or self._chooses_by_name()


class CsvColumn(RowColumn):
    """A column of CSV rows. An empty or missing field has no value. The value of any other field is its text."""

    def __init__(self, config: CsvConfig, name: str) -> None:
        self._config, self._name = config, name
        self.has_header = not name.isdigit()
        self._separator, self._quote = config.separator.encode(), config.quote.encode()

    def header(self, path: str, file: BinaryIO) -> list[str]:
        """Return the names in the first line."""
        return read_header(self._config, path, file)

    def names(self, row: bytes) -> Iterable[str]:
        """Yield the numbers of the row's fields."""
        return map(str, range(len(self._fields(row))))

    def values(self, rows: Sequence[bytes], header: Sequence[str]) -> Iterator[str | None]:
        """See `RowColumn.values`. Raises: ConfigError: the first line gives the name twice."""
        if self.has_header and header.count(self._name) > 1:
            raise ConfigError(f"the first line names the column '{self._name}' twice; give it by number, from 0")
        position = int(self._name) if not self.has_header else header.index(self._name) if self._name in header else None
        for row in rows:
            fields = [] if position is None else self._fields(row)[position : position + 1]
            yield b"".join(fields).decode(self._config.encoding, "replace") or None

    def _fields(self, row: bytes) -> list[bytes]:
        """Return the fields of a row, without quotes, by the same rules as `_core.CsvIndexer`."""
        quote, separator = self._quote, self._separator
        if not quote or quote not in row:
            return row.split(separator)
        # The row is split as bytes, because quotes and separators are single bytes in every allowed encoding.
        fields, at = list[bytes](), 0
        while at <= len(row):
            text, end = b"", at
            if row.startswith(quote, at):
                end = at + 1
                # A doubled quote means one quote.
                while (closing := row.find(quote, end)) >= 0 and row.startswith(quote, closing + 1):
                    text += row[end : closing + 1]
                    end = closing + 2
                closing = closing if closing >= 0 else len(row)
                text += row[end:closing]
                end = closing + 1
            stop = row.find(separator, end)
            stop = len(row) if stop < 0 else stop
            fields.append(text + row[end:stop])  # Text after a closing quote belongs to the field.
            at = stop + 1
        return fields


def read_header(config: CsvConfig, path: str, file: BinaryIO, *, may_be_empty: bool = False) -> list[str]:
    """Return the names of the columns in the first line. Raises: DataError: there are no names, or the line does not end within HEADER_CHARACTERS.

    Args: file: open at its beginning; this function closes the file. may_be_empty: an empty line names no columns.
    """
    quote = config.quote
    # A byte order mark is skipped, because otherwise a quote after the mark would not be at the beginning of its field.
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        file.seek(0)
    text = io.TextIOWrapper(file, config.encoding, newline="")
    rows = csv.reader(
        _first_lines(path, text),
        delimiter=config.separator,
        quotechar=quote or None,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        strict=True,
    )
    try:
        with text:
            found = next(rows, [])
    except (csv.Error, UnicodeError) as error:
        # An unclosed quote in the first line causes an error only later: at the end of the file, or in the line with the next quote.
        is_open = isinstance(error, csv.Error) and (rows.line_num > 1 or "end of data" in str(error))
        why = "a quote in it is not closed; close it, or set `quote` to another character" if is_open else f"{error}; correct it"
        raise DataError(f"the first line of {path} does not name its columns: {why}") from error
    found = [name.strip() for name in found]
    if not any(found):
        if may_be_empty:
            return []
        raise DataError(f"the first line of {path} does not name its columns; write it, or give the columns by number")
    return found


def _first_lines(path: str, text: TextIO) -> Iterator[str]:
    """Yield the lines of a file, up to HEADER_CHARACTERS. The first row may have several lines, because names in quotes may contain line breaks."""
    left = HEADER_CHARACTERS
    while line := text.readline(left + 1):  # One character more than allowed is read, to detect that the line is too long.
        left -= len(line)
        if left < 0:
            raise DataError(
                f"the first line of {path} does not end within {HEADER_CHARACTERS:,} characters; correct its line breaks and quotes, "
                "or give the columns by number"
            )
        yield line


def _schema_of(names: Sequence[str]) -> DatasetSchema:
    return DatasetSchema("csv", tuple(map(SchemaColumn, names)))


def _position(path: str, columns: list[str], name: str | None) -> int:
    if columns.count(name or "") != 1:
        # The message does not show the existing names, because any text file can be read as CSV, and its first line may contain a secret.
        what = "named twice" if name in columns else "not named"
        raise DataError(
            f"the column '{name}' is {what} in the first line of {path}, which names {len(columns)}: compare it with that line, "
            "or give the column by number"
        )
    return columns.index(name or "")


def _is_ascii_superset(encoding: str) -> bool:
    """Whether `encoding` decodes each byte below 128 to its ASCII character, and each other byte to one character."""
    ascii_bytes, others = bytes(range(128)), bytes(range(128, 256))
    try:
        alone = all(len(bytes([byte]).decode(encoding, "replace")) == 1 for byte in others)
        together = len(others.decode(encoding, "replace")) == len(others)
        return ascii_bytes.decode(encoding) == ascii_bytes.decode("ascii") and alone and together
    except (UnicodeError, LookupError):
        return False
