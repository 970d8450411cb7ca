"""What clients may take of the HTTP server's memory and connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from modyn.errors import CancelledError, InvalidArgumentError, OverloadedError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_TRIM_BYTES: Final = 8 * 2**20
"""After this number of bytes of ended bodies, memory that is free is given back to the system."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of one HTTP server."""

    max_body_bytes: int = 32 * 2**20
    """Largest body of a request."""
    max_unfinished_bytes: int = 128 * 2**20
    """Largest sum of all bodies that have come in part and of labels that are being taken."""
    max_connections: int = 256
    """Most connections of one address."""
    timeout_s: float = 30.0
    """Seconds after which a request with labels is answered in any case. The model server bounds predictions by itself."""


class HttpError(Exception):
    """An answer that has a status of its own. Args: headers: besides those of every answer."""

    reason: Final = InvalidArgumentError.reason

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


class RequestBodies:
    """Reads bodies within bounds of each and of all together. For one thread, that of the loop."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self.unfinished_bytes = 0
        self._peak = 0  # of these, since `took_much`

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """Return the body of a request.

        Raises: HttpError: it is encoded, or too long. OverloadedError: too much of all bodies is here already. CancelledError: the client has gone.
        """
        if encoding := headers.get(b"content-encoding"):
            raise HttpError(415, f"the body is encoded as {encoding.decode('latin-1')}; send it as it is")
        if (
            int(headers.get(b"content-length", 0)) > self._limits.max_body_bytes
        ):  # of at most 20 digits, as the parser has checked
            raise self._too_long()
        message = await _next(receive)
        if not message.get("more_body"):
            body: bytes = message.get("body", b"")
            if len(body) > self._limits.max_body_bytes:
                raise self._too_long()
            return body
        # One buffer: a list of parts would have an object for each byte of a client that sends them one by one.
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
        """Count the bytes of a body that is being worked on, until `release`. Raises OverloadedError: too much is here already."""
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
        """Whether large bodies have gone since the last call that returned True."""
        if took := self._peak > self.unfinished_bytes + _TRIM_BYTES:
            self._peak = self.unfinished_bytes
        return took

    def _too_long(self) -> HttpError:
        limit = self._limits.max_body_bytes
        return HttpError(413, f"the request has more than {limit} bytes (serving.max_message_bytes); send less at a time")


class ClientConnections:
    """Counts the connections of each client. For one thread, that of the loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = Counter[str]()

    def opened(self, client: str) -> bool:
        """Count a connection. Returns whether the client may have it."""
        self._open[client] += 1
        return self._open[client] <= self._most

    def closed(self, client: str) -> None:
        """Forget a connection that was counted."""
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]


async def _next(receive: Receive) -> MutableMapping[str, Any]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise CancelledError("the client has gone before its request was complete")
    return message
