"""From the columns of a batch to the features that a model is given, the same wherever a model runs. In workers only: imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import torch

from modyn.dataset.batch import Batch, map_tensors
from modyn.errors import DataError, ModynError
from modyn.preprocessing import Features, Preprocessing
from modyn.preprocessing.columns import ReadColumns
from modyn.records import Int64Array


def with_features(batch: Batch, features: Features) -> Batch:
    """The batch with features as its data, on its device, in place of columns. It cannot be cut any more: sparse features are no rows of tensors."""
    device = batch.labels.device
    data = map_tensors(features.to_torch(), lambda tensor: tensor.to(device, non_blocking=True))
    return replace(batch, data=data, columns=None)


def transformed(batch: Batch, preprocessing: Preprocessing) -> Batch:
    """The batch with features of its columns by statistics as they are, which do not change.

    Raises: DataError: a value cannot be a feature; names the sample.
    """
    with naming_samples(batch, preprocessing):
        return with_features(batch, preprocessing.transform(_read_of(batch, preprocessing)))


def transformed_rows(batch: Batch, preprocessing: Preprocessing) -> tuple[Batch, torch.Tensor]:
    """As `transformed`, but of the samples alone whose values can all be features, and which rows those are: int64 (k,), ascending."""
    try:
        return with_features(batch, preprocessing.transform(_read_of(batch, preprocessing))), torch.arange(len(batch))
    except DataError:
        bad = [row for row, _ in _bad_rows(_columns_of(batch), preprocessing)]
    is_usable = torch.ones(len(batch), dtype=torch.bool)
    is_usable[bad] = False
    rows = torch.nonzero(is_usable)[:, 0]
    usable = batch.take(rows, batch.weights[rows.to(batch.weights.device)])
    return with_features(usable, preprocessing.transform(_columns_of(usable))), rows


def learned(batch: Batch, preprocessing: Preprocessing) -> Batch:
    """As `transformed`, after the batch has updated the statistics."""
    with naming_samples(batch, preprocessing):
        return with_features(batch, preprocessing.update_and_transform(_read_of(batch, preprocessing)))


def learned_of_new(batch: Batch, preprocessing: Preprocessing, rows: Int64Array) -> Batch:
    """As `transformed`, after some rows of the batch have updated the statistics. Args: rows: int64 (k,), ascending."""
    with naming_samples(batch, preprocessing):
        if len(rows):
            preprocessing.update(columns_at(batch, preprocessing, rows))
        return with_features(batch, preprocessing.transform(_read_of(batch, preprocessing)))


def columns_at(batch: Batch, preprocessing: Preprocessing, rows: Int64Array) -> pa.RecordBatch | ReadColumns:
    """Some rows of the columns of a batch; the first ones are read already. Args: rows: int64 (k,), ascending, at least one. Raises: DataError."""
    if rows[-1] == len(rows) - 1:
        return _read_of(batch, preprocessing).first(len(rows))
    return _columns_of(batch).take(pa.array(rows))


@contextmanager
def naming_samples(batch: Batch, preprocessing: Preprocessing) -> Iterator[None]:
    """Raise DataError with the key of the sample that it is about, where that can be found: the first that cannot be transformed by itself."""
    try:
        yield
    except DataError as error:
        for row, of_row in _bad_rows(_columns_of(batch), preprocessing):
            key = int(batch.keys[row])
            raise DataError(f"sample key {key}: {of_row.message.replace('row 0', 'it', 1)}", key) from error
        raise


def _bad_rows(columns: pa.RecordBatch, preprocessing: Preprocessing, first: int = 0) -> Iterator[tuple[int, DataError]]:
    """The rows that cannot be transformed, ascending, each with what is wrong with it; by halves, so with few calls for few of them.

    Args: first: what the first row is called.
    """
    try:
        preprocessing.transform(columns)
    except DataError as error:
        half = len(columns) // 2
        if not half:
            yield first, error
            return
        yield from _bad_rows(columns.slice(0, half), preprocessing, first)
        yield from _bad_rows(columns.slice(half), preprocessing, first + half)


def _columns_of(batch: Batch) -> pa.RecordBatch:
    if batch.columns is None:
        raise ModynError("a batch without columns is to be transformed: this is an error in Modyn; please report it")
    return batch.columns


def _read_of(batch: Batch, preprocessing: Preprocessing) -> ReadColumns:
    """What is read of the columns of a batch: where it was made, unless these are others, or are read otherwise here. Raises: DataError."""
    columns, read = _columns_of(batch), batch.read
    return (
        read if read is not None and read.source is columns and read.kinds == preprocessing.kinds else preprocessing.read(columns)
    )
