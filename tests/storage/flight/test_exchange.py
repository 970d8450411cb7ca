"""How an exchange ends: a server that stops sends its clients elsewhere, what is wrong with it is told, a client that is gone is no news."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from modyn.config.system import Endpoint
from modyn.errors import DataError, ModynError
from modyn.storage.flight import server as flight_server
from modyn.storage.flight.client import PayloadClient
from modyn.storage.flight.protocol import (
    DESCRIPTOR,
    END,
    AnswerHead,
    Kind,
    Question,
    keys_to_batch,
    location,
    number_to_bytes,
)
from modyn.storage.flight.server import PayloadServer, Views
from modyn.storage.model.samples import RecordReader
from modyn.storage.read.snapshot import DatasetSnapshot
from modyn.testing.running_storage import RunningStorage
from modyn.testing.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.usefixtures("small_pieces")

KEYS = np.arange(100)
"""Ten pieces."""


class Slow:
    """Views of which the fourth piece and those behind it are gathered once `released`."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self.num_gathered = 0
        self.released = threading.Event()

    def snapshot(self, name: str) -> DatasetSnapshot:
        view = self._views.snapshot(name)
        return replace(view, reader=_SlowSource(self, view.reader))


class _SlowSource:
    def __init__(self, slow: Slow, source: RecordReader) -> None:
        self._slow, self._source = slow, source

    def gather(self, *asked: Any) -> Any:
        self._slow.num_gathered += 1
        if self._slow.num_gathered > 3:
            self._slow.released.wait(PATIENCE_S)
        return self._source.gather(*asked)


class Asked:
    """The reading side of an exchange: one request for KEYS, and the end. Whoever reads on learns that the client has gone, which it does once
    it `has_heard`."""

    schema = Question("numbers", "raise").schema()

    def __init__(self, has_heard: Callable[[], bool]) -> None:
        self._has_heard = has_heard
        requests = (KEYS, 0), (np.empty(0, np.int64), END)
        self._chunks = [
            SimpleNamespace(data=keys_to_batch(keys, self.schema), app_metadata=pa.py_buffer(number_to_bytes(number)))
            for keys, number in requests
        ]

    def read_chunk(self) -> SimpleNamespace:
        if not self._chunks:
            eventually(self._has_heard)
            raise flight.FlightCancelledError("the client has ended the exchange")
        return self._chunks.pop(0)


class Unread:
    """The writing side of an exchange whose client does not read before `released`: the second message does not get away."""

    def __init__(self) -> None:
        self.num_messages = 0
        self.last: Kind | None = None
        self.released = threading.Event()

    def begin(self, schema: pa.Schema) -> None:
        pass

    def write_with_metadata(self, batch: pa.RecordBatch, head: bytes) -> None:
        self.num_messages += 1
        if self.num_messages > 1:
            self.released.wait(PATIENCE_S)
        self.last = AnswerHead.from_bytes(head).kind


class Failing(Unread):
    """One whose message `number` cannot be written."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__()
        self.released.set()
        self._number, self._error = number, error

    def write_with_metadata(self, batch: pa.RecordBatch, head: bytes) -> None:
        super().write_with_metadata(batch, head)
        if self.num_messages == self._number:
            raise self._error


def exchange(server: PayloadServer, writer: Unread) -> None:
    context = SimpleNamespace(is_cancelled=lambda: False)
    asked = Asked(has_heard=lambda: writer.last in (Kind.GOODBYE, Kind.FAILED))
    server._server.do_exchange(context, DESCRIPTOR, asked, writer)


@pytest.fixture
def endpoint(numbers: RunningStorage) -> Endpoint:
    return Endpoint(address=f"unix:{numbers.config.run_dir}/test.sock")


@pytest.fixture
def server(numbers: RunningStorage, endpoint: Endpoint) -> Iterator[PayloadServer]:
    server = PayloadServer(endpoint, numbers.store)
    yield server
    server.stop()


def test_an_exchange_that_still_gathers_when_the_server_stops_is_sent_elsewhere(
    numbers: RunningStorage, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the client is so slow that answers still wait for it: it is told behind them."""
    slow, writer = Slow(numbers.store), Unread()
    server = PayloadServer(endpoint, slow)
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(exchange, server, writer)
        eventually(lambda: slow.num_gathered == 4 and writer.num_messages == 2)
        server.stop()
        slow.released.set()
        writer.released.set()
        served.result()
    assert writer.last is Kind.GOODBYE
    assert "payload_request_failed" not in capsys.readouterr().err


def test_a_piece_that_cannot_be_made_is_an_error(
    server: PayloadServer, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError("no memory for the piece")

    monkeypatch.setattr("modyn.storage.flight.server.to_record_batch", no_memory)
    with PayloadClient(endpoint, retry_s=0) as client, pytest.raises(ModynError, match="MemoryError: no memory for the piece"):
        list(client.fetch("numbers", KEYS))
    assert "payload_request_failed" in capsys.readouterr().err


def test_a_sample_that_is_too_large_to_be_sent_is_named(
    server: PayloadServer, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modyn.storage.flight.server.MAX_PIECE_BYTES", 7)
    with (
        PayloadClient(endpoint, retry_s=0) as client,
        pytest.raises(DataError, match="key 5 of dataset 'numbers' has 8 bytes.*at most 7: delete it"),
    ):
        list(client.fetch("numbers", KEYS[5:6]))


@pytest.mark.parametrize("number", [2, 10])
def test_a_piece_that_cannot_be_sent_is_an_error(server: PayloadServer, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if it is the last, and nothing is left to be gathered."""
    writer = Failing(number, pa.ArrowInvalid("Cannot send record batches exceeding 2GiB yet"))
    with pytest.raises(flight.FlightServerError, match="'numbers' cannot be sent: ArrowInvalid: .*exceeding 2GiB"):
        exchange(server, writer)
    assert "payload_piece_not_sent" in capsys.readouterr().err


@pytest.mark.parametrize("number", [2, 10])
def test_a_client_that_goes_is_no_error(server: PayloadServer, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exchange(server, Failing(number, flight.FlightInternalError("Could not write record batch to stream (client disconnect?)")))
    assert "error" not in capsys.readouterr().err


def test_a_client_that_goes_before_it_has_asked_is_no_error(
    numbers: RunningStorage, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, ended = threading.Event(), threading.Event()
    serve = flight_server._Server.do_exchange

    def watched(*arguments: Any) -> None:
        begun.set()
        try:
            serve(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(flight_server._Server, "do_exchange", watched)
    server = PayloadServer(endpoint, numbers.store)
    with flight.FlightClient(location(endpoint)) as client:
        _, reader = client.do_exchange(DESCRIPTOR)
        assert begun.wait(PATIENCE_S)
        reader.cancel()
        assert ended.wait(PATIENCE_S)
    server.stop()
    assert "payload_request_failed" not in capsys.readouterr().err
