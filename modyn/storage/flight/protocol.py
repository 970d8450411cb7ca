"""What travels over Arrow Flight between those who ask for payloads and those who serve them.

An exchange is about one dataset. The client sends record batches of the column `key`, whose schema carries the metadata `dataset` and
`on_missing`; each batch is a request, with its number beside it; number END says that no more will come. The server answers them one
after the other with record batches `key, label, payload` in the order asked; beside each stands an `AnswerHead`: which request, and how
many of its keys are dealt with, so that what a broken exchange still owes can be asked for elsewhere. Errors carry `reason|message` of
`modyn.errors`. Once requests are served they are messages, too: where an exchange ends with a status, gRPC may drop answers before it that
the client has not read yet. Then the client ends the exchange.

END is a message of ours and not Flight's `done_writing`: that one must not be called while another thread reads. If the exchange ends in
that moment, the reader closes the writing side too, and gRPC aborts the process or hangs (found with PyArrow 25).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyarrow import flight

from modyn.config.system import Endpoint
from modyn.errors import BY_REASON, InvalidArgumentError, ModynError, SecurityError, UnavailableError
from modyn.records import Int64Array, LabelArray
from modyn.rpc.status import bounded
from modyn.storage.model.samples import OnMissing, Payloads

DESCRIPTOR = flight.FlightDescriptor.for_command(b"modyn payloads 1")


@dataclass(frozen=True, slots=True)
class Question:
    """What all requests of an exchange have in common."""

    dataset: str
    on_missing: OnMissing

    def schema(self) -> pa.Schema:
        """Of the record batches of keys."""
        metadata = {"dataset": self.dataset, "on_missing": self.on_missing}
        return pa.schema([pa.field("key", pa.int64(), nullable=False)], metadata=metadata)

    @staticmethod
    def from_schema(schema: pa.Schema) -> Question:
        """Raises InvalidArgumentError if the schema is not one of ours."""
        try:
            metadata = schema.metadata or {}
            dataset, on_missing = metadata[b"dataset"].decode(), metadata[b"on_missing"].decode()
            if schema.names != ["key"] or schema.field(0).type != pa.int64() or on_missing not in ("raise", "skip"):
                raise ValueError("wrong columns or option")
        except (KeyError, ValueError) as error:
            raise InvalidArgumentError(
                f"a payload request cannot be read ({error}); use PayloadClient of the same version as the storage service"
            ) from error
        return Question(dataset, cast("OnMissing", on_missing))


def keys_to_batch(keys: Int64Array, schema: pa.Schema) -> pa.RecordBatch:
    """A request for `keys`, int64 (n,), over the same memory."""
    return pa.record_batch([_column(keys)], schema=schema)


def keys_from_batch(batch: pa.RecordBatch) -> Int64Array:
    """The keys of a request, over the same memory. InvalidArgumentError if some are null."""
    if batch.column(0).null_count:
        raise InvalidArgumentError("a payload request has keys that are null")
    return cast("Int64Array", _values(batch.column(0), np.int64))


class Kind(IntEnum):
    """What a message of the server is. Only the first has samples."""

    SAMPLES = 0
    ALIVE = 1
    """The next answer takes a while; sent every few seconds so that the client can tell a slow server from a dead one."""
    GOODBYE = 2
    """The server is stopping: what it owes must be asked for elsewhere, or again when it is back."""
    FAILED = 3
    """The request behind the last answer cannot be answered, `AnswerHead.error` says why; nor will those that follow."""


_HEAD = struct.Struct("<qqqq")
_NUMBER = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Stands beside a record batch of an answer. request: its number. done: keys of the request that are dealt with after this batch.
    error: `reason|message`."""

    kind: Kind
    request: int = -1
    done: int = 0
    record_size: int | None = None
    error: str = ""

    def to_bytes(self) -> bytes:
        head = _HEAD.pack(self.kind, self.request, self.done, -1 if self.record_size is None else self.record_size)
        return head + self.error.encode()

    @staticmethod
    def from_bytes(head: bytes) -> AnswerHead:
        """Raises ModynError if these bytes are no head of this version."""
        try:
            kind, request, done, record_size = _HEAD.unpack_from(head)
            error = head[_HEAD.size :].decode()
            return AnswerHead(Kind(kind), request, done, None if record_size < 0 else record_size, error)
        except (struct.error, ValueError) as error:
            raise ModynError("the payload server's answer cannot be read; run the same version of Modyn on both sides") from error


END = -1


def number_to_bytes(number: int) -> bytes:
    """The number of a request, or END, as it stands beside the keys."""
    return _NUMBER.pack(number)


def number_from_bytes(number: bytes) -> int:
    try:
        return int(_NUMBER.unpack(number)[0])
    except struct.error as error:
        raise InvalidArgumentError("a payload request has no number; use PayloadClient of the same version") from error


def payload_schema(float_labels: bool) -> pa.Schema:
    """Columns of an answer."""
    columns = (("key", pa.int64()), ("label", pa.float64() if float_labels else pa.int64()), ("payload", pa.large_binary()))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def to_record_batch(payloads: Payloads, schema: pa.Schema) -> pa.RecordBatch:
    """The samples as one record batch over the same memory."""
    buffers = [None, pa.py_buffer(payloads.offsets), pa.py_buffer(payloads.data)]
    column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(payloads), buffers)
    return pa.record_batch([_column(payloads.keys), _column(payloads.labels), column], schema=schema)


def no_samples(schema: pa.Schema) -> pa.RecordBatch:
    """The record batch of messages that have no samples."""
    nothing = np.empty(0, np.int64)
    labels = nothing.astype(np.float64) if schema.field(1).type == pa.float64() else nothing
    return to_record_batch(Payloads(nothing, labels, np.empty(0, np.uint8), np.zeros(1, np.int64)), schema)


def from_record_batch(batch: pa.RecordBatch, record_size: int | None = None) -> Payloads:
    """The samples of a record batch, over the same memory."""
    float_labels = batch.schema.field(1).type == pa.float64()
    keys, labels = _values(batch.column(0), np.int64), _values(batch.column(1), np.float64 if float_labels else np.int64)
    if len(batch) == 0:
        return Payloads(keys, labels, np.empty(0, np.uint8), np.zeros(1, np.int64))
    column = batch.column(2)
    _, offsets, data = column.buffers()
    first = column.offset
    return Payloads(
        keys,
        labels,
        np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8),
        np.frombuffer(offsets, np.int64)[first : first + len(batch) + 1],
        record_size,
    )


def _column(values: Int64Array | LabelArray) -> pa.Array:
    """The numbers as an Arrow column over the same memory. Not `pa.array`, which imports pandas (0.3 s in every worker) to look at its input."""
    kind = pa.float64() if values.dtype.kind == "f" else pa.int64()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _values(column: pa.Array, dtype: type[np.int64] | type[np.float64]) -> Any:
    """The numbers of a column without nulls, over the same memory. Not `to_numpy`, for the same reason."""
    data = column.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, count=len(column), offset=column.offset * 8)


def location(endpoint: Endpoint) -> str:
    """The URI under which Flight knows `endpoint`."""
    if endpoint.is_unix:
        return "grpc+unix://" + endpoint.address.removeprefix("unix:")
    return ("grpc+tls://" if endpoint.security.tls_cert or endpoint.security.tls_ca else "grpc://") + endpoint.address


_MAX_ERROR, _MAX_SUMMARY = 3000, 500
"""Bytes. An error travels in HTTP/2 headers, which are 8 KiB at most by default: once in full, and twice in short for other clients."""


def error_to_flight(error: ModynError) -> flight.FlightServerError:
    text = error_to_text(error)
    return flight.FlightServerError(bounded(text, _MAX_SUMMARY), text.encode())


def error_to_text(error: ModynError) -> str:
    """For `AnswerHead.error`."""
    return bounded(f"{error.reason}|{error.message}", _MAX_ERROR)


def error_from_text(text: str) -> ModynError | None:
    """The error that was meant, unless its reason is none."""
    reason, _, message = text.partition("|")
    return BY_REASON[reason](message) if reason in BY_REASON else None


def error_from_flight(error: Exception, address: str) -> ModynError:
    """The error that the server meant, or what the loss of the connection means to us."""
    meant = error_from_text((getattr(error, "extra_info", None) or b"").decode(errors="replace"))
    if meant is not None:
        return meant
    first_line = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    if isinstance(error, flight.FlightUnavailableError | flight.FlightTimedOutError):
        return UnavailableError(f"the payload server at {address} cannot be reached: {first_line}")
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return SecurityError(f"the payload server at {address} refuses the token; set the same security.token on both sides")
    if isinstance(error, flight.FlightCancelledError | flight.FlightInternalError):
        # A server that fails says so with a reason; without one it is the connection that was lost.
        return UnavailableError(f"the exchange with the payload server at {address} broke off: {first_line}")
    return ModynError(f"the payload server at {address} failed: {first_line}; its log has the details")
