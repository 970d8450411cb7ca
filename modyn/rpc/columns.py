"""Arrays on the wire: raw little-endian columns."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from modyn.errors import InvalidArgumentError
from modyn.proto.common_pb2 import KeyColumns, SampleColumns
from modyn.records import Int64Array, KeysAndWeights, LabelArray, SampleBatch

N = TypeVar("N", bound=np.generic)


def to_bytes(array: npt.NDArray[np.generic]) -> bytes:
    """An array as little-endian bytes."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def from_bytes(data: bytes, dtype: type[N]) -> npt.NDArray[N]:
    """A read-only view of `data` as an array. Raises InvalidArgumentError when it is no whole number of items."""
    item = np.dtype(dtype).newbyteorder("<")
    if len(data) % item.itemsize:
        raise InvalidArgumentError(f"a column of {len(data)} bytes is no whole number of {item.name} values")
    return np.frombuffer(data, item)


def keys_to_bytes(keys: Int64Array) -> bytes:
    return to_bytes(np.asarray(keys, np.int64))


def keys_from_bytes(data: bytes) -> Int64Array:
    return from_bytes(data, np.int64)


def batch_to_proto(batch: SampleBatch) -> SampleColumns:
    return SampleColumns(
        keys=keys_to_bytes(batch.keys),
        timestamps=keys_to_bytes(batch.timestamps),
        labels=to_bytes(batch.labels),
        float_labels=batch.labels.dtype.kind == "f",
    )


def batch_from_proto(columns: SampleColumns) -> SampleBatch:
    """The batch that was sent. Raises InvalidArgumentError when its columns differ in length."""
    labels: LabelArray = from_bytes(columns.labels, np.float64) if columns.float_labels else from_bytes(columns.labels, np.int64)
    try:
        return SampleBatch(keys_from_bytes(columns.keys), keys_from_bytes(columns.timestamps), labels)
    except ValueError as error:
        raise InvalidArgumentError(f"a batch of samples is broken: {error}") from error


def share_to_proto(share: KeysAndWeights) -> KeyColumns:
    return KeyColumns(keys=keys_to_bytes(share.keys), weights=to_bytes(share.weights))


def share_from_proto(columns: KeyColumns) -> KeysAndWeights:
    return KeysAndWeights(keys_from_bytes(columns.keys), from_bytes(columns.weights, np.float32))
