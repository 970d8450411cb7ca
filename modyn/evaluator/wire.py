"""Converters between records and protos of passes over samples. All other records have the field names of their messages (see `modyn.rpc.wire`)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.trigger_parts import ComparedData
from modyn.errors import InvalidArgumentError
from modyn.evaluator.records import (
    AtPositions,
    DriftDistance,
    DriftRequest,
    InIntervals,
    MeasuredDrift,
    MeasureRequest,
    OfKeys,
    OutputKind,
    Rows,
    SampleSource,
    Score,
)
from modyn.proto import common_pb2, evaluator_pb2
from modyn.records import Interval, RunId, StreamWindow
from modyn.rpc.arrays import items_per_message, keys_from_bytes, keys_to_bytes
from modyn.rpc.wire import from_message, from_struct, to_message, to_struct

_NUMBERS = "biuf"
"""Kinds of NumPy dtypes that can be sent: boolean, integer and floating-point."""


def measure_request_to_proto(request: MeasureRequest) -> evaluator_pb2.MeasureRequest:
    """Convert a request into a message. Raises InvalidArgumentError: the section has values that cannot be sent."""
    return evaluator_pb2.MeasureRequest(
        run_id=request.run_id,
        model_id=request.model_id,
        dataset=to_struct(request.dataset),
        source=_source_to_proto(request.source),
        kind=f"OUTPUT_KIND_{request.kind.name}",
        device=request.device,
        cache=to_struct(request.cache),
        dataset_identity=request.dataset_identity,
    )


def measure_request_from_proto(message: evaluator_pb2.MeasureRequest) -> MeasureRequest:
    """Convert a message into a request. Raises InvalidArgumentError: the message has no source, or an unknown kind of output."""
    name = evaluator_pb2.OutputKind.Name(message.kind).removeprefix("OUTPUT_KIND_")
    if name not in OutputKind.__members__:
        raise InvalidArgumentError(f"the request names no known kind of output; kinds are {', '.join(OutputKind)}")
    return MeasureRequest(
        RunId(message.run_id),
        message.model_id,
        from_struct(message.dataset),
        _source_from_proto(message.source),
        OutputKind[name],
        message.device or "cpu",
        from_struct(message.cache),
        message.dataset_identity,
    )


def parts_to_proto(part: Score | Rows, endpoint: Endpoint) -> Iterator[evaluator_pb2.MeasuredPart]:
    """Convert a score or rows into messages whose size `endpoint` accepts. A message of rows has at least one row."""
    if isinstance(part, Score):
        yield evaluator_pb2.MeasuredPart(score=to_message(part, evaluator_pb2.Score))
        return
    rows_a_message = items_per_message(endpoint, -(-part.num_bytes // max(1, len(part.keys))))
    for first in range(0, len(part.keys), rows_a_message):
        yield _rows_to_proto(Rows(*(column[first : first + rows_a_message] for column in part)))


def _rows_to_proto(part: Rows) -> evaluator_pb2.MeasuredPart:
    keys, timestamps = keys_to_bytes(part.keys), keys_to_bytes(part.timestamps)
    labels, outputs = _array_to_proto(part.labels), _array_to_proto(part.outputs)
    return evaluator_pb2.MeasuredPart(rows=evaluator_pb2.Rows(keys=keys, timestamps=timestamps, labels=labels, outputs=outputs))


def part_from_proto(message: evaluator_pb2.MeasuredPart) -> Score | Rows:
    """Convert a message into a score or rows. Raises InvalidArgumentError: an array has a wrong shape."""
    if message.WhichOneof("part") == "score":
        return from_message(message.score, Score)
    rows = message.rows
    keys, timestamps = keys_from_bytes(rows.keys), keys_from_bytes(rows.timestamps)
    return Rows(keys, timestamps, _array_from_proto(rows.labels), _array_from_proto(rows.outputs))


def drift_request_from_proto(message: evaluator_pb2.DriftRequest) -> DriftRequest:
    """Convert a message that `to_message` made into a request. Raises InvalidArgumentError: a window or the compared data is missing."""
    question = message.question
    named = [pair.HasField("reference") and pair.HasField("current") for pair in (question, *message.pairs)]
    if question.data == evaluator_pb2.COMPARED_DATA_UNSPECIFIED or not all(named):
        raise InvalidArgumentError(f"the request must name two windows and the compared data: {', '.join(ComparedData)}")
    return from_message(message, DriftRequest)


def measured_drift_to_proto(measured: MeasuredDrift) -> evaluator_pb2.MeasuredDrift:
    """Convert the answer to a question about drift into a message."""
    return evaluator_pb2.MeasuredDrift(
        distances={name: to_message(found, evaluator_pb2.DriftDistance) for name, found in measured.distances.items()},
        num_reference=measured.num_reference,
        num_current=measured.num_current,
        num_embedded=measured.num_embedded,
    )


def measured_drift_from_proto(message: evaluator_pb2.MeasuredDrift) -> MeasuredDrift:
    """Convert a message into an answer with sorted names."""
    distances = {name: from_message(message.distances[name], DriftDistance) for name in sorted(message.distances)}
    return MeasuredDrift(distances, message.num_reference, message.num_current, message.num_embedded)


def _source_to_proto(source: SampleSource) -> evaluator_pb2.SampleSource:
    match source:
        case InIntervals(intervals):
            listed = [to_message(interval, common_pb2.Interval) for interval in intervals]
            return evaluator_pb2.SampleSource(intervals=evaluator_pb2.IntervalList(intervals=listed))
        case OfKeys(keys):
            return evaluator_pb2.SampleSource(keys=evaluator_pb2.KeyList(keys=keys_to_bytes(keys)))
        case AtPositions(run_id, windows):
            parts = [to_message(window, evaluator_pb2.StreamWindow) for window in windows]
            return evaluator_pb2.SampleSource(positions=evaluator_pb2.PositionList(run_id=run_id, windows=parts))


def _source_from_proto(message: evaluator_pb2.SampleSource) -> SampleSource:
    match message.WhichOneof("samples"):
        case "intervals":
            return InIntervals([from_message(interval, Interval) for interval in message.intervals.intervals])
        case "keys":
            return OfKeys(keys_from_bytes(message.keys.keys))
        case "positions":
            positions = message.positions
            return AtPositions(RunId(positions.run_id), [from_message(window, StreamWindow) for window in positions.windows])
    raise InvalidArgumentError("the request names no samples: give intervals, keys or positions")


def _array_to_proto(array: NDArray[Any]) -> evaluator_pb2.Array:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return evaluator_pb2.Array(dtype=little.dtype.str, shape=little.shape, data=little.tobytes())


def _array_from_proto(message: evaluator_pb2.Array) -> NDArray[Any]:
    try:
        dtype = np.dtype(message.dtype)
    except TypeError as error:
        raise InvalidArgumentError(f"an array of {message.dtype!r} cannot be read: {error}") from error
    if dtype.kind not in _NUMBERS or len(message.data) != prod(message.shape) * dtype.itemsize:
        raise InvalidArgumentError(
            f"{len(message.data)} bytes are not an array of {message.dtype} of shape {list(message.shape)}; use services and clients of one release"
        )
    return np.frombuffer(message.data, dtype).reshape(message.shape)
