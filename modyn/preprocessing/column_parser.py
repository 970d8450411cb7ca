"""ColumnParser: from the payloads of many samples to columns, by the schema that the pipeline declares."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Section
from modyn.errors import ConfigError, DataError
from modyn.preprocessing.base import ColumnName
from modyn.preprocessing.columns import ColumnKind
from modyn.registry import nearest

_TYPES: Final = {ColumnKind.NUMBER: pa.float64(), ColumnKind.CATEGORY: pa.string(), ColumnKind.TEXT: pa.string()}
_LARGEST_BLOCK: Final = (1 << 31) - 1


class ColumnSchema(Section):
    """Which columns samples have, and how they stand in payloads."""

    columns: dict[ColumnName, Literal["number", "category", "text"]] = Field(
        min_length=1, description="columns that are read, by name; others in the data are left out"
    )
    format: Literal["csv", "json"] | None = Field(
        None, description="a payload is one row of CSV, or one JSON object; without it, columns come from elsewhere"
    )
    names: tuple[ColumnName, ...] | None = Field(None, min_length=1, description="csv: names of all fields of a row, in order")
    separator: str = Field(",", min_length=1, max_length=1, description="csv: what stands between two fields")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.format != "csv":
            if self.names is not None:
                raise PlacedError("names", "only `format: csv` has names of fields; remove the key or add the format")
            return self
        if self.names is None:
            raise PlacedError("names", "is required with `format: csv`: the names of all fields of a row, in order")
        if len(set(self.names)) < len(self.names):
            raise PlacedError("names", f"'{max(self.names, key=self.names.count)}' stands twice; name each field once")
        for name in self.columns:
            if name not in self.names:
                raise PlacedError(
                    f"columns.{name}",
                    f"no field has this name{nearest(name, list(self.names))}; `names` are {', '.join(self.names)}",
                )
        return self

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """Kinds of the columns by name."""
        return {name: ColumnKind(kind) for name, kind in self.columns.items()}


class ColumnParser:
    """Parses payloads, all at once by pyarrow, and one by one only to find a bad one.

    An empty CSV field and a JSON field that is null or absent are missing. In JSON, a category or text may be a whole number or a boolean.
    """

    def __init__(self, schema: ColumnSchema) -> None:
        """Raises: ConfigError: the schema has no format."""
        if schema.format is None:
            raise ConfigError("preprocessing.format: is required to read payloads: csv or json")
        self._schema = schema
        self._types = {name: _TYPES[kind] for name, kind in schema.kinds.items()}

    def parse(self, payloads: Sequence[bytes]) -> dict[str, pa.Array]:
        """Columns of n samples, float64 or string arrays (n) with nulls.

        Raises: DataError: a payload is not a row as declared; it names row (from 0, in `payloads`), column and value.
        """
        if not payloads:
            return {name: pa.array([], type_) for name, type_ in self._types.items()}
        return self._csv(payloads) if self._schema.format == "csv" else self._json(payloads)

    def _csv(self, payloads: Sequence[bytes]) -> dict[str, pa.Array]:
        payloads = [payload.rstrip(b"\r\n") for payload in payloads]
        fields = self._schema.names or ()
        if len(fields) > 1 and b"" in payloads:
            raise DataError(f"row {payloads.index(b'')} is empty; a sample is one row with the fields {', '.join(fields)}")
        try:
            table = self._read_csv(payloads, self._types)
        except pa.ArrowInvalid as error:
            raise self._bad_csv_row(payloads, str(error)) from error
        if table.num_rows != len(payloads):
            raise self._bad_csv_row(payloads, f"there are {table.num_rows} rows")
        return _arrays(table)

    def _read_csv(self, payloads: Sequence[bytes], types: Mapping[str, pa.DataType]) -> pa.Table:
        content = b"\n".join(payloads) + b"\n"
        return pacsv.read_csv(
            pa.BufferReader(content),
            pacsv.ReadOptions(
                use_threads=False, column_names=self._schema.names, block_size=min(len(content) + 1, _LARGEST_BLOCK)
            ),
            pacsv.ParseOptions(delimiter=self._schema.separator, newlines_in_values=True, ignore_empty_lines=False),
            pacsv.ConvertOptions(column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=True),
        )

    def _bad_csv_row(self, payloads: Sequence[bytes], what: str) -> DataError:
        for row, payload in enumerate(payloads):
            try:
                texts = self._read_csv([payload], dict.fromkeys(self._types, pa.string()))
            except pa.ArrowInvalid as error:
                return DataError(
                    f"row {row}, {_shown(payload)}, is no CSV row as declared: {error}; correct it or `names` and `separator`"
                )
            if texts.num_rows != 1:
                return DataError(f"row {row}, {_shown(payload)}, has {texts.num_rows} rows; a sample is one row")
            for name, type_ in self._types.items():
                try:
                    self._read_csv([payload], {name: type_})
                except pa.ArrowInvalid:
                    value = texts.column(name)[0].as_py()
                    return DataError(
                        f"row {row}, column '{name}': '{value}' is no number; correct it, or declare the column as category"
                    )
        return DataError(f"{len(payloads)} samples are not as many CSV rows: {what}; a sample is one row")

    def _json(self, payloads: Sequence[bytes]) -> dict[str, pa.Array]:
        content = b"\n".join(payloads)
        options = pajson.ParseOptions(
            explicit_schema=pa.schema(list(self._types.items())), unexpected_field_behavior="ignore", newlines_in_values=True
        )
        reading = pajson.ReadOptions(use_threads=False, block_size=min(len(content) + 1, _LARGEST_BLOCK))
        try:
            table = pajson.read_json(pa.BufferReader(content), reading, options)
            table.validate(full=True)
        except pa.ArrowInvalid:
            table = None  # a bad row, or a category that is a number: both are found value by value
        if table is not None and table.num_rows == len(payloads):
            return _arrays(table.select(list(self._types)))
        rows = [_object(row, payload) for row, payload in enumerate(payloads)]
        return {
            name: pa.array([_value(at, name, row.get(name), kind) for at, row in enumerate(rows)], self._types[name])
            for name, kind in self._schema.kinds.items()
        }


def _arrays(table: pa.Table) -> dict[str, pa.Array]:
    return {name: table.column(name).combine_chunks() for name in table.column_names}


def _object(row: int, payload: bytes) -> dict[str, Any]:
    try:
        found = json.loads(payload)
    except ValueError as error:
        raise DataError(f"row {row}, {_shown(payload)}, is no JSON: {error}; a sample is one JSON object") from error
    if not isinstance(found, dict):
        raise DataError(f"row {row}, {_shown(payload)}, is no JSON object; a sample is one, with the names of columns")
    return found


def _value(row: int, name: str, value: Any, kind: ColumnKind) -> Any:
    if value is None:
        return None
    if kind is ColumnKind.NUMBER:
        if isinstance(value, int | float):
            return float(value) if abs(value) < 1e300 else float("inf")
        raise DataError(
            f"row {row}, column '{name}': {json.dumps(value)[:80]} is no number; correct it, or declare the column as category"
        )
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return json.dumps(value)
    raise DataError(
        f"row {row}, column '{name}': {json.dumps(value)[:80]} is no text or whole number; correct it, or declare another kind"
    )


def _shown(payload: bytes) -> str:
    text = repr(bytes(payload))[1:]
    return text if len(text) <= 80 else text[:77] + "..."
