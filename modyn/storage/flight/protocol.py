"""Messages over Arrow Flight for fetches of payloads by key.

A request is one `DoGet`. The ticket of the request is a line of JSON (version, dataset, identity, on_missing, client, with_bytes), followed by the
keys, int64, little-endian. The answer is a stream of record batches `key, label, payload` in the requested order. Each batch has an `AnswerHead` with
the number of keys answered so far, so that another endpoint can continue an interrupted request. A batch without new keys reports that the server is
alive.

An error is the last message of its answer. If the error were the status of the call, it could arrive before unread batches, which gRPC would then
drop.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import BY_REASON, InvalidArgumentError, ModynError, SecurityError, UnavailableError
from modyn.records import Int64Array, LabelArray
from modyn.rpc.status import bounded
from modyn.storage.model.samples import OnMissing, Payloads

VERSION = 5
"""Version of the protocol. Client and server must have the same version."""
REQUESTS_PER_STREAM = 2
"""Number of concurrent requests for each stream of a client: while the server sends one answer, it reads the payloads of the next answer."""


@dataclass(frozen=True, slots=True, eq=False)
class PayloadRequest:
    """The keys that one `DoGet` asks for. keys: int64 (n,). identity: identity of the keys' registration; empty: any. client: name of the client,
    for a fair share; empty: no name. with_bytes: False: only labels are needed, and payloads have no bytes."""

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
        """Decode the ticket of a request. Raises InvalidArgumentError if the bytes are not a ticket of this version."""
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
"""`done` and `record_size` of an `AnswerHead`; a `record_size` of -1 means None."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The head of a record batch of an answer.

    done: number of keys of the request that are answered, including this batch. record_size: bytes of each sample if all samples have the same size;
    else None. error: `reason|message`; empty: no error.
    """

    done: int
    record_size: int | None = None
    error: str = ""

    def to_bytes(self) -> bytes:
        """Encode the head as the metadata of its record batch."""
        return _HEAD.pack(self.done, -1 if self.record_size is None else self.record_size) + self.error.encode()

    @staticmethod
    def from_bytes(head: bytes) -> AnswerHead:
        """Decode the head of an answer. Raises ModynError if these bytes are not a head of this version."""
        try:
            done, record_size = _HEAD.unpack_from(head)
            return AnswerHead(done, None if record_size < 0 else record_size, head[_HEAD.size :].decode())
        except (struct.error, ValueError) as error:
            raise ModynError("the payload server's answer cannot be read; run the same version of Modyn on both sides") from error


def answer_schema(float_labels: bool, identity: str) -> pa.Schema:
    """Return the columns of an answer.

    Args: float_labels: whether labels are float64; otherwise int64. identity: identity of the dataset's registration.
    """
    columns = (("key", pa.int64()), ("label", pa.float64() if float_labels else pa.int64()), ("payload", pa.large_binary()))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns], {"identity": identity})


def to_record_batch(payloads: Payloads, schema: pa.Schema) -> pa.RecordBatch:
    """Return the samples as one record batch of `answer_schema`, over the memory of `payloads`."""
    # The first buffer would mark missing values, but no value is missing.
    buffers = [None, pa.py_buffer(payloads.offsets), pa.py_buffer(payloads.data)]
    column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(payloads), buffers)
    return pa.record_batch([_column(payloads.keys), _column(payloads.labels), column], schema=schema)


def no_samples(schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch of messages that have no samples. Args: schema: result of `answer_schema`."""
    nothing = np.empty(0, np.int64)
    labels = nothing.astype(np.float64) if schema.field(1).type == pa.float64() else nothing
    return to_record_batch(Payloads(nothing, labels, np.empty(0, np.uint8), np.zeros(1, np.int64)), schema)


def from_record_batch(batch: pa.RecordBatch, record_size: int | None = None) -> Payloads:
    """Return the samples of a record batch, over the same memory.

    Args: batch: with the columns of `answer_schema`. record_size: bytes of each sample if all have the same number; None: not known.
    """
    float_labels = batch.schema.field(1).type == pa.float64()
    keys, labels = _values(batch.column(0), np.int64), _values(batch.column(1), np.float64 if float_labels else np.int64)
    if len(batch) == 0:
        # Arrow may leave out the buffers of a column without values.
        return Payloads(keys, labels, np.empty(0, np.uint8), np.zeros(1, np.int64))
    column = batch.column(2)
    _, offsets, data = column.buffers()
    # A slice of a column shares all buffers, and begins at this offset in them.
    first = column.offset
    return Payloads(
        keys,
        labels,
        np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8),
        np.frombuffer(offsets, np.int64)[first : first + len(batch) + 1],
        record_size,
    )


def _column(values: Int64Array | LabelArray) -> pa.Array:
    """Return the numbers as an Arrow column over the same memory. `pa.array` would import pandas (0.3 s in every worker) to examine its input."""
    kind = pa.float64() if values.dtype.kind == "f" else pa.int64()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _values(column: pa.Array, dtype: type[np.int64] | type[np.float64]) -> Any:
    """Return the numbers of a column without nulls, over the same memory. `to_numpy` would import pandas too."""
    data = column.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, count=len(column), offset=column.offset * 8)


def location(endpoint: Endpoint) -> str:
    """Return the URI under which Flight knows `endpoint`."""
    if endpoint.is_unix:
        return "grpc+unix://" + endpoint.address.removeprefix("unix:")
    return ("grpc+tls://" if endpoint.security.tls_cert or endpoint.security.tls_ca else "grpc://") + endpoint.address


_MAX_ERROR, _MAX_SUMMARY = 3000, 500
"""Largest sizes in bytes of an error and of its summary. The server sends both in HTTP/2 headers of at most 8 KiB by default: the error once, and the
summary twice, for other clients.
"""


def error_to_flight(error: ModynError) -> flight.FlightServerError:
    """Build the Flight error that transfers `error` to the client."""
    text = error_to_text(error)
    return flight.FlightServerError(bounded(text, _MAX_SUMMARY), text.encode())


def error_to_text(error: ModynError) -> str:
    """Encode `error` as the text of `AnswerHead.error`: its reason and its message, shortened to a bounded size."""
    return bounded(f"{error.reason}|{error.message}", _MAX_ERROR)


def error_from_text(text: str) -> ModynError | None:
    """Return the error that the server reported; None: the reason in the text is unknown."""
    reason, _, message = text.partition("|")
    return BY_REASON[reason](message) if reason in BY_REASON else None


def error_from_flight(error: Exception, address: str) -> ModynError:
    """Return the error that the server reported, or an error about the broken connection.

    Args: error: raised by pyarrow.flight. address: address of the server, for the message.
    """
    # `extra_info` has the whole error. The text of the exception is only a summary.
    reported = error_from_text((getattr(error, "extra_info", None) or b"").decode(errors="replace"))
    if reported is not None:
        return reported
    first_line = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    if isinstance(error, flight.FlightUnavailableError | flight.FlightTimedOutError):
        return UnavailableError(f"the payload server at {address} cannot be reached: {first_line}")
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return SecurityError(f"the payload server at {address} refuses the token; set the same security.token on both sides")
    if isinstance(error, flight.FlightCancelledError | flight.FlightInternalError):
        # A failing server reports a reason; without a reason, the connection was lost.
        return UnavailableError(f"the answer of the payload server at {address} broke off: {first_line}")
    return ModynError(f"the payload server at {address} failed: {first_line}; its log has the details")
