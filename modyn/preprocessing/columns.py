"""Named columns of a preprocessing pipeline, and their conversion from Arrow arrays and from arrays of a request.

A column is converted once for each batch. Numbers become float64 with NaN for missing values. Categories are dictionary-encoded, so that components
process only the distinct values of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from modyn.errors import DataError
from modyn.preprocessing.statistics.categories import Categories

Float64Array: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
RawColumns: TypeAlias = Mapping[str, Any] | pa.RecordBatch | pa.Table
"""Inputs: pyarrow arrays or numpy arrays by name, or Arrow rows."""

LARGEST: Final = 1e140
"""Largest absolute value of a number. Larger numbers count as missing, like infinite numbers, because sums of their squares overflow float64."""


class ColumnKind(StrEnum):
    """Kind of the values of a column. A section declares columns of the first three kinds; components produce the others."""

    NUMBER = "number"
    """Numbers: float64 (n,), NaN where missing."""
    CATEGORY = "category"
    """`Categories`."""
    TEXT = "text"
    """Texts: pyarrow.StringArray (n), null where missing."""
    INDEX = "index"
    """Indices: int64 (n,) in [0, width); 0 if missing or unknown."""
    DENSE = "dense"
    """Dense features: float64 (n, width)."""
    SPARSE = "sparse"
    """`SparseColumn`, of `width` features."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """Kind of a column, and the number of its indices or features; 1 for numbers."""

    kind: ColumnKind
    width: int = 1


@dataclass(frozen=True, slots=True)
class SparseColumn:
    """Sparse features in rows of equal or different lengths.

    indices: int64, (n, k) if each row has k entries, else (m,). values: float32 of the same shape; None if all values are 1. indptr: int64 (n + 1,),
    start of each row; None if the rows have equal length.
    """

    indices: Int64Array
    values: npt.NDArray[np.float32] | None = None
    indptr: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.indices) if self.indptr is None else len(self.indptr) - 1


Column: TypeAlias = Any
"""A column of one of the kinds of `ColumnKind`."""
Columns: TypeAlias = Mapping[str, Column]


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """The declared columns of a batch, converted once for repeated use. Any thread may convert them.

    kinds: kinds of the declared columns, by name. source: the batch that was converted; None: these are only some rows of a converted batch.
    """

    columns: Columns
    kinds: Mapping[str, ColumnKind]
    source: RawColumns | None

    @classmethod
    def of(cls, source: RawColumns, kinds: Mapping[str, ColumnKind]) -> Self:
        """Convert the columns. Raises: see `read_columns`."""
        return cls(read_columns(source, kinds), kinds, source)

    def first(self, num_rows: int) -> ReadColumns:
        """Return the first rows. The result equals a conversion of only these rows."""
        parts = {
            name: column.first(num_rows) if isinstance(column, Categories) else column[:num_rows]
            for name, column in self.columns.items()
        }
        return ReadColumns(parts, self.kinds, None)


def read_columns(raw: RawColumns, kinds: Mapping[str, ColumnKind]) -> dict[str, Column]:
    """Convert the declared columns of a batch. Other columns of `raw` are ignored.

    Args: raw: pyarrow arrays, or numpy arrays (n,) or (n, 1) of numbers, text or bytes in UTF-8. kinds: of the declared columns, by name.
    Raises: DataError: a column is missing, or its type or length is wrong.
    """
    given = {name: raw.column(name) for name in raw.schema.names} if isinstance(raw, pa.RecordBatch | pa.Table) else raw
    found = dict[str, Column]()
    for name, kind in kinds.items():
        if name not in given:
            raise DataError(
                f"column '{name}' is missing; the batch has {', '.join(given) or 'no columns'}: send it, with nulls where it is unknown"
            )
        found[name] = _READERS[kind](name, _as_arrow(name, given[name]))
        if len(found[name]) != len(found[next(iter(found))]):
            first = next(iter(found))
            raise DataError(
                f"column '{name}' has {len(found[name])} rows, '{first}' has {len(found[first])}; send one value a row"
            )
    return found


def beyond_largest(raw: RawColumns, name: str, row: int) -> float | None:
    """Return the finite value of a number that counts as missing because it is beyond `LARGEST`; else None."""
    given = {found: raw.column(found) for found in raw.schema.names} if isinstance(raw, pa.RecordBatch | pa.Table) else raw
    if name not in given:
        return None  # A component makes this column.
    value = _as_arrow(name, given[name])[row].as_py()
    return value if isinstance(value, float) and LARGEST < abs(value) < math.inf else None


def _as_arrow(name: str, values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        return values if isinstance(values, pa.Array) else pa.concat_arrays(values.chunks)
    if isinstance(values, pa.Array):
        return values
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"column '{name}' has the shape {array.shape}; send (rows,) or (rows, 1)")
    try:
        return pa.array(array.tolist() if array.dtype.kind in "SUO" else array)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(f"column '{name}', {array.dtype}, cannot be read: {error}; send numbers, strings or UTF-8") from error


def _read_numbers(name: str, array: pa.Array) -> Float64Array:
    if pa.types.is_boolean(array.type) or pa.types.is_null(array.type):
        array = array.cast(pa.int8())
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_decimal(array.type)):
        raise DataError(
            f"column '{name}' is {array.type}, but declared as number: send numbers, or declare it as category or text"
        )
    if not pa.types.is_float64(array.type):
        array = array.cast(pa.float64(), safe=False)
    values: Float64Array = array.to_numpy(zero_copy_only=False)
    usable = np.abs(values) <= LARGEST
    return values if usable.all() else np.where(usable, values, np.nan)


def _read_categories(name: str, array: pa.Array) -> Categories:
    return Categories.of(_read_texts(name, array, "category"))


def _read_texts(name: str, array: pa.Array, declared: str = "text") -> pa.StringArray:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string(array.type):
        return array
    whole = pa.types.is_integer(array.type) or pa.types.is_boolean(array.type) or pa.types.is_null(array.type)
    if not (
        whole or pa.types.is_large_string(array.type) or pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)
    ):
        raise DataError(
            f"column '{name}' is {array.type}, but declared as {declared}: send strings or whole numbers, or declare it as number"
        )
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise DataError(f"column '{name}' cannot be read as {declared}: {error}; send strings in UTF-8") from error


_READERS: Final = {ColumnKind.NUMBER: _read_numbers, ColumnKind.CATEGORY: _read_categories, ColumnKind.TEXT: _read_texts}


def stacked(columns: Columns, names: Sequence[str]) -> Float64Array:
    """Stack columns of numbers as the rows of one matrix, float64 (columns, n). Do not change the matrix, because the matrix may share memory
    with the columns.
    """
    return np.stack([columns[name] for name in names])
