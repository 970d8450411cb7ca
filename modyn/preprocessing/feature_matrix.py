"""Output of a preprocessing pipeline: dense features, and sparse features in CSR form, of fixed width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from modyn.errors import DataError
from modyn.preprocessing.columns import (
    LARGEST,
    Column,
    ColumnKind,
    Columns,
    ColumnType,
    Int64Array,
    RawColumns,
    SparseColumn,
    beyond_largest,
)

if TYPE_CHECKING:
    import torch

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """Range of the features of a column: `width` features from `start` on, among the dense or the sparse features."""

    column: str
    sparse: bool
    start: int
    width: int


@dataclass(frozen=True, slots=True)
class Features:
    """Features of n rows.

    dense: float32 (n, d). indptr: int64 (n + 1,); row i has the sparse entries indptr[i] to indptr[i + 1]. indices: int64 (m,) in [0, num_sparse);
    an index that occurs twice in a row counts with the sum of the values. values: float32 (m,).
    """

    dense: Float32Array
    indptr: Int64Array
    indices: Int64Array
    values: Float32Array
    num_sparse: int

    def __len__(self) -> int:
        return len(self.dense)

    @property
    def num_features(self) -> int:
        """Return the number of dense and sparse features."""
        return int(self.dense.shape[1]) + self.num_sparse

    def rows(self, start: int, stop: int) -> Features:
        """Return the rows [start, stop), without copying values."""
        indptr = self.indptr[start : stop + 1]
        part = slice(int(indptr[0]), int(indptr[-1]))
        return Features(self.dense[start:stop], indptr - indptr[0], self.indices[part], self.values[part], self.num_sparse)

    def to_dense(self) -> Float32Array:
        """Return all features as one matrix, float32 (n, num_features), dense features first. Use this only for few features, because the width
        includes all vocabularies.
        """
        sparse = np.zeros((len(self), self.num_sparse), np.float32)
        np.add.at(sparse, (np.repeat(np.arange(len(self)), np.diff(self.indptr)), self.indices), self.values)
        return np.concatenate([self.dense, sparse], axis=1)

    def to_torch(self) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return tensors that share memory with the arrays. The first dimension is the row in `dense` and `offsets`, and the entry in `indices` and
        `values`.

        Returns: the dense matrix (n, d) if there are no sparse features; else `indices`, `offsets` and `values` for `torch.nn.EmbeddingBag` with
        `mode="sum"` (`values` as `per_sample_weights`), and `dense` (n, d) if there are dense features.
        """
        import torch

        dense = torch.from_numpy(self.dense)
        if not self.num_sparse:
            return dense
        found = {
            "indices": torch.from_numpy(self.indices),
            "offsets": torch.from_numpy(self.indptr[:-1]),
            "values": torch.from_numpy(self.values),
        }
        return {**found, "dense": dense} if self.dense.shape[1] else found


_DENSE_KINDS = (ColumnKind.NUMBER, ColumnKind.INDEX, ColumnKind.DENSE)


def feature_ranges(types: Mapping[str, ColumnType]) -> tuple[FeatureRange, ...]:
    """Return the ranges of the columns in the order of `types`. Dense and sparse features are numbered separately."""
    ranges, ends = [], {False: 0, True: 0}
    for name, found in types.items():
        sparse = found.kind not in _DENSE_KINDS
        width = 1 if found.kind is ColumnKind.INDEX else found.width
        ranges.append(FeatureRange(name, sparse, ends[sparse], width))
        ends[sparse] += width
    return tuple(ranges)


def assemble(columns: Columns, ranges: Sequence[FeatureRange], num_rows: int, source: RawColumns | None = None) -> Features:
    """Join columns side by side.

    Args: source: the columns before they were converted, if known; for messages.
    Raises: DataError: a number is missing or overflows float32; the error names row and column.
    """
    widths = {sparse: sum(found.width for found in ranges if found.sparse is sparse) for sparse in (False, True)}
    dense = np.empty((num_rows, widths[False]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for found in ranges:
            if not found.sparse:
                values = columns[found.column]
                dense[:, found.start : found.start + found.width] = values if values.ndim == 2 else values[:, None]
    _check_finite(dense, ranges, source)
    sparse = [(columns[found.column], found.start) for found in ranges if found.sparse]
    return Features(dense, *_joined(sparse, num_rows), widths[True])


def _joined(sparse: Sequence[tuple[Column, int]], num_rows: int) -> tuple[Int64Array, Int64Array, Float32Array]:
    """Join the columns into `indptr`, `indices` and `values`. Each column is given with the offset of the column's indices."""
    if any(column.indptr is not None for column, _ in sparse):
        return _joined_by_row(sparse, num_rows)
    length = sum(column.indices.shape[1] for column, _ in sparse)
    indices, values, at = np.empty((num_rows, length), np.int64), np.ones((num_rows, length), np.float32), 0
    for column, start in sparse:
        part = slice(at, at := at + column.indices.shape[1])
        np.add(column.indices, start, out=indices[:, part])
        if column.values is not None:
            values[:, part] = column.values
    return np.arange(num_rows + 1, dtype=np.int64) * length, indices.reshape(-1), values.reshape(-1)


def _joined_by_row(sparse: Sequence[tuple[SparseColumn, int]], num_rows: int) -> tuple[Int64Array, Int64Array, Float32Array]:
    rows, indices, values = [], [], []
    for column, start in sparse:
        lengths = np.diff(column.indptr) if column.indptr is not None else np.full(num_rows, column.indices.shape[1])
        rows.append(np.repeat(np.arange(num_rows), lengths))
        indices.append(column.indices.reshape(-1) + start)
        values.append(np.ones(len(indices[-1]), np.float32) if column.values is None else column.values.reshape(-1))
    row = np.concatenate(rows)
    order = np.argsort(row, kind="stable")
    indptr = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=num_rows), out=indptr[1:])
    return indptr, np.concatenate(indices)[order], np.concatenate(values)[order]


def _check_finite(dense: Float32Array, ranges: Sequence[FeatureRange], source: RawColumns | None) -> None:
    finite = np.isfinite(dense)
    if finite.all():
        return
    row, at = (int(place[0]) for place in np.nonzero(~finite))
    name = next(found.column for found in ranges if not found.sparse and found.start <= at < found.start + found.width)
    if np.isnan(dense[row, at]):
        if source is not None and (value := beyond_largest(source, name, row)) is not None:
            raise DataError(
                f"row {row} has {value:g} in column '{name}', which is too large: numbers beyond ±{LARGEST:g} count as missing; correct it, or add "
                "an Imputer for it to `preprocessing.components`"
            )
        raise DataError(
            f"row {row} has no value in column '{name}'; add an Imputer for it to `preprocessing.components`, or send a finite number"
        )
    raise DataError(
        f"row {row} has a value in column '{name}' that is too large for float32; add a StandardScaler or a MinMaxScaler for it"
    )
