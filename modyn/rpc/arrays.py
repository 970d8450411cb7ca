"""Converters between arrays and protos. Numbers are sent as raw little-endian bytes, or packed into the smallest number of bytes for their range."""

from __future__ import annotations

import numpy as np

from modyn._core import find_runs
from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import InvalidArgumentError
from modyn.proto import selector_pb2
from modyn.proto.common_pb2 import Column, KeyColumns, SampleColumns
from modyn.records import FeedbackHeader, FeedbackRows, Int64Array, KeysAndWeights, LabelArray, SampleBatch

MOST_NUMBERS = 1 << 22
"""Largest length of a packed column. A column without data may have any length up to this one."""

_WIDTHS = (1, 2, 4, 8)
_FRAME_BYTES = 4096
"""Largest number of bytes of a message besides its columns."""


def items_per_message(endpoint: Endpoint, item_bytes: int) -> int:
    """Return the number of items of `item_bytes` bytes that fit into a message for `endpoint`."""
    return max(1, (endpoint.max_message_bytes - _FRAME_BYTES) // item_bytes)


def keys_to_bytes(keys: Int64Array) -> bytes:
    """Encode keys, int64 (n,), as little-endian int64."""
    return np.asarray(keys, "<i8").tobytes()


def keys_from_bytes(data: bytes) -> Int64Array:
    """Return keys, int64 (n,), as a read-only view of little-endian `data`. Raises InvalidArgumentError: the size of `data` is not a multiple of
    8.
    """
    if len(data) % 8:
        raise InvalidArgumentError(f"a column of int64 values has {len(data)} bytes, which is not a multiple of 8")
    return np.frombuffer(data, "<i8")


def pack_column(values: Int64Array) -> Column:
    """Encode int64 (n,). An arithmetic progression needs no data. Other numbers are stored as distances from the smallest number, in as few bytes as
    possible.

    >>> [len(pack_column(np.array(numbers)).data) for numbers in ([5, 7, 9], [1, 300, 2], [-(2**63), 2**63 - 1, 0])]
    [0, 6, 24]
    """
    if not len(values):
        return Column()
    values = np.ascontiguousarray(values, np.int64)
    if (progression := find_runs(values, 1)) is not None:
        _, (first,), (stride,) = progression
        return Column(base=int(first), stride=int(stride))
    smallest = int(values.min())
    span = int(values.max()) - smallest
    width = next(width for width in _WIDTHS if span < 1 << 8 * width)
    distances = values.view(np.uint64) - np.uint64(smallest % 2**64)
    return Column(base=smallest, width=width, data=distances.astype(f"<u{width}").tobytes())


def unpack_column(column: Column, count: int) -> Int64Array:
    """Decode int64 (count,). Raises InvalidArgumentError: the column does not contain `count` numbers."""
    if not 0 <= count <= MOST_NUMBERS or column.width not in (0, *_WIDTHS) or len(column.data) != count * column.width:
        raise InvalidArgumentError(
            f"a column of {len(column.data)} bytes does not hold {count} numbers of {column.width} bytes; "
            "use services and clients of one release"
        )
    if not column.width:
        return _progression(column.base, column.stride, count)
    values = np.frombuffer(column.data, f"<u{column.width}").astype(np.uint64)
    values += np.uint64(column.base % 2**64)
    if column.stride:
        values += _progression(0, column.stride, count).view(np.uint64)
    return values.view(np.int64)


def _progression(first: int, stride: int, count: int) -> Int64Array:
    if not stride:
        return np.full(count, first, np.int64)
    numbers = np.arange(count, dtype=np.int64)
    if stride != 1:
        numbers *= stride
    numbers += first  # intermediate values may exceed 64 bits: the result is right modulo 2^64
    return numbers


def batch_to_proto(batch: SampleBatch) -> SampleColumns:
    """Pack a batch into columns. Float labels are sent as the bits of float64."""
    labels = batch.labels
    float_labels = labels.dtype.kind == "f"
    bits = np.ascontiguousarray(labels, np.float64 if float_labels else np.int64).view(np.int64)
    return SampleColumns(
        num_samples=len(batch),
        keys=pack_column(batch.keys),
        timestamps=pack_column(batch.timestamps),
        labels=pack_column(bits),
        float_labels=float_labels,
    )


def batch_from_proto(columns: SampleColumns) -> SampleBatch:
    """Decode a batch. Raises InvalidArgumentError: the columns differ in length."""
    count = columns.num_samples
    labels = unpack_column(columns.labels, count)
    typed: LabelArray = labels.view(np.float64) if columns.float_labels else labels
    return SampleBatch(unpack_column(columns.keys, count), unpack_column(columns.timestamps, count), typed)


def share_to_proto(share: KeysAndWeights) -> KeyColumns:
    """Pack keys and weights into columns. Weights are sent as the bits of float32, equal weights as one number."""
    weights = np.asarray(share.weights, np.float32)
    if weights.strides == (0,):  # one number, broadcast to all keys
        weights = weights[:1]
    bits = np.ascontiguousarray(weights).view(np.uint32)
    # Most policies assign the same weight to all samples.
    alike = len(bits) and (bits == bits[0]).all()
    return KeyColumns(
        num_keys=len(share),
        keys=pack_column(share.keys),
        weights=Column(base=int(bits[0])) if alike else pack_column(bits.astype(np.int64)),
    )


def share_from_proto(columns: KeyColumns) -> KeysAndWeights:
    """Decode keys and weights. Raises InvalidArgumentError when the columns differ in length."""
    keys, packed = unpack_column(columns.keys, columns.num_keys), columns.weights
    if packed.width or packed.stride or not 0 <= packed.base < 1 << 32:
        bits = unpack_column(packed, len(keys)).astype(np.uint32)
    else:
        bits = np.full(len(keys), packed.base, np.uint32)  # one weight for all, in one pass
    return KeysAndWeights(keys, bits.view(np.float32))


def feedback_row_bytes(header: FeedbackHeader) -> int:
    """Return the largest number of bytes that a row of feedback takes in a message. Each row counts the names of the scores."""
    return 16 + sum(4 * width + len(name) for name, width in header.widths.items())


def feedback_to_proto(rows: FeedbackRows, position: int) -> selector_pb2.FeedbackRows:
    """Encode rows of feedback. Args: position: position of the first row."""
    scores = {name: np.ascontiguousarray(values, "<f4").tobytes() for name, values in rows.scores.items()}
    epochs = pack_column(rows.epochs.astype(np.int64))
    return selector_pb2.FeedbackRows(
        position=position, num_rows=len(rows), keys=pack_column(rows.keys), epochs=epochs, scores=scores
    )


def feedback_from_proto(message: selector_pb2.FeedbackRows) -> FeedbackRows:
    """Decode rows of feedback. Raises InvalidArgumentError: the columns differ in length."""
    count = message.num_rows
    keys, epochs = unpack_column(message.keys, count), unpack_column(message.epochs, count)
    scores = {}
    for name, content in sorted(message.scores.items()):
        if len(content) % (4 * count) if count else content:
            raise InvalidArgumentError(f"{len(content)} bytes of the score {name} are not the float32 numbers of {count} samples")
        scores[name] = np.frombuffer(content, "<f4").reshape(count, len(content) // (4 * count) if count else 0)
    return FeedbackRows(keys, epochs.astype(np.int32), scores)
