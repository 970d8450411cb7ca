"""What comes out of a preprocessing pipeline: dense features and sparse ones in CSR form, of a width that never changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from modyn.errors import DataError
from modyn.preprocessing.columns import Column, ColumnKind, Columns, ColumnType, Int64Array, SparseColumn

if TYPE_CHECKING:
    import torch

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """Where the features of a column stand: from `start` on, `width` of them, among the dense or among the sparse ones."""

    column: str
    sparse: bool
    start: int
    width: int


@dataclass(frozen=True, slots=True)
class Features:
    """Features of n rows.

    dense: float32 (n, d). indptr: int64 (n + 1,); row i has the sparse entries indptr[i] to indptr[i + 1]. indices: int64 (m,) in [0, num_sparse); an
    index that stands twice in a row counts with the sum of its values. values: float32 (m,).
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
        """Dense and sparse features together."""
        return int(self.dense.shape[1]) + self.num_sparse

    def rows(self, start: int, stop: int) -> Features:
        """Rows [start, stop), without copying values."""
        indptr = self.indptr[start : stop + 1]
        part = slice(int(indptr[0]), int(indptr[-1]))
        return Features(self.dense[start:stop], indptr - indptr[0], self.indices[part], self.values[part], self.num_sparse)

    def to_dense(self) -> Float32Array:
        """All features as one matrix, float32 (n, num_features), dense ones first. For few features: it is as wide as all vocabularies together."""
        sparse = np.zeros((len(self), self.num_sparse), np.float32)
        np.add.at(sparse, (np.repeat(np.arange(len(self)), np.diff(self.indptr)), self.indices), self.values)
        return np.concatenate([self.dense, sparse], axis=1)

    def to_torch(self) -> torch.Tensor | dict[str, torch.Tensor]:
        """Tensors that share memory with the arrays; a row is found by its place along the first dimension only in `dense` and `offsets`.

        Returns: the dense matrix (n, d) if there are no sparse features; else `indices`, `offsets` and `values` as `torch.nn.EmbeddingBag` takes them
        with `mode="sum"` (`values` as `per_sample_weights`), and `dense` (n, d) if there are dense ones.
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
    """Where each column goes, dense and sparse features numbered separately, in the order of `types`."""
    ranges, ends = [], {False: 0, True: 0}
    for name, found in types.items():
        sparse = found.kind not in _DENSE_KINDS
        width = 1 if found.kind is ColumnKind.INDEX else found.width
        ranges.append(FeatureRange(name, sparse, ends[sparse], width))
        ends[sparse] += width
    return tuple(ranges)


def assemble(columns: Columns, ranges: Sequence[FeatureRange], num_rows: int) -> Features:
    """Put columns side by side.

    Raises: DataError: a number is missing, or is no float32; it names row and column.
    """
    widths = {sparse: sum(found.width for found in ranges if found.sparse is sparse) for sparse in (False, True)}
    dense = np.empty((num_rows, widths[False]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for found in ranges:
            if not found.sparse:
                values = columns[found.column]
                dense[:, found.start : found.start + found.width] = values if values.ndim == 2 else values[:, None]
    _check_finite(dense, ranges)
    sparse = [(columns[found.column], found.start) for found in ranges if found.sparse]
    return Features(dense, *_joined(sparse, num_rows), widths[True])


def _joined(sparse: Sequence[tuple[Column, int]], num_rows: int) -> tuple[Int64Array, Int64Array, Float32Array]:
    """`indptr`, `indices` and `values` of columns, each with what is added to its indices."""
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


def _check_finite(dense: Float32Array, ranges: Sequence[FeatureRange]) -> None:
    finite = np.isfinite(dense)
    if finite.all():
        return
    row, at = (int(place[0]) for place in np.nonzero(~finite))
    name = next(found.column for found in ranges if not found.sparse and found.start <= at < found.start + found.width)
    if np.isnan(dense[row, at]):
        raise DataError(
            f"row {row} has no value in column '{name}'; add an Imputer for it to `preprocessing.components`, or send a finite number"
        )
    raise DataError(
        f"row {row} has a value in column '{name}' that is too large for float32; add a StandardScaler or a MinMaxScaler for it"
    )
