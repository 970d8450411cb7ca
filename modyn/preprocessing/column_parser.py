"""ColumnParser: converts the payloads of many samples into columns, by the schema of the pipeline."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
from pydantic import Field, field_validator, model_validator

from modyn.config.base import PlacedError, Section
from modyn.errors import ConfigError, DataError
from modyn.preprocessing.base import ColumnName
from modyn.preprocessing.columns import ColumnKind
from modyn.registry import nearest

_TYPES: Final = {ColumnKind.NUMBER: pa.float64(), ColumnKind.CATEGORY: pa.string(), ColumnKind.TEXT: pa.string()}
_LARGEST_BLOCK: Final = (1 << 31) - 1
_LISTED: Final = 20
"""Largest number of fields of an object that a message shows."""
_BOM: Final = "\ufeff".encode()
_BLANKS: Final = b" \t\r\n"
"""White space characters of JSON."""


def _is_number(text: str) -> bool:
    """Return whether a text is a number that is not NaN."""
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


class ColumnSchema(Section):
    """Columns of samples, and their form in payloads."""

    columns: dict[ColumnName, Literal["number", "category", "text"]] = Field(
        min_length=1, description="columns that are read, by name; other columns of the data are ignored"
    )
    format: Literal["csv", "json"] | None = Field(
        None, description="format of a payload: one row of CSV, or one JSON object; none: columns come from elsewhere"
    )
    names: tuple[ColumnName, ...] | None = Field(
        None,
        min_length=1,
        description="for csv: names of all fields of a row, in order; by default, the header in the first lines of the dataset's files",
    )
    separator: str = Field(",", min_length=1, max_length=1, description="for csv: separator between two fields")
    na_values: tuple[str, ...] = Field(
        ("", "NA", "N/A", "null", "None", "NaN", "?", "-"),
        description="texts that mean a missing number, exactly as in a payload; in a category or text, only an empty CSV field is missing",
    )

    @field_validator("na_values")
    @classmethod
    def _no_numbers(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            if _is_number(value):
                raise ValueError(
                    f"'{value}' is a number, so it cannot mean a missing one; remove it, and handle such values in the model or the data"
                )
        return values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.format != "csv":
            if self.names is not None:
                raise PlacedError(
                    "names", "needs `format: csv`, since only CSV has field names; remove the key or add the format"
                )
            return self
        if not self.separator.isascii() or self.separator in '"\r\n':
            raise PlacedError(
                "separator", f"is {self.separator!r}; write one ASCII character that is neither a quote nor a line end"
            )
        if self.names is None:  # The column names are the names of the dataset's columns.
            return self
        if len(set(self.names)) < len(self.names):
            raise PlacedError("names", f"'{max(self.names, key=self.names.count)}' occurs twice; name each field once")
        for name in self.columns:
            if name not in self.names:
                raise PlacedError(
                    f"columns.{name}",
                    f"no field has this name{nearest(name, list(self.names))}; `names` are {', '.join(self.names)}",
                )
        return self

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """Return the kinds of the columns by name."""
        return {name: ColumnKind(kind) for name, kind in self.columns.items()}


class BadRowError(DataError):
    """Error: a payload is not a row of the schema."""

    row: int
    """Index of the row in the parsed payloads, from 0."""
    what: str
    """The message without the number of the row."""

    @classmethod
    def of(cls, row: int, what: str) -> Self:
        """Make the error for a row."""
        error = cls(f"row {row}, {what}")
        error.row, error.what = row, what
        return error


class ColumnParser:
    """Parses payloads: pyarrow parses all payloads together, and single payloads are parsed only to find a bad payload.

    A row has the same result alone and together with other rows. An empty CSV field, a JSON field that is null or absent, and a number that equals
    one of `na_values` are missing. In JSON, a category or text may be a whole number or a boolean.
    """

    def __init__(self, schema: ColumnSchema, *, absent_is_missing: bool = True) -> None:
        """Args: absent_is_missing: whether a JSON object without the field of a column has a missing value. If false, such an object is refused, and
        a missing value must be null.

        Raises: ConfigError: the schema has no format, or no names of the fields of CSV.
        """
        if schema.format is None:
            raise ConfigError("preprocessing.format: is required to read payloads: csv or json")
        if schema.format == "csv" and schema.names is None:
            raise ConfigError("preprocessing.names: is required to read rows of CSV: the names of all fields of a row, in order")
        self._types = {name: _TYPES[kind] for name, kind in schema.kinds.items()}
        is_json = schema.format == "json"
        rows = _JsonRows(schema, self._types, absent_is_missing) if is_json else _CsvRows(schema, self._types)
        self._parse = rows.parse

    def parse(self, payloads: Sequence[bytes]) -> dict[str, pa.Array]:
        """Parse payloads into columns of n samples: float64 or string arrays (n) with nulls.

        Raises: BadRowError: a payload is not a row of the schema; the error names the first such payload, with column and value.
        """
        return self._parse(payloads) if payloads else {name: pa.array([], type_) for name, type_ in self._types.items()}


class _CsvRows:
    """Reads rows of CSV. A marker field is appended to each row: if each row of the table ends with the marker, each payload is exactly one row."""

    def __init__(self, schema: ColumnSchema, types: dict[str, pa.DataType]) -> None:
        self._fields, self._types, self._separator = schema.names or (), types, schema.separator
        self._na_values = list(schema.na_values)
        self._mark = "\x1d" if self._separator == "\x1e" else "\x1e"
        self._marks = "#".join(self._fields) + "#"
        """Name of the column of markers. No field has this name."""
        self._parsing = pacsv.ParseOptions(delimiter=self._separator, newlines_in_values=True, ignore_empty_lines=False)
        self._converting = self._conversion(types)

    def parse(self, payloads: Sequence[bytes]) -> dict[str, pa.Array]:
        """See `ColumnParser.parse`. Takes one row or more."""
        rows = [payload.rstrip(b"\r\n") for payload in payloads]
        try:
            return {
                name: _without_empty(found) for name, found in _arrays(self._read(rows, self._converting), self._types).items()
            }
        except pa.ArrowInvalid as error:
            raise self._bad_row(rows) from error

    def _conversion(self, types: dict[str, pa.DataType]) -> pacsv.ConvertOptions:
        return pacsv.ConvertOptions(
            column_types={**types, self._marks: pa.bool_()},
            include_columns=[*types, self._marks],
            null_values=self._na_values,  # This applies to numbers only, because a category may be one of these texts.
            true_values=[self._mark],
            false_values=[],
            strings_can_be_null=False,
        )

    def _read(self, rows: Sequence[bytes], converting: pacsv.ConvertOptions) -> pa.Table:
        """Return a table of the rows, and the column of markers. Raises ArrowInvalid: a payload is not a row, or its values have other types."""
        end = f"{self._separator}{self._mark}\n".encode()
        content = end.join([*rows, b""])
        if len(rows) > 1 and content.count(self._mark.encode()) > len(rows):
            return pa.concat_tables([self._read([row], converting) for row in rows])
        if _BOM[:1] in content:
            content = end.join([*(row.removeprefix(_BOM) for row in rows), b""])
        content = _BOM + content  # pyarrow removes one byte order mark.
        reading = pacsv.ReadOptions(
            use_threads=False, column_names=[*self._fields, self._marks], block_size=min(len(content) + 1, _LARGEST_BLOCK)
        )
        table = pacsv.read_csv(pa.BufferReader(content), reading, self._parsing, converting)
        if table.num_rows != len(rows) or table[self._marks].null_count:
            raise pa.ArrowInvalid(f"{len(rows)} samples do not give this number of rows")
        return table

    def _can_read(self, rows: Sequence[bytes], types: dict[str, pa.DataType]) -> bool:
        try:
            self._read(rows, self._conversion(types))
        except pa.ArrowInvalid:
            return False
        return True

    def _bad_row(self, rows: Sequence[bytes]) -> BadRowError:
        """Describe the first bad row, which bisection finds."""
        good, bad = 0, len(rows)
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._can_read(rows[good:middle], self._types):
                good = middle
            else:
                bad = middle
        return BadRowError.of(good, self._why_bad(rows[good]))

    def _why_bad(self, row: bytes) -> str:
        if not row and len(self._fields) > 1:
            return f"'', is empty; a sample is one row with the fields {', '.join(self._fields)}"
        name = next((name for name, type_ in self._types.items() if not self._can_read([row], {name: type_})), "")
        if not name or not self._can_read([row], {}):
            return f"{_shown(row)}, is not one CSV line of {len(self._fields)} fields with all quotes closed; correct it, or `names` and `separator`"
        value = self._read([row], self._conversion({name: pa.binary()}))[name][0].as_py().decode(errors="backslashreplace")[:80]
        if pa.types.is_string(self._types[name]):
            return f"column '{name}': '{value}' is not UTF-8; correct it"
        return f"column '{name}': '{value}' is not a number; correct it, add it to na_values, or declare the column as category"


class _JsonRows:
    """Reads rows of JSON with pyarrow. If pyarrow refuses the rows, for example because a category is a number, reads them value by value."""

    def __init__(self, schema: ColumnSchema, types: dict[str, pa.DataType], absent_is_missing: bool) -> None:
        self._kinds, self._types, self._absent_is_missing = schema.kinds, types, absent_is_missing
        self._na_values = frozenset(schema.na_values)
        self._options = pajson.ParseOptions(
            explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore", newlines_in_values=True
        )

    def parse(self, payloads: Sequence[bytes]) -> dict[str, pa.Array]:
        """See `ColumnParser.parse`. Takes one row or more."""
        table = self._read(payloads)
        if table is None:
            values = zip(*(self._values(row, payload) for row, payload in enumerate(payloads)), strict=True)
            return {name: pa.array(found, type_) for (name, type_), found in zip(self._types.items(), values, strict=True)}
        columns = _arrays(table, self._types)
        if not self._absent_is_missing:
            # pyarrow does not distinguish a null field from an absent field.
            nulls = {row for column in columns.values() if column.null_count for row in np.flatnonzero(column.is_null()).tolist()}
            for row in sorted(nulls):
                if not self._has_all(payloads[row]):
                    self._values(row, payloads[row])
        return columns

    def _read(self, payloads: Sequence[bytes]) -> pa.Table | None:
        """Return a table with one row for each payload; None if a payload is not a row of the schema."""
        if not _are_in_brackets(payloads):
            payloads = [payload.strip(_BLANKS) for payload in payloads]
            if not _are_in_brackets(payloads):
                return None
        # If the numbers of payloads and objects are equal, each payload is one object, because a closing bracket before an opening bracket occurs
        # only between objects.
        content = b"\n".join(payloads)
        reading = pajson.ReadOptions(use_threads=False, block_size=min(len(content) + 1, _LARGEST_BLOCK))
        try:
            table = pajson.read_json(pa.BufferReader(content), reading, self._options)
            table.validate(full=True)
        except pa.ArrowInvalid:
            return None
        return table if table.num_rows == len(payloads) else None

    def _values(self, row: int, payload: bytes) -> list[Any]:
        found = self._object(row, payload)
        for name in () if self._absent_is_missing else self._kinds:
            if name not in found:
                fields = ", ".join(list(found)[:_LISTED]) or "none"
                raise BadRowError.of(
                    row, f"there is no column '{name}'; its fields are {fields}. Write null where a value is unknown"
                )
        return [_value(row, name, found.get(name), kind, self._na_values) for name, kind in self._kinds.items()]

    def _has_all(self, payload: bytes) -> bool:
        """Return whether an object certainly has the fields of all columns."""
        try:
            found = json.loads(payload)
        except (ValueError, RecursionError):
            return False
        return isinstance(found, dict) and self._types.keys() <= found.keys()

    def _object(self, row: int, payload: bytes) -> dict[str, Any]:
        try:
            found = json.loads(payload, parse_int=_Digits)
        except (ValueError, RecursionError) as error:
            # pyarrow accepts more than `json`: deep nesting, wrong UTF-8 in undeclared columns, and "Inf".
            if (table := self._read([payload])) is not None:
                taken: dict[str, Any] = table.to_pylist()[0]
                return {name: value for name, value in taken.items() if value is not None or f'"{name}"'.encode() in payload}
            why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise BadRowError.of(row, f"{_shown(payload)}, is not JSON: {why}; a sample is one JSON object") from error
        if not isinstance(found, dict):
            raise BadRowError.of(
                row, f"{_shown(payload)}, is not a JSON object; a sample is one object with the names of the columns"
            )
        return found


class _Digits(str):
    """A whole number of JSON with any number of digits."""

    __slots__ = ()


def _are_in_brackets(payloads: Sequence[bytes]) -> bool:
    return all(map(bytes.startswith, payloads, repeat(b"{"))) and all(map(bytes.endswith, payloads, repeat(b"}")))


def _arrays(table: pa.Table, names: Iterable[str]) -> dict[str, pa.Array]:
    return {name: table.column(name).combine_chunks() for name in names}


def _without_empty(array: pa.Array) -> pa.Array:
    """Replace empty texts by null. Keep numbers."""
    if not pa.types.is_string(array.type):
        return array
    is_empty = pc.equal(pc.binary_length(array), 0)
    return pc.if_else(is_empty, None, array) if pc.any(is_empty).as_py() else array


def _value(row: int, name: str, value: Any, kind: ColumnKind, na_values: frozenset[str]) -> Any:
    if value is None:
        return None
    if kind is ColumnKind.NUMBER:
        if isinstance(value, bool | float | _Digits):
            return float(value)
        if isinstance(value, str) and value in na_values:
            return None
        raise BadRowError.of(
            row,
            f"column '{name}': {_shown_value(value)} is not a number; correct it, add it to na_values, or declare the column as category",
        )
    if isinstance(value, bool):
        return json.dumps(value)
    if not isinstance(value, str):
        raise BadRowError.of(
            row,
            f"column '{name}': {_shown_value(value)} is neither a text nor a whole number; correct it, or declare another kind",
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRowError.of(
            row, f"column '{name}': {_shown_value(value)} is not a text, it has half of a surrogate pair; correct it"
        ) from error
    return value


def _shown_value(value: Any) -> str:
    if isinstance(value, dict | list):  # The row may be nested too deeply to be shown.
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value)[:80]


def _shown(payload: bytes) -> str:
    text = repr(bytes(payload))[1:]
    return text if len(text) <= 80 else text[:77] + "..."
