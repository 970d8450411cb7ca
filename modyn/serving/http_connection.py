"""A connection of Uvicorn that bounds what a client may send and how long it may take, and that sends an answer as one."""

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
from modyn.serving.http_limits import ClientConnections, HttpLimits

_MARKS_BYTES: Final = 4
"""Size of the colon, the space and the line break of a header."""
_VERSIONS: Final = ("1.1", "1.0")
_MAX_PIPELINED: Final = 100
"""Requests of one connection that wait for an earlier one's answer."""


_TOO_LONG: Final = f"the request line and the headers have more than {MAX_HEAD_BYTES} bytes; send less"


class _RefusedError(Exception):
    """A request whose head is refused, with its status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Connection(HttpToolsProtocol):
    """One that a client has opened.

    A request to go on in another protocol, such as HTTP/2 which Java's client asks for, is answered as if it did not ask; Uvicorn would lose its
    body.

    Args: limits: of a body twice as much may arrive, since chunks have heads of their own, before the connection is closed. clients: counts it.
    """

    def __init__(self, *args: Any, limits: HttpLimits, clients: ClientConnections, **options: Any) -> None:
        super().__init__(*args, **options)
        self._max_body_bytes, self._max_connections, self._clients = limits.max_body_bytes, limits.max_connections, clients
        self._received = 0  # bytes of the request that arrives, without those of its first read

    @property
    def arriving(self) -> object | None:
        """What identifies the request that has not arrived as a whole, or the connection before its first one, or answers that the client does not
        read; None: nothing is missing, or an earlier request has no answer yet, for which the client may wait before it goes on."""
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
        """Begin, or refuse a client that has many connections."""
        super().connection_made(cast("asyncio.Transport", JoinedWrites(transport, self.loop)))
        self.flow = PipelineFlow(self.transport, self.pipeline)
        if not self._clients.opened(self._client_name):
            self.refuse(
                503,
                f"{self._client_name} has {self._max_connections} connections already, as many as serving.max_connections_per_client allows; use "
                "them again, or close some",
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        self._clients.closed(self._client_name)

    @property
    def _client_name(self) -> str:
        return "a client" if self.client is None else self.client[0]

    def data_received(self, data: bytes) -> None:
        """Take what a client has sent."""
        self._unset_keepalive_if_required()
        before = self.scope
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if isinstance(refused := error.__context__, _RefusedError):
                return self.refuse(refused.status, refused.message)
            return self.refuse(400, "this is no request of HTTP/1.1")
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
        """Begin with the answer, unless the request is to be parsed again. Raises _RefusedError, which the parser wraps."""
        if not self.parser.should_upgrade():
            self._check_head()
            super().on_headers_complete()
            self.headers = []  # Not of `scope`: what follows the body of chunks is no header of the request.

    def on_message_complete(self) -> None:
        """Note that nothing is missing."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def refuse(self, status: int, message: str) -> None:
        """End the connection, with an answer to the request that arrives unless one has begun, or an earlier one has none yet."""
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
            self.transport.abort()  # A close would wait until the client reads.
        else:
            self.transport.close()

    def _check_head(self) -> None:
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value) + _MARKS_BYTES
            if name == b"transfer-encoding" and value.lower() != b"chunked":
                raise _RefusedError(501, "the body has another Transfer-Encoding than chunked; send it as it is")
        if size > MAX_HEAD_BYTES:
            raise _RefusedError(431, _TOO_LONG)
        if self.parser.get_http_version() not in _VERSIONS:
            raise _RefusedError(505, "this server speaks HTTP/1.1")
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise _RefusedError(429, f"{_MAX_PIPELINED} requests of this connection wait already; read their answers first")
        if not self.url.startswith(b"/"):
            raise _RefusedError(400, "the target of the request is no path; this server is no proxy")

    def _parse(self, data: bytes) -> None:
        """Raises: HttpParserError."""
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
    """Reads nothing more while requests wait for an earlier one's answer. Uvicorn would read on after each answer, and keep all that it reads."""

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        """Read on, unless requests wait."""
        if not self._pipeline:
            super().resume_reading()


class Stalled:
    """Finds connections whose requests do not arrive: they would take memory and descriptors for ever. Args: clock: seconds, monotonic."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._seen = dict[Connection, tuple[object, float]]()  # what was arriving, and since when that is known

    def look(self, connections: Iterable[Connection]) -> list[Connection]:
        """Return those for which the same request has been arriving for longer than the limit. To be called again and again, with all there are."""
        now, before, self._seen = self._clock(), self._seen, {}
        for connection in connections:
            if (arriving := connection.arriving) is not None:
                known = before.get(connection)
                self._seen[connection] = known if known is not None and known[0] is arriving else (arriving, now)
        return [connection for connection, (_, since) in self._seen.items() if now - since > self._limit_s]


class JoinedWrites:
    """A transport that joins two writes of one turn of the loop, which Uvicorn makes for each answer: a system call, and a packet that the client
    would wake up for, take longer than a quick model."""

    __slots__ = ("_held", "_is_due", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held = b""  # the first of two writes
        self._is_due = False  # whether the loop calls `_flush` soon

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data with the write before it, or else with the next one, which comes in this turn of the loop or not at all."""
        if self._held:
            if (
                not self._transport.is_closing()
            ):  # Where other requests follow, Uvicorn does not report to an answer that the client has gone.
                self._transport.writelines((self._held, data))
            self._held = b""
        else:
            self._held = data
            if not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Send what is held, and close."""
        self._send()
        self._transport.close()

    def _flush(self) -> None:
        self._is_due = False
        self._send()

    def _send(self) -> None:
        if self._held and not self._transport.is_closing():
            self._transport.write(self._held)
        self._held = b""
