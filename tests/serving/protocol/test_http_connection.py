"""Clients that send too much, too slowly, or something that is not HTTP/1.1, byte by byte."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import ExitStack, closing
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from modyn.serving.protocol.http_connection import JoinedWrites, Stalled
from modyn.serving.protocol.http_limits import HttpLimits, RequestBodies
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.serving.conftest import Served

BODY = json.dumps({"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}).encode()
POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


def until_closed(client: socket.socket) -> bytes:
    """Return all bytes that the server sends until it closes or resets the connection."""
    parts = list[bytes]()
    try:
        while part := client.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def answer(client: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next answer."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = b""
    while len(body) < length:
        body += client.recv(length - len(body))
    return int(head.split()[1]), body


def send_much(client: socket.socket, piece: bytes, size: int = 20_000_000) -> int:
    """Send pieces until the server closes the connection; returns how many bytes it took."""
    sent = 0
    try:
        while sent < size:
            client.sendall(piece)
            sent += len(piece)
    except ConnectionError:
        pass
    return sent


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n", b"X-Much: " + b"a" * 5000 + b"\r\n"),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX-Long: ", b"a" * 5000),
        (b"GET /v2/", b"a" * 5000),
        (POST + b"Content-Length: 99999999\r\n\r\n", b" " * 5000),
        (b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n", b" " * 5000),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X-Trailer: " + b"a" * 5000 + b"\r\n"),
    ],
)
def test_a_request_without_end_is_cut_off(served: Served, begin: bytes, piece: bytes) -> None:
    with served.connect() as client:
        client.sendall(begin)
        assert send_much(client, piece) < 19_000_000
    with served.connect() as client:
        client.sendall(WHOLE)
        assert answer(client)[0] == 200, "the server continues"


def test_too_long_headers_are_refused_with_a_reason(served: Served) -> None:
    with served.connect() as client:
        client.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX-Much: ")
        while True:
            client.sendall(b"a" * 1000)
            client.settimeout(0.001)
            try:
                status, body = answer(client)
                break
            except TimeoutError:
                client.settimeout(PATIENCE_S)
        assert (status, json.loads(body)["error"]) == (
            431,
            "the request line and the headers have more than 65536 bytes; send less",
        )


def test_bytes_that_are_not_http_are_refused_as_the_protocol_says(served: Served) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ):
        with served.connect() as client:
            client.sendall(garbage)
            assert answer(client) == (400, b'{"error":"this is not a request of HTTP/1.1"}')
            assert until_closed(client) == b""
    with served.connect() as client:  # the answer to a request that came before is not that of the garbage
        client.sendall(WHOLE + b"\x16\x03\x01\x02\x00")
        assert b" 400 " not in until_closed(client)


CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        # What a proxy before this server could read as another request than this server does.
        (POST + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
        (POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + LENGTH + LENGTH + b"\r\n" + BODY, 400),
        (POST + LENGTH + b"Content-Length: 3\r\n\r\n" + BODY, 400),
        (POST + b"Content-Length: +%d\r\n\r\n" % len(BODY) + BODY, 400),
        (POST + b"Content-Length: " + b"1" * 5000 + b"\r\n\r\n" + BODY, 400),
        (POST + b"X-A: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY, 400),
        (WHOLE.replace(b"\r\n", b"\n"), 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n", 400),
        (POST + b"X-A: a\0b\r\n\r\n", 400),
        # Hosts and credentials that are missing, or come twice.
        (WHOLE.replace(b"Host: localhost\r\n", b""), 400),
        (WHOLE.replace(b"Host: localhost", b"Host: localhost\r\nHost: localhost"), 400),
        (WHOLE.replace(b"Host: localhost", b"Host: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b"), 400),
        (WHOLE.replace(b"HTTP/1.1\r\nHost: localhost", b"HTTP/1.0"), 400),
        (WHOLE.replace(b" /v2", b" http://evil.example/v2"), 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v2\r\n\r\n", 505),
        (b"GET /v2 HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
        # More than 64 KiB of headers, in one write.
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX-Much: " + b"a" * 65_536 + b"\r\n\r\n", 431),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n" + b"X:\r\n" * 15_000 + b"\r\n", 431),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX-Much: " + b"a" * 65_000 + b"\r\n\r\n", 200),
        # Trailers after a body are not headers of the request.
        (CHUNKED + b"Inference-Header-Content-Length: 3\r\nHost: evil.example\r\n\r\n", 200),
    ],
)
def test_each_request_has_one_meaning(served: Served, sent: bytes, status: int) -> None:
    with served.connect() as client:
        client.sendall(sent)
        assert answer(client)[0] == status


def test_bodies_that_never_end_are_bounded_together() -> None:
    served = Served(max_body_bytes=300_000, max_unfinished_bytes=1_000_000)
    head = POST + b"Content-Type: application/json\r\nContent-Length: 250000\r\n\r\n"
    with closing(served), ExitStack() as stack:
        bodies = served.http._server.config.app.bodies  # type: ignore[union-attr]
        for count in range(1, 5):
            stack.enter_context(served.connect()).sendall(head + b" " * 249_999)
            eventually(lambda count=count: bodies.unfinished_bytes == count * 249_999)  # type: ignore[misc]
        with served.connect() as late:
            late.sendall(head + b" " * 249_999)
            status, body = answer(late)
            assert (status, b"serving.max_unfinished_bytes" in body) == (503, True)
        with served.connect() as client:
            client.sendall(WHOLE)
            assert answer(client)[0] == 200, "what comes as a whole needs no space among them"
        stack.close()
        eventually(lambda: bodies.unfinished_bytes == 0)
        with served.connect() as client:
            client.sendall(head + b" " * (250_000 - len(BODY)) + BODY)
            assert answer(client)[0] == 200


def test_memory_of_large_bodies_is_given_back_once_they_are_gone() -> None:
    bodies = RequestBodies(HttpLimits())
    seen = list[bool]()
    for change in (30 * 2**20, -2 * 2**20, -10 * 2**20, 0, -18 * 2**20, 0, 2**20, -(2**20)):
        bodies.hold(change) if change > 0 else bodies.release(-change)
        seen.append(bodies.took_much())
    assert seen == [False, False, True, False, True, False, False, False]


def test_the_connections_of_a_client_are_bounded() -> None:
    served = Served(max_connections=3)
    with closing(served), ExitStack() as stack:
        clients = [stack.enter_context(served.connect()) for _ in range(3)]
        for client in clients:
            client.sendall(WHOLE)
            assert answer(client)[0] == 200
        with served.connect() as another:
            status, body = answer(another)
            assert (status, b"has 3 connections already, as many as serving.max_connections_per_client allows" in body) == (
                503,
                True,
            )
            assert until_closed(another) == b""
        clients[0].close()
        eventually(lambda: len(served.http._server.server_state.connections) == 2)
        with served.connect() as another:
            another.sendall(WHOLE)
            assert answer(another)[0] == 200


def test_requests_after_others_do_not_pile_up(served: Served) -> None:
    # The server read on after each answer: one connection that reads nothing took gigabytes.
    get = b"GET /v2/models/m HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served.connect() as client:
        for _ in range(50):
            client.sendall(get * 40)
            assert [answer(client)[0] for _ in range(40)] == [200] * 40
    with served.connect() as client:
        client.sendall(get * 4000)
        assert until_closed(client).count(b"HTTP/1.1 ") < 4000


def test_a_client_that_does_not_read_its_answers_ends() -> None:
    served = Served(arrival_s=0.5)
    with closing(served), served.connect() as client:
        client.sendall(WHOLE)
        assert answer(client)[0] == 200
        (connection,) = served.http._server.server_state.connections
        connection.pause_writing()  # as the transport does when megabytes wait for the client
        assert until_closed(client) == b""


def test_requests_that_do_not_arrive_end_and_others_continue() -> None:
    served = Served(arrival_s=0.5)
    nowhere = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    expected = {b"": [408], WHOLE[:20]: [408], WHOLE[:-1]: [408], WHOLE + WHOLE[:20]: [200, 408], nowhere: [404]}
    with closing(served), ExitStack() as stack:
        clients = {sent: stack.enter_context(served.connect()) for sent in expected}
        for sent, client in clients.items():
            client.sendall(sent)
        for sent, client in clients.items():
            assert [answer(client)[0] for _ in expected[sent]] == expected[sent]
            assert until_closed(client) == b""
        client = stack.enter_context(served.connect())
        for _ in range(3):
            client.sendall(WHOLE)
            assert answer(client)[0] == 200


class ConnectionInArrival:
    """A connection on which something arrives."""

    arriving: object | None = "a"


def test_the_time_of_a_request_begins_with_it() -> None:
    times = [0.0, 6.0, 11.0, 12.0, 21.0, 23.0]
    stalled, slow, other = Stalled(10.0, lambda: times.pop(0)), ConnectionInArrival(), ConnectionInArrival()
    late = list[int]()
    for other.arriving in ("b", "c", None, "d", "d", "d"):
        found: list[object] = list(stalled.look([slow, other]))  # type: ignore[list-item]
        late.append(len(found))
        assert other not in found or len(found) == 2
    assert late == [0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
def test_a_request_that_offers_another_protocol_is_answered_by_this_one(served: Served, upgrade: bytes) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + upgrade + b"\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    offering = WHOLE.replace(b"Host: localhost\r\n", b"Host: localhost\r\n" + offer)
    chunks = b"".join(b"%x\r\n%s\r\n" % (1, bytes([each])) for each in BODY) + b"0\r\n\r\n"
    chunked = POST + offer + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    with served.connect() as client:
        client.sendall(offering + offering + WHOLE + chunked)
        assert [answer(client)[0] for _ in range(4)] == [200] * 4
        client.sendall(offering[:-5])
        client.sendall(offering[-5:])
        assert answer(client)[0] == 200


class RecordingTransport(asyncio.Transport):
    """A transport that records what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.closed = list[bytes](), False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def test_head_and_body_are_one_write_and_nothing_is_held_longer_than_a_turn_or_lost() -> None:
    async def write() -> None:
        transport = RecordingTransport()
        joined = JoinedWrites(transport, asyncio.get_running_loop())
        joined.write(b"head ")
        joined.write(b"body")
        assert transport.writes == [b"head body"]
        joined.write(b"alone")
        await asyncio.sleep(0)
        assert transport.writes[1:] == [b"alone"]
        for data in (b"a", b"b", b"c"):
            joined.write(data)
        joined.close()
        assert (transport.writes[2:], joined.is_closing()) == ([b"ab", b"c"], True)
        joined.write(b"late")
        await asyncio.sleep(0)
        assert transport.writes[4:] == []

    asyncio.run(write())


def test_head_is_answered_as_get_without_a_body(served: Served) -> None:
    with served.connect() as client:
        client.sendall(b"HEAD /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        sent = until_closed(client)
        assert sent.startswith(b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n")
        assert sent.endswith(b"\r\n\r\n")


def test_uvicorn_has_the_attributes_that_a_connection_uses() -> None:
    """Uvicorn does not document them. Raise the bound of `uvicorn` in pyproject.toml only if they exist."""
    with closing(asyncio.new_event_loop()) as loop:
        connection = HttpToolsProtocol(uvicorn.Config(lambda: None, log_config=None), ServerState(), {}, loop)
    connection.on_message_begin()
    for name in (
        "client",
        "cycle",
        "flow",
        "headers",
        "loop",
        "parser",
        "pipeline",
        "scope",
        "timeout_keep_alive_task",
        "transport",
        "url",
    ):
        assert name in vars(connection), name
    for name in ("connection_lost", "connection_made", "data_received", "on_headers_complete", "on_message_complete"):
        assert name in vars(HttpToolsProtocol), name
    for name in ("more_body", "response_complete", "response_started", "scope"):
        assert name in RequestResponseCycle.__init__.__code__.co_names, name
    assert {"resume_reading", "write_paused"} <= {*dir(FlowControl), *FlowControl.__init__.__code__.co_names}
