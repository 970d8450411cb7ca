"""Uvicorn connection that bounds the size and time of a request, and sends an answer in one write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sized
from http import HTTPStatus
from typing import Any, Final, cast

import httptools
import orjson
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from modyn.rpc.http_guard import MAX_HEAD_BYTES
from modyn.serving.protocol.http_limits import ClientConnections, HttpLimits

_SEPARATOR_BYTES: Final = 4
"""Size of the colon, the space and the line break of a header."""
_VERSIONS: Final = ("1.1", "1.0")
_MAX_PIPELINED: Final = 100
"""Largest number of requests of one connection that wait for the answer to an earlier request."""


_TOO_LONG: Final = f"the request line and the headers have more than {MAX_HEAD_BYTES} bytes; send less"


class _RefusedError(Exception):
    """Refusal of a request's head, with an HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Connection(HttpToolsProtocol):
    """A client's connection.

    A request to upgrade to another protocol, such as HTTP/2 by Java's client, is answered in HTTP/1.1. Uvicorn would lose the body of such a request.

    Args: limits: bounds of a body. The connection is closed only after twice this size has arrived, because chunks have headers. clients: counts
    the connections of each client.
    """

    def __init__(self, *args: Any, limits: HttpLimits, clients: ClientConnections, **options: Any) -> None:
        super().__init__(*args, **options)
        self._max_body_bytes, self._max_connections, self._clients = limits.max_body_bytes, limits.max_connections, clients
        self._received = 0  # bytes of the arriving request, without the bytes of the first read

    @property
    def arriving(self) -> object | None:
        """Identity of the event that the server waits for: the rest of a request, the first request of the connection, or a client that does not read
        the answers. None: the server waits for nothing, or still owes an answer to an earlier request, for which the client may be waiting.
        """
        if self.flow.write_paused:
            return self.flow
        scope = cast("object | None", self.scope)
        if scope is None:
            return self
        if self.pipeline:
            return None
        if self._is_head_missing:
            return None if self.cycle is not None and not self.cycle.response_complete else scope
        return scope if self.cycle.more_body else None

    @property
    def _is_head_missing(self) -> bool:
        return self.cycle is None or self.cycle.scope is not self.scope

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the connection, or refuse a client that has too many connections."""
        super().connection_made(cast("asyncio.Transport", JoinedWrites(transport, self.loop)))
        self.flow = PipelineFlow(self.transport, self.pipeline)
        if not self._clients.add(self._client_name):
            self.refuse(
                503,
                f"{self._client_name} has {self._max_connections} connections already, as many as serving.max_connections_per_client allows; use "
                "them again, or close some",
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the count."""
        super().connection_lost(exc)
        self._clients.remove(self._client_name)

    @property
    def _client_name(self) -> str:
        return "a client" if self.client is None else self.client[0]

    def data_received(self, data: bytes) -> None:
        """Parse data that a client has sent."""
        # Uvicorn's own method would answer parse errors in plain text, so this method replaces it. The timer of the idle time is cancelled here,
        # because the connection is in use again; Uvicorn cancels the timer in a private method.
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        before = self.scope
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if isinstance(refused := error.__context__, _RefusedError):
                return self.refuse(refused.status, refused.message)
            return self.refuse(400, "this is not a request of HTTP/1.1")
        if self.scope is not before:
            self._received = 0
            return None
        self._received += len(data)
        if self._received > MAX_HEAD_BYTES and self._is_head_missing:
            self.refuse(431, _TOO_LONG)
        elif self._received > MAX_HEAD_BYTES + 2 * self._max_body_bytes:
            self.refuse(
                413, f"the request has more than {self._max_body_bytes} bytes (serving.max_message_bytes); send less at a time"
            )
        return None

    def on_headers_complete(self) -> None:
        """Start the answer, unless the request must be parsed again. Raises _RefusedError: the head is refused. The parser wraps this error."""
        if not self.parser.should_upgrade():
            self._check_head()
            super().on_headers_complete()
            self.headers = []  # Trailers after a chunked body go into this list, and do not become headers of the request.

    def on_message_complete(self) -> None:
        """Mark the request as complete."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def refuse(self, status: int, message: str) -> None:
        """Close the connection. The arriving request gets an answer, unless its answer has begun or an earlier request has no answer yet."""
        cycle = self.cycle
        if cycle is None or (
            cycle.response_complete
            if self._is_head_missing
            else cycle.more_body and not cycle.response_started and not self.pipeline
        ):
            body = orjson.dumps({"error": message})
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        if self.flow.write_paused:
            self.transport.abort()  # `close` would wait until the client reads.
        else:
            self.transport.close()

    def _check_head(self) -> None:
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value) + _SEPARATOR_BYTES
            if name == b"transfer-encoding" and value.lower() != b"chunked":
                raise _RefusedError(501, "the body has another Transfer-Encoding than chunked; send it as it is")
        if size > MAX_HEAD_BYTES:
            raise _RefusedError(431, _TOO_LONG)
        if self.parser.get_http_version() not in _VERSIONS:
            raise _RefusedError(505, "this server speaks HTTP/1.1")
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise _RefusedError(429, f"{_MAX_PIPELINED} requests of this connection wait already; read their answers first")
        if not self.url.startswith(b"/"):
            raise _RefusedError(400, "the target of the request is not a path; this server is not a proxy")

    def _parse(self, data: bytes) -> None:
        """Parse data. A request for an upgrade is parsed again without the header `upgrade`. Raises HttpParserError."""
        while True:
            try:
                return self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                method, version = self.parser.get_method(), self.parser.get_http_version().encode()
                if method == b"CONNECT":
                    raise httptools.HttpParserError("no proxy") from upgrade
                kept = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
                data = b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, b"".join(kept)) + data[upgrade.args[0] :]


class PipelineFlow(FlowControl):
    """Flow control that stops reading while requests wait for the answer to an earlier request. Uvicorn would continue reading after each answer, and
    keep all data in memory.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        """Resume reading, unless requests wait for an earlier answer."""
        if not self._pipeline:
            super().resume_reading()


class Stalled:
    """Finds connections whose requests do not arrive. Such connections would hold memory and file descriptors forever. Args: clock: seconds,
    monotonic.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        # By connection: the awaited event, and the time at which the event was seen first.
        self._seen = dict[Connection, tuple[object, float]]()

    def look(self, connections: Iterable[Connection]) -> list[Connection]:
        """Return the connections that have waited for the same event for longer than the limit. Call this method often, with all connections."""
        now, before, self._seen = self._clock(), self._seen, {}
        for connection in connections:
            if (arriving := connection.arriving) is not None:
                known = before.get(connection)
                self._seen[connection] = known if known is not None and known[0] is arriving else (arriving, now)
        return [connection for connection, (_, since) in self._seen.items() if now - since > self._limit_s]


class JoinedWrites:
    """Transport that joins two writes of one iteration of the event loop. Uvicorn makes two writes for each answer. The second system call, and the
    second packet that wakes the client, would take longer than a quick model.
    """

    __slots__ = (
        "_held",
        "_is_due",
        "_loop",
        "_transport",
        "abort",
        "get_extra_info",
        "is_closing",
        "pause_reading",
        "resume_reading",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held = b""  # the first of two writes
        self._is_due = False  # whether the loop calls `_flush` soon
        # Other methods of a transport that Uvicorn uses.
        self.abort, self.get_extra_info, self.is_closing = transport.abort, transport.get_extra_info, transport.is_closing
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading

    def write(self, data: bytes) -> None:
        """Send data together with the previous write, or hold the data for a second write in this iteration of the event loop."""
        if self._held:
            # If other requests follow, Uvicorn writes an answer without checking whether the client has disconnected.
            if not self._transport.is_closing():
                self._transport.writelines((self._held, data))
            self._held = b""
        else:
            self._held = data
            if not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Send held data, and close the transport."""
        self._send()
        self._transport.close()

    def _flush(self) -> None:
        self._is_due = False
        self._send()

    def _send(self) -> None:
        if self._held and not self._transport.is_closing():
            self._transport.write(self._held)
        self._held = b""
