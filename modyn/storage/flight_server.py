"""The Arrow Flight face of storage: payloads by key."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from prometheus_client import Histogram
from pyarrow import flight

from modyn.config.system import Endpoint
from modyn.errors import InvalidArgumentError, ModynError, UnavailableError
from modyn.rpc.logs import get_logger
from modyn.rpc.security import check_exposure, read_pem, token_matches
from modyn.rpc.status import TOKEN_KEY
from modyn.storage.flight import PayloadRequest, error_to_flight, location, payload_schema, to_record_batch
from modyn.storage.index_view import IndexView
from modyn.storage.payloads import PayloadReader

PAYLOAD_SECONDS = Histogram("modyn_storage_payload_seconds", "Seconds that payload requests took, until the last byte was sent")

_GRACE_S = 1.0


class Views(Protocol):
    """Datasets by name, as they are now: a store's, or what one has published."""

    def view(self, name: str) -> IndexView:
        """Raises NotFoundError if there is no dataset of this name."""


class PayloadServer:
    """Listens from construction to `stop`. Raises SecurityError off loopback without TLS and token, UnavailableError if the address is
    taken."""

    def __init__(self, endpoint: Endpoint, views: Views) -> None:
        check_exposure("storage's payload server", endpoint)
        self._reader = PayloadReader()
        token = endpoint.security.secret()
        options: dict[str, Any] = {}
        if token is not None:
            options["middleware"] = {"token": _TokenCheck(token)}
        certificate, key = endpoint.security.tls_cert, endpoint.security.tls_key
        if certificate is not None and key is not None and not endpoint.is_unix:
            options["tls_certificates"] = [(read_pem(certificate, "tls_cert"), read_pem(key, "tls_key"))]
        try:
            self._server = _Server(location(endpoint), views, self._reader, endpoint.max_message_bytes, options)
        except (pa.ArrowException, OSError) as error:
            self._reader.close()
            raise UnavailableError(
                f"storage cannot serve payloads on {endpoint.address}: the address is taken or not one of this machine; "
                f"stop what uses it or set storage.flight_address in the system file"
            ) from error
        self.address = endpoint.address if endpoint.is_unix else f"{endpoint.address.rsplit(':', 1)[0]}:{self._server.port}"

    def stop(self) -> None:
        """Streams that run get a moment to end; a client that does not read any more cannot hold the server up."""
        self._server.stopping.set()
        ending = threading.Thread(target=self._server.shutdown, daemon=True)
        ending.start()
        ending.join(_GRACE_S)
        self._reader.close()


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, uri: str, views: Views, reader: PayloadReader, max_ticket_bytes: int, options: dict[str, Any]) -> None:
        self._views = views
        self._max_ticket_bytes = max_ticket_bytes
        self._reader = reader
        self.stopping = threading.Event()
        super().__init__(uri, **options)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        try:
            self._check_size(ticket.ticket)
            request = PayloadRequest.from_ticket(ticket.ticket)
            schema = payload_schema(self._views.view(request.dataset).float_labels)
            return flight.GeneratorStream(schema, self._batches(request, schema))
        except ModynError as error:
            raise error_to_flight(error) from error

    def _check_size(self, ticket: bytes) -> None:
        # Flight itself takes a message of any size; what is refused here was held in memory once, and is not unpacked.
        if len(ticket) > self._max_ticket_bytes:
            raise InvalidArgumentError(
                f"a payload request of {len(ticket)} bytes is too large for storage, which takes {self._max_ticket_bytes}: ask for "
                "fewer keys at once, or raise storage.max_message_bytes in the system file"
            )

    def _batches(self, request: PayloadRequest, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        try:
            with PAYLOAD_SECONDS.time():
                view = partial(self._views.view, request.dataset)
                for payloads, done in self._reader.read(view, request.keys, request.on_missing):
                    if self.stopping.is_set():
                        raise UnavailableError("storage is stopping; the stream goes on when it is back")
                    yield to_record_batch(payloads, schema), done.to_bytes(8, "little")
        except ModynError as error:
            raise error_to_flight(error) from error
        except Exception as error:
            get_logger("storage").exception("payload_request_failed", dataset=request.dataset, num_keys=len(request.keys))
            raise error_to_flight(
                ModynError(f"the payload request failed: {type(error).__name__}: {error}; the log of storage has the details")
            ) from error


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> None:
        presented = next((values[0] for name, values in headers.items() if name.lower() == TOKEN_KEY and values), None)
        if not token_matches(self._token, presented):
            raise flight.FlightUnauthenticatedError("no valid token")
