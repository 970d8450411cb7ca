"""Turns the columns of a batch into the features of a model, in the same way for training and for use. Only workers import this module, because it
imports torch.
"""

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
    """Replace the columns of a batch by features, on the device of the batch. The result cannot be sliced, because sparse features are not rows of a
    tensor."""
    device = batch.labels.device
    data = map_tensors(features.to_torch(), lambda tensor: tensor.to(device, non_blocking=True))
    return replace(batch, data=data, columns=None)


def transform_batch(batch: Batch, preprocessing: Preprocessing) -> Batch:
    """Replace the columns of a batch by their features. The statistics do not change.

    Raises: DataError: a value cannot be a feature. The message names the sample.
    """
    with naming_samples(batch, preprocessing):
        return with_features(batch, preprocessing.transform(_read_of(batch, preprocessing)))


def transform_usable_rows(batch: Batch, preprocessing: Preprocessing) -> tuple[Batch, torch.Tensor]:
    """Transform only the samples whose values can all be features. Returns these samples and their rows, int64 (k,), ascending."""
    try:
        return with_features(batch, preprocessing.transform(_read_of(batch, preprocessing))), torch.arange(len(batch))
    except DataError:
        bad = [row for row, _ in _bad_rows(_columns_of(batch), preprocessing)]
    is_usable = torch.ones(len(batch), dtype=torch.bool)
    is_usable[bad] = False
    rows = torch.nonzero(is_usable)[:, 0]
    usable = batch.take(rows, batch.weights[rows.to(batch.weights.device)])
    return with_features(usable, preprocessing.transform(_columns_of(usable))), rows


def learn_batch(batch: Batch, preprocessing: Preprocessing) -> Batch:
    """Update the statistics with a batch, and replace its columns by their features. Raises as `transform_batch`."""
    with naming_samples(batch, preprocessing):
        return with_features(batch, preprocessing.update_and_transform(_read_of(batch, preprocessing)))


def learn_rows(batch: Batch, preprocessing: Preprocessing, rows: Int64Array) -> Batch:
    """Update the statistics with some rows of a batch, then transform the whole batch. Args: rows: int64 (k,), ascending. Raises as
    `transform_batch`.
    """
    with naming_samples(batch, preprocessing):
        if len(rows):
            preprocessing.update(columns_at(batch, preprocessing, rows))
        return with_features(batch, preprocessing.transform(_read_of(batch, preprocessing)))


def columns_at(batch: Batch, preprocessing: Preprocessing, rows: Int64Array) -> pa.RecordBatch | ReadColumns:
    """Read some rows of the columns of a batch. If `rows` are the first k rows, they are not read again. Args: rows: int64 (k,), ascending, at least
    one.
    Raises: DataError.
    """
    if rows[-1] == len(rows) - 1:
        return _read_of(batch, preprocessing).first(len(rows))
    return _columns_of(batch).take(pa.array(rows))


@contextmanager
def naming_samples(batch: Batch, preprocessing: Preprocessing) -> Iterator[None]:
    """Add to a DataError the key of the first sample that fails when it is transformed alone. If no sample fails alone, the error stays as it is."""
    try:
        yield
    except DataError as error:
        for row, of_row in _bad_rows(_columns_of(batch), preprocessing):
            key = int(batch.keys[row])
            # The sample was transformed alone, so the message of its error says `row 0`.
            raise DataError(f"sample key {key}: {of_row.message.replace('row 0', 'it', 1)}", key) from error
        raise


def _bad_rows(columns: pa.RecordBatch, preprocessing: Preprocessing, first: int = 0) -> Iterator[tuple[int, DataError]]:
    """Find the rows that cannot be transformed, ascending, each with its error. The search bisects, so that few bad rows cause few calls.

    Args: first: number of the first row.
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
    """Return the columns that were read with the batch. If they come from another source, read the columns of the batch again. Raises: DataError."""
    columns, read = _columns_of(batch), batch.read
    return (
        read if read is not None and read.source is columns and read.kinds == preprocessing.kinds else preprocessing.read(columns)
    )
