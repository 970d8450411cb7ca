"""Bounds of the memory and connections that clients of the HTTP server may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from modyn.errors import CancelledError, InvalidArgumentError, OverloadedError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_TRIM_BYTES: Final = 8 * 2**20
"""After request bodies of this many bytes have been released, free memory is returned to the system."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of one HTTP server."""

    max_body_bytes: int = 32 * 2**20
    """Largest body of a request, in bytes."""
    max_unfinished_bytes: int = 128 * 2**20
    """Largest sum of the bytes of all bodies that have arrived in part, and of labels that are being stored."""
    max_connections: int = 256
    """Largest number of connections from one address."""
    timeout_s: float = 30.0
    """Longest time until a request with labels is answered. The model server bounds predictions itself."""


class HttpError(Exception):
    """An HTTP error answer with its status. Args: headers: added to the headers that every answer has."""

    reason: Final = InvalidArgumentError.reason

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


class RequestBodies:
    """Reads request bodies within two bounds: one for each body, and one for the sum of all bodies. Only the event loop's thread uses this object."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self.unfinished_bytes = 0
        self._peak = 0  # largest `unfinished_bytes` since `took_much` returned True

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """Return the body of a request.

        Raises: HttpError: the body is encoded, or too long. OverloadedError: all bodies together are too long. CancelledError: the client has
        disconnected.
        """
        if encoding := headers.get(b"content-encoding"):
            raise HttpError(415, f"the body is encoded as {encoding.decode('latin-1')}; send it as it is")
        # The parser has checked that the header has at most 20 digits.
        if int(headers.get(b"content-length", 0)) > self._limits.max_body_bytes:
            raise self._too_long()
        message = await _next(receive)
        if not message.get("more_body"):
            body: bytes = message.get("body", b"")
            if len(body) > self._limits.max_body_bytes:
                raise self._too_long()
            return body
        # The body is read into one buffer. A list of parts would have an object for each byte if a client sends single bytes.
        content, held = bytearray(), 0
        try:
            while True:
                part = message.get("body", b"")
                if len(content) + len(part) > self._limits.max_body_bytes:
                    raise self._too_long()
                self.hold(len(part))
                held += len(part)
                content += part
                if not message.get("more_body"):
                    return bytes(content)
                message = await _next(receive)
        finally:
            self.release(held)

    def hold(self, size: int) -> None:
        """Count bytes of a body until `release`. Raises OverloadedError: all bodies together are too long."""
        if self.unfinished_bytes + size > self._limits.max_unfinished_bytes:
            raise OverloadedError(
                f"requests that have come in part have {self.unfinished_bytes} bytes already, of {self._limits.max_unfinished_bytes} that they may "
                "have together (serving.max_unfinished_bytes); send this one again later"
            )
        self.unfinished_bytes += size
        self._peak = max(self._peak, self.unfinished_bytes)

    def release(self, size: int) -> None:
        """Subtract `size` bytes from the count."""
        self.unfinished_bytes -= size

    def took_much(self) -> bool:
        """Whether large bodies were released since the last call that returned True."""
        if took := self._peak > self.unfinished_bytes + _TRIM_BYTES:
            self._peak = self.unfinished_bytes
        return took

    def _too_long(self) -> HttpError:
        limit = self._limits.max_body_bytes
        return HttpError(413, f"the request has more than {limit} bytes (serving.max_message_bytes); send less at a time")


class ClientConnections:
    """Counts the connections of each client. Only the event loop's thread uses this object."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = Counter[str]()

    def add(self, client: str) -> bool:
        """Count a new connection. Returns whether the client may have this connection."""
        self._open[client] += 1
        return self._open[client] <= self._most

    def remove(self, client: str) -> None:
        """Remove a connection from the count."""
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]


async def _next(receive: Receive) -> MutableMapping[str, Any]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise CancelledError("the client has gone before its request was complete")
    return message
