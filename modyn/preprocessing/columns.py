"""Named columns on their way through a preprocessing pipeline, and how they are made of Arrow arrays and of arrays of a request.

A column is read once for each batch: numbers become float64 with NaN where a value is missing, and categories are dictionary-encoded, so that
every component after it works on the distinct values of the batch only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from modyn.errors import DataError
from modyn.preprocessing.categories import Categories

Float64Array: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
RawColumns: TypeAlias = Mapping[str, Any] | pa.RecordBatch | pa.Table
"""What comes in: pyarrow arrays or numpy arrays by name, or Arrow rows."""

LARGEST: Final = 1e140
"""Numbers beyond ± this count as missing, as infinite ones do: float64 does not hold the sums of their squares."""


class ColumnKind(StrEnum):
    """What the values of a column are. The first three are declared; the others come out of components."""

    NUMBER = "number"
    """float64 (n,), NaN where missing."""
    CATEGORY = "category"
    """`Categories`."""
    TEXT = "text"
    """pyarrow.StringArray (n), null where missing."""
    INDEX = "index"
    """int64 (n,) in [0, width); 0 where missing or unknown."""
    DENSE = "dense"
    """float64 (n, width)."""
    SPARSE = "sparse"
    """`SparseColumn`, of `width` features."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """Kind of a column and how many indices or features it has, 1 for numbers."""

    kind: ColumnKind
    width: int = 1


@dataclass(frozen=True, slots=True)
class SparseColumn:
    """Sparse features in rows of equal or different lengths.

    indices: int64, (n, k) where each row has k entries, else (m,). values: float32 of the same shape, None: all 1. indptr: int64 (n + 1,), where each
    row begins; None: rows of equal length.
    """

    indices: Int64Array
    values: npt.NDArray[np.float32] | None = None
    indptr: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.indices) if self.indptr is None else len(self.indptr) - 1


Column: TypeAlias = Any
"""A column as its `ColumnKind` describes it."""
Columns: TypeAlias = Mapping[str, Column]


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """What `read_columns` has made of the declared columns of `source`: read once, and in any thread, they can be used several times.

    kinds: those declared. source: None: some of its rows.
    """

    columns: Columns
    kinds: Mapping[str, ColumnKind]
    source: RawColumns | None

    @classmethod
    def of(cls, source: RawColumns, kinds: Mapping[str, ColumnKind]) -> Self:
        """Read them. Raises: as `read_columns`."""
        return cls(read_columns(source, kinds), kinds, source)

    def first(self, num_rows: int) -> ReadColumns:
        """The first rows, as if they alone had been read."""
        parts = {
            name: column.first(num_rows) if isinstance(column, Categories) else column[:num_rows]
            for name, column in self.columns.items()
        }
        return ReadColumns(parts, self.kinds, None)


def read_columns(raw: RawColumns, kinds: Mapping[str, ColumnKind]) -> dict[str, Column]:
    """Convert the declared columns of a batch; others in `raw` are left out.

    Args: raw: pyarrow arrays, or numpy arrays (n,) or (n, 1) of numbers, text or bytes in UTF-8. kinds: by name of declared columns.
    Raises: DataError: a column is missing, has another type or another length than the first one.
    """
    given = {name: raw.column(name) for name in raw.schema.names} if isinstance(raw, pa.RecordBatch | pa.Table) else raw
    found = dict[str, Column]()
    for name, kind in kinds.items():
        if name not in given:
            raise DataError(
                f"column '{name}' is missing; given are {', '.join(given) or 'no columns'}: send it, with nulls where it is unknown"
            )
        found[name] = _READERS[kind](name, _as_arrow(name, given[name]))
        if len(found[name]) != len(found[next(iter(found))]):
            first = next(iter(found))
            raise DataError(
                f"column '{name}' has {len(found[name])} rows, '{first}' has {len(found[first])}; send one value a row"
            )
    return found


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
    """Columns of numbers as the rows of one matrix, float64 (columns, n). Must not be changed: it may be what the columns share."""
    return np.stack([columns[name] for name in names])
