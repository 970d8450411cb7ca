"""Payloads by key: what travels over Arrow Flight between trainer and storage, and the client that asks for it.

A request is one ticket: an Arrow stream with the column `key` and the metadata `dataset` and `on_missing`. The answer is a stream of
record batches `key, label, payload` in the order asked; each carries as metadata how many keys of the request are dealt with, so that
a broken stream goes on behind the last batch received. Errors carry `reason|message` of `modyn.errors`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import flight

from modyn.config.system import Endpoint, SecurityConfig
from modyn.errors import (
    BY_REASON,
    CancelledError,
    InvalidArgumentError,
    ModynError,
    SecurityError,
    UnavailableError,
)
from modyn.records import Int64Array, LabelArray
from modyn.rpc.security import root_certificates
from modyn.rpc.status import TOKEN_KEY

OnMissing = Literal["raise", "skip"]

KEYS_PER_REQUEST = 262_144
"""Keys in one ticket (2 MiB): longer requests become several, one after the other."""
RETRY_S = 30.0
"""For how long a request is repeated without any progress before its error is raised."""
STALL_S = 120.0
"""A stream of one request that is not at its end after so many seconds is opened again behind the last batch received."""

# One channel for each client: a client made after a restart must not inherit the back-off of an older one.
_RECONNECT = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
]


@dataclass(frozen=True, slots=True, eq=False)
class Payloads:
    """Samples with their bytes. keys: int64 (n,). labels: int64 or float64 (n,). offsets: int64 (n+1,) into data: uint8.

    Sample i is `data[offsets[i]:offsets[i + 1]]`; the arrays are read-only views of the buffer that came over the wire.
    """

    keys: Int64Array
    labels: LabelArray
    data: npt.NDArray[np.uint8]
    offsets: Int64Array

    def __len__(self) -> int:
        return len(self.keys)

    def payload(self, i: int) -> memoryview:
        """The bytes of sample i, not copied."""
        return self.data[self.offsets[i] : self.offsets[i + 1]].data


@dataclass(frozen=True, slots=True, eq=False)
class PayloadRequest:
    """What a ticket says. keys: int64 (n,)."""

    dataset: str
    keys: Int64Array
    on_missing: OnMissing = "raise"

    def to_ticket(self) -> bytes:
        metadata = {"dataset": self.dataset, "on_missing": self.on_missing}
        schema = pa.schema([pa.field("key", pa.int64(), nullable=False)], metadata=metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.record_batch([_column(self.keys)], schema=schema))
        return cast("bytes", sink.getvalue().to_pybytes())

    @staticmethod
    def from_ticket(ticket: bytes) -> PayloadRequest:
        """Raises InvalidArgumentError if the ticket is not one of ours."""
        try:
            with pa.ipc.open_stream(ticket) as reader:
                schema, table = reader.schema, reader.read_all()
            metadata = schema.metadata or {}
            dataset, on_missing = metadata[b"dataset"].decode(), metadata[b"on_missing"].decode()
            keys = table.column("key").combine_chunks()
            if keys.type != pa.int64() or keys.null_count or on_missing not in ("raise", "skip"):
                raise ValueError("wrong column or option")
        except (pa.ArrowException, KeyError, ValueError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(
                f"the ticket of a payload request cannot be read ({error}); use PayloadClient of the same version as the storage service"
            ) from error
        return PayloadRequest(dataset, _values(keys, np.int64), cast("OnMissing", on_missing))


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


def payload_schema(float_labels: bool) -> pa.Schema:
    """Columns of an answer."""
    columns = (("key", pa.int64()), ("label", pa.float64() if float_labels else pa.int64()), ("payload", pa.large_binary()))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def to_record_batch(payloads: Payloads, schema: pa.Schema) -> pa.RecordBatch:
    """The samples as one record batch over the same memory."""
    buffers = [None, pa.py_buffer(payloads.offsets), pa.py_buffer(payloads.data)]
    column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(payloads), buffers)
    return pa.record_batch([_column(payloads.keys), _column(payloads.labels), column], schema=schema)


def from_record_batch(batch: pa.RecordBatch) -> Payloads:
    """The samples of a record batch, over the same memory."""
    keys, labels = (
        _values(batch.column(0), np.int64),
        _values(batch.column(1), np.float64 if batch.schema.field(1).type == pa.float64() else np.int64),
    )
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
    )


def location(endpoint: Endpoint) -> str:
    """The URI under which Flight knows `endpoint`."""
    if endpoint.is_unix:
        return "grpc+unix://" + endpoint.address.removeprefix("unix:")
    return ("grpc+tls://" if endpoint.security.tls_cert or endpoint.security.tls_ca else "grpc://") + endpoint.address


def error_to_flight(error: ModynError) -> flight.FlightServerError:
    text = f"{error.reason}|{error.message}".encode("utf-8", "backslashreplace")  # A file's name may be no text.
    return flight.FlightServerError(text.decode(), text)


def error_from_flight(error: Exception, address: str) -> ModynError:
    """The error that the server meant, or what the loss of the connection means to us."""
    reason, _, message = (getattr(error, "extra_info", None) or b"").decode(errors="replace").partition("|")
    if reason in BY_REASON:
        return BY_REASON[reason](message)
    first_line = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    if isinstance(error, flight.FlightUnavailableError | flight.FlightTimedOutError):
        return UnavailableError(f"the payload server at {address} cannot be reached: {first_line}")
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return SecurityError(f"the payload server at {address} refuses the token; set the same security.token on both sides")
    if isinstance(error, flight.FlightCancelledError):
        return CancelledError(f"the payload stream from {address} was cancelled")
    return ModynError(f"the payload server at {address} failed: {first_line}; its log has the details")


class PayloadClient:
    """Fetches payloads by key. May be used by several threads at once, not across a fork."""

    def __init__(self, endpoint: Endpoint, retry_s: float = RETRY_S) -> None:
        self._endpoint = endpoint
        self._retry_s = retry_s
        self._lock = Lock()
        self._client: flight.FlightClient | None = None
        self._headers = _headers(endpoint.security)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def fetch(self, dataset: str, keys: Int64Array, on_missing: OnMissing = "raise") -> Iterator[Payloads]:
        """The samples of `keys`, in the order asked, duplicates included, in batches as they arrive.

        Keys that do not exist or were deleted raise NotFoundError that names the first of them, or are left out with
        on_missing="skip". DataError names file and offset of what cannot be read.
        """
        keys = np.ascontiguousarray(keys, dtype=np.int64)
        # 8 bytes a key and some kilobytes around them: storage takes no larger request.
        at_once = min(KEYS_PER_REQUEST, (self._endpoint.max_message_bytes - 4096) // 8)
        for first in range(0, len(keys), at_once):
            yield from self._fetch(PayloadRequest(dataset, keys[first : first + at_once], on_missing))

    def _fetch(self, request: PayloadRequest) -> Iterator[Payloads]:
        """One request, gone on with behind the last batch received when the connection breaks."""
        done, num_keys = 0, len(request.keys)
        give_up, pause = time.monotonic() + self._retry_s, 0.05
        while done < num_keys:
            rest = PayloadRequest(request.dataset, request.keys[done:], request.on_missing)
            try:
                for payloads, answered in self._stream(rest):
                    expected = request.keys[done : done + len(payloads)]
                    if request.on_missing == "raise" and not np.array_equal(payloads.keys, expected):
                        raise ModynError(
                            f"the payload server at {self._endpoint.address} answered other keys than those asked for"
                        )
                    if len(payloads):
                        yield payloads
                    done = num_keys - len(rest.keys) + answered
                    give_up, pause = time.monotonic() + self._retry_s, 0.05
                if done < num_keys:
                    raise UnavailableError(
                        f"the payload server at {self._endpoint.address} ended after {done} of {num_keys} keys"
                    )
            except UnavailableError:
                self._reconnect()
                if time.monotonic() + pause > give_up:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 1.0)

    def _stream(self, request: PayloadRequest) -> Iterator[tuple[Payloads, int]]:
        """Batches of one attempt, each with how many keys of `request` are dealt with after it."""
        reader: Any = None
        try:
            options = flight.FlightCallOptions(timeout=STALL_S, headers=self._headers)
            reader = self._connected().do_get(flight.Ticket(request.to_ticket()), options)
            while True:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    reader = None
                    return
                yield from_record_batch(chunk.data), int.from_bytes(chunk.app_metadata.to_pybytes(), "little")
        except (pa.ArrowException, OSError) as error:
            raise error_from_flight(error, self._endpoint.address) from error
        finally:
            if reader is not None:
                reader.cancel()

    def _reconnect(self) -> None:
        """Other threads may still read from the old connection: it is closed when the last of them is done."""
        with self._lock:
            self._client = None

    def _connected(self) -> flight.FlightClient:
        with self._lock:
            if self._client is None:
                options: dict[str, Any] = {"generic_options": _RECONNECT}
                trusted = root_certificates(self._endpoint)
                if trusted is not None:
                    options["tls_root_certs"] = trusted
                self._client = flight.FlightClient(location(self._endpoint), **options)
            return self._client


def _headers(security: SecurityConfig) -> list[tuple[bytes, bytes]]:
    secret = security.secret()
    return [] if secret is None else [(TOKEN_KEY.encode(), b"Bearer " + secret.encode())]
