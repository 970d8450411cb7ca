"""Client that sends HTTP requests on many connections from one process, and measures the latency of each answer.

It writes one prepared request over and over and reads no more of an answer than its status and length, unless it is asked to: the two sides share
a machine, and what the client takes is not there for the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop


@dataclass(frozen=True)
class Load:
    """Load of a server. rate: requests a second of all connections together, independent of the answers; None: each connection sends a request once
    it has the answer to the last one. warm_up_s: seconds at the start that do not count."""

    address: str
    path: str
    body: bytes
    connections: int
    seconds: float
    warm_up_s: float = 0.5
    rate: float | None = None


@dataclass
class Answers:
    """Answers of a server. latencies_ms: of each answer; with a rate, since the time at which its request was due."""

    seconds: float
    latencies_ms: list[float] = field(default_factory=list)
    failed: int = 0
    last: bytes = b""

    def quantile(self, share: float) -> float:
        """Return a quantile of the latencies, in ms."""
        return float(np.quantile(self.latencies_ms, share))

    @property
    def rate(self) -> float:
        """Number of answers a second."""
        return len(self.latencies_ms) / self.seconds


def ask(load: Load, each: Callable[[bytes], object] | None = None) -> Answers:
    """Send requests for `load.seconds`. Args: each: called with the content of each counted answer. Raises SystemExit: the server answers nothing."""
    found = uvloop.run(_ask(load, each))
    if not found.latencies_ms:
        raise SystemExit(f"{load.address} answered none of the requests, the last with {found.last[:200]!r}")
    return found


async def _ask(load: Load, each: Callable[[bytes], object] | None) -> Answers:
    host, port = load.address.rsplit(":", 1)
    begin = time.perf_counter() + load.warm_up_s
    answers = Answers(load.seconds)
    loop = asyncio.get_running_loop()
    clients = [_Client(load, answers, begin, number, each) for number in range(load.connections)]
    made = [await loop.create_connection(lambda client=client: client, host, int(port)) for client in clients]  # type: ignore[misc]
    await asyncio.wait([client.ended for client in clients], timeout=load.warm_up_s + load.seconds + 30)
    for transport, _ in made:
        transport.close()
    return answers


class _Client(asyncio.Protocol):
    """Connection with one request at a time."""

    def __init__(
        self, load: Load, answers: Answers, begin: float, number: int, each: Callable[[bytes], object] | None = None
    ) -> None:
        self._load, self._answers, self._begin, self._each = load, answers, begin, each
        self._end = begin + load.seconds
        head = f"POST {load.path} HTTP/1.1\r\nHost: {load.address}\r\nContent-Type: application/json\r\nContent-Length: {len(load.body)}\r\n\r\n"
        self._request = head.encode() + load.body
        self._every = None if load.rate is None else load.connections / load.rate
        self._due = time.perf_counter() + (0.0 if self._every is None else self._every * number / load.connections)
        self._received = b""
        self._missing = -1  # bytes of the answer; -1: its length is not known yet
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Send the first request."""
        self._transport = transport
        self._ask_when_due()

    def data_received(self, data: bytes) -> None:
        """Read a part of an answer."""
        if self._missing < 0:
            self._received += data
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._missing = end + 4 + _length_of(self._received[:end]) - len(self._received)
        else:
            self._received += data
            self._missing -= len(data)
        if self._missing <= 0:
            self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection; an incomplete answer counts as failed."""
        if not self.ended.done():
            self._answers.failed += 1
            self.ended.set_result(None)

    def _answered(self) -> None:
        now = time.perf_counter()
        answer, self._received, self._missing = self._received, b"", -1
        self._answers.last = answer
        if now >= self._begin and self._due >= self._begin:
            if b" 200 " in answer[:20]:
                self._answers.latencies_ms.append(1000 * (now - self._due))
                if self._each is not None:
                    self._each(answer.partition(b"\r\n\r\n")[2])
            else:
                self._answers.failed += 1
        self._due = now if self._every is None else self._due + self._every
        if now >= self._end:
            self.ended.set_result(None)
        else:
            self._ask_when_due()

    def _ask_when_due(self) -> None:
        wait = self._due - time.perf_counter()
        if self._every is None or wait <= 0:
            self._transport.write(self._request)
        else:
            asyncio.get_running_loop().call_later(wait, self._transport.write, self._request)


def _length_of(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    raise SystemExit(f"the server sends an answer without a length: {head[:300]!r}")
