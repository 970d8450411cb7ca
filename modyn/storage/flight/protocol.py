"""What travels over Arrow Flight when payloads are fetched by key.

A request is one `DoGet`. Its ticket is a line of JSON (version, dataset, identity, on_missing, client, with_bytes) and behind it the keys, int64,
little-endian. The answer is a stream of record batches `key, label, payload` in the order asked. Beside each stands an `AnswerHead` with
the number of keys that are answered so far: a request that breaks off is continued from there at another endpoint. A batch that adds none
reports that the server is alive.

An error is a message too, the last of its answer: as the status of the call it could arrive before batches that the client has not read yet,
and gRPC drops those.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from modyn.config.endpoint import Endpoint
from modyn.errors import BY_REASON, InvalidArgumentError, ModynError, SecurityError, UnavailableError
from modyn.records import Int64Array, LabelArray
from modyn.rpc.status import bounded
from modyn.storage.model.samples import OnMissing, Payloads

VERSION = 5
REQUESTS_PER_STREAM = 2
"""Requests of one stream of a client at once: while one answer is on its way, the server reads the next one."""


@dataclass(frozen=True, slots=True, eq=False)
class PayloadRequest:
    """The keys that one `DoGet` asks for. keys: int64 (n,). identity: of the registration that they are of; empty: any. client: its name, for a
    fair share; empty: it has none. with_bytes: False: labels are wanted alone, and payloads have no bytes."""

    dataset: str
    on_missing: OnMissing
    keys: Int64Array
    identity: str = ""
    client: str = ""
    with_bytes: bool = True

    def to_ticket(self) -> flight.Ticket:
        """Encode the request as a Flight ticket: one line of JSON, then the keys as little-endian int64."""
        head: dict[str, object] = {"dataset": self.dataset, "identity": self.identity, "on_missing": self.on_missing}
        head |= {"client": self.client, "with_bytes": self.with_bytes}
        return flight.Ticket(
            json.dumps({"version": VERSION, **head}).encode() + b"\n" + np.ascontiguousarray(self.keys, "<i8").tobytes()
        )

    @staticmethod
    def from_ticket(ticket: bytes) -> PayloadRequest:
        """Decode the ticket of a request. Raises InvalidArgumentError if it is not one of this version."""
        try:
            line = ticket.index(b"\n")
            head = json.loads(ticket[:line])
            if head["version"] != VERSION or head["on_missing"] not in ("raise", "skip"):
                raise ValueError("wrong version or option")
            keys = np.frombuffer(ticket, "<i8", offset=line + 1)
            identity, client = str(head["identity"]), str(head["client"])
            return PayloadRequest(str(head["dataset"]), head["on_missing"], keys, identity, client, bool(head["with_bytes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"a payload request cannot be read ({error}); use PayloadClient of the same version as the storage service"
            ) from error


_HEAD = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Stands beside a record batch of an answer.

    done: keys of the request that are answered after this batch. record_size: bytes of each sample, if all have the same. error: `reason|message`.
    """

    done: int
    record_size: int | None = None
    error: str = ""

    def to_bytes(self) -> bytes:
        """Encode the head as the metadata of its record batch."""
        return _HEAD.pack(self.done, -1 if self.record_size is None else self.record_size) + self.error.encode()

    @staticmethod
    def from_bytes(head: bytes) -> AnswerHead:
        """Decode the head of an answer. Raises ModynError if these bytes are no head of this version."""
        try:
            done, record_size = _HEAD.unpack_from(head)
            return AnswerHead(done, None if record_size < 0 else record_size, head[_HEAD.size :].decode())
        except (struct.error, ValueError) as error:
            raise ModynError("the payload server's answer cannot be read; run the same version of Modyn on both sides") from error


def answer_schema(float_labels: bool, identity: str) -> pa.Schema:
    """Columns of an answer.

    Args: float_labels: whether labels are float64; otherwise int64. identity: the registration of the dataset that the samples are of.
    """
    columns = (("key", pa.int64()), ("label", pa.float64() if float_labels else pa.int64()), ("payload", pa.large_binary()))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns], {"identity": identity})


def to_record_batch(payloads: Payloads, schema: pa.Schema) -> pa.RecordBatch:
    """The samples as one record batch of `answer_schema`, over the memory of `payloads`."""
    buffers = [None, pa.py_buffer(payloads.offsets), pa.py_buffer(payloads.data)]
    column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(payloads), buffers)
    return pa.record_batch([_column(payloads.keys), _column(payloads.labels), column], schema=schema)


def no_samples(schema: pa.Schema) -> pa.RecordBatch:
    """The record batch of messages that have no samples. Args: schema: as `answer_schema` makes it."""
    nothing = np.empty(0, np.int64)
    labels = nothing.astype(np.float64) if schema.field(1).type == pa.float64() else nothing
    return to_record_batch(Payloads(nothing, labels, np.empty(0, np.uint8), np.zeros(1, np.int64)), schema)


def from_record_batch(batch: pa.RecordBatch, record_size: int | None = None) -> Payloads:
    """The samples of a record batch, over the same memory.

    Args: batch: with the columns of `answer_schema`. record_size: bytes of each sample if all have the same number; None: not known.
    """
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
"""Bytes. A status travels in HTTP/2 headers, which are 8 KiB at most by default: once in full, and twice in short for other clients."""


def error_to_flight(error: ModynError) -> flight.FlightServerError:
    """Build the Flight error that carries `error` whole to the client."""
    text = error_to_text(error)
    return flight.FlightServerError(bounded(text, _MAX_SUMMARY), text.encode())


def error_to_text(error: ModynError) -> str:
    """Encode `error` as the text of `AnswerHead.error`: its reason and its message, shortened to a bounded size."""
    return bounded(f"{error.reason}|{error.message}", _MAX_ERROR)


def error_from_text(text: str) -> ModynError | None:
    """The error that the server reported, or None if its reason is unknown."""
    reason, _, message = text.partition("|")
    return BY_REASON[reason](message) if reason in BY_REASON else None


def error_from_flight(error: Exception, address: str) -> ModynError:
    """The error that the server reported, or what a broken connection stands for.

    Args: error: what pyarrow.flight raised. address: of the server, for the message.
    """
    reported = error_from_text((getattr(error, "extra_info", None) or b"").decode(errors="replace"))
    if reported is not None:
        return reported
    first_line = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    if isinstance(error, flight.FlightUnavailableError | flight.FlightTimedOutError):
        return UnavailableError(f"the payload server at {address} cannot be reached: {first_line}")
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return SecurityError(f"the payload server at {address} refuses the token; set the same security.token on both sides")
    if isinstance(error, flight.FlightCancelledError | flight.FlightInternalError):
        # A server that fails reports a reason; without one it is the connection that was lost.
        return UnavailableError(f"the answer of the payload server at {address} broke off: {first_line}")
    return ModynError(f"the payload server at {address} failed: {first_line}; its log has the details")
