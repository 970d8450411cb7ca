"""How an answer ends: a server that stops sends its clients elsewhere, errors name their cause, and a client that is gone is no error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyarrow import flight

from modyn.config.endpoint import Endpoint
from modyn.errors import DataError, ModynError, UnavailableError
from modyn.storage.flight.client import PayloadClient
from modyn.storage.flight.protocol import AnswerHead, PayloadRequest, error_from_text, location
from modyn.storage.flight.server import PayloadServer, Snapshots
from modyn.storage.model.samples import RecordReader
from modyn.storage.read.snapshot import DatasetSnapshot
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.running_storage import ONCE, SMALL_SERVING, RunningStorage

KEYS = np.arange(100)
"""Ten chunks."""


class Slow:
    """Snapshots of which the fourth chunk and those behind it are read once `released`."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self.num_read = 0
        self.released = threading.Event()

    def snapshot(self, name: str) -> DatasetSnapshot:
        snapshot = self._snapshots.snapshot(name)
        return replace(snapshot, reader=_SlowReader(self, snapshot.reader))


class _SlowReader:
    def __init__(self, slow: Slow, source: RecordReader) -> None:
        self._slow, self._source = slow, source

    def gather(self, *asked: Any) -> Any:
        self._slow.num_read += 1
        if self._slow.num_read > 3:
            self._slow.released.wait(PATIENCE_S)
        return self._source.gather(*asked)


@pytest.fixture
def endpoint(numbers: RunningStorage) -> Endpoint:
    return Endpoint(address=f"unix:{numbers.config.run_dir}/test.sock")


@pytest.fixture
def slow(numbers: RunningStorage) -> Iterator[Slow]:
    slow = Slow(numbers.store)
    yield slow
    slow.released.set()


def ask(client: flight.FlightClient) -> flight.FlightStreamReader:
    """The answer to a request for KEYS."""
    return client.do_get(PayloadRequest("numbers", "raise", KEYS).to_ticket())


def next_head(answer: flight.FlightStreamReader) -> AnswerHead:
    return AnswerHead.from_bytes(answer.read_chunk().app_metadata.to_pybytes())


def test_an_answer_under_way_when_the_server_stops_is_sent_elsewhere(
    slow: Slow, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind the chunks that were read before, which the client gets all the same."""
    server = PayloadServer(endpoint, slow, SMALL_SERVING)
    with flight.FlightClient(location(endpoint)) as client, ThreadPoolExecutor(1) as pool:
        answer = ask(client)
        eventually(lambda: slow.num_read == 4)
        stopped = pool.submit(server.stop)
        eventually(lambda: server._is_stopping)
        slow.released.set()
        assert [next_head(answer).done for _ in range(3)] == [10, 20, 30]
        last = next_head(answer)
        assert last.done == 30
        assert isinstance(error_from_text(last.error), UnavailableError)
        with pytest.raises(StopIteration):
            answer.read_chunk()
        stopped.result()
    assert "payload_request_failed" not in capsys.readouterr().err


def test_a_chunk_that_cannot_be_made_is_an_error(
    numbers: RunningStorage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make = PayloadServer.__module__ + ".to_record_batch"

    def no_memory(*_: object) -> None:
        raise MemoryError("no memory for the chunk")

    monkeypatch.setattr(make, no_memory)
    with pytest.raises(ModynError, match="MemoryError: no memory for the chunk"):
        list(numbers.payloads.fetch("numbers", KEYS))
    assert "payload_request_failed" in capsys.readouterr().err


def test_a_sample_that_is_too_large_to_be_sent_is_named(numbers: RunningStorage, endpoint: Endpoint) -> None:
    with (
        PayloadServer(endpoint, numbers.store, replace(SMALL_SERVING, max_chunk_bytes=7)) as server,
        PayloadClient(endpoint, limits=ONCE) as client,
        pytest.raises(DataError, match="key 5 of dataset 'numbers' has 8 bytes.*at most 7: delete it"),
    ):
        list(client.fetch("numbers", KEYS[5:6]))
    assert server._is_stopping, "left as by `stop`"


@pytest.mark.parametrize("num_read", [0, 2])
def test_a_client_that_goes_is_no_error(
    slow: Slow, endpoint: Endpoint, num_read: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does its request keep a place."""
    limits = replace(SMALL_SERVING, poll_s=0.05)
    server = PayloadServer(endpoint, slow, limits)
    with flight.FlightClient(location(endpoint)) as client:
        answer = ask(client)
        for _ in range(num_read):
            next_head(answer)
        eventually(lambda: server._admission.num_held == 1)
        answer.cancel()
        eventually(lambda: server._admission.num_held == 0)
    server.stop()
    assert "error" not in capsys.readouterr().err
