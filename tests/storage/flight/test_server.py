"""How an answer is cut into chunks and how it ends: a stopped server refers its clients elsewhere; a client that has gone is not an error."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import DataError, ModynError, UnavailableError
from modyn.storage.flight.client import PayloadClient
from modyn.storage.flight.protocol import AnswerHead, PayloadRequest, error_from_text, location
from modyn.storage.flight.server import PayloadServer, cut
from modyn.testing.waiting import eventually
from tests.support.running_storage import ONCE, SMALL_SERVING, RunningStorage
from tests.support.watched_reads import WatchedSnapshots

KEYS = np.arange(100)
"""Ten chunks."""


@pytest.fixture
def endpoint(numbers: RunningStorage) -> Endpoint:
    return Endpoint(address=f"unix:{numbers.config.run_dir}/test.sock")


@pytest.fixture
def slow(numbers: RunningStorage) -> Iterator[WatchedSnapshots]:
    """Snapshots of which the fourth chunk and those after it are read once released."""
    slow = WatchedSnapshots(numbers.store, num_free=3)
    yield slow
    slow.released.set()


def ask(client: flight.FlightClient) -> flight.FlightStreamReader:
    """The answer to a request for KEYS."""
    return client.do_get(PayloadRequest("numbers", "raise", KEYS).to_ticket())


def next_head(answer: flight.FlightStreamReader) -> AnswerHead:
    return AnswerHead.from_bytes(answer.read_chunk().app_metadata.to_pybytes())


def test_an_answer_under_way_when_the_server_stops_is_sent_elsewhere(
    slow: WatchedSnapshots, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client first gets the chunks that were read before."""
    server = PayloadServer(endpoint, slow, SMALL_SERVING)
    with flight.FlightClient(location(endpoint)) as client, ThreadPoolExecutor(1) as pool:
        answer = ask(client)
        eventually(lambda: slow.num_reads == 4)
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
def test_a_client_that_leaves_is_not_an_error(
    slow: WatchedSnapshots, endpoint: Endpoint, num_read: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its request gives its place back."""
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


def check_cut(ranges: list[tuple[int, int]], lengths: list[int], max_bytes: int, max_rows: int) -> None:
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(len(lengths)))
    for number, (start, stop) in enumerate(ranges):
        assert stop - start <= max_rows
        assert stop - start <= 1 or sum(lengths[start:stop]) <= max_bytes
        if number and stop - start < max_rows and stop < len(lengths):  # none is smaller than it must be
            assert sum(lengths[start : stop + 1]) > max_bytes


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 100), st.integers(1, 20))
def test_cut_covers_all_in_chunks_of_bounded_size(lengths: list[int], max_bytes: int, max_rows: int) -> None:
    check_cut(cut(np.asarray(lengths, np.int64), len(lengths), max_bytes, max_rows), lengths, max_bytes, max_rows)


@given(st.integers(0, 50), st.integers(0, 60), st.integers(1, 100), st.integers(1, 20))
def test_samples_of_one_length_are_cut_alike(length: int, num_samples: int, max_bytes: int, max_rows: int) -> None:
    check_cut(cut(length, num_samples, max_bytes, max_rows), [length] * num_samples, max_bytes, max_rows)


@pytest.mark.parametrize("lengths", [7, np.empty(0, np.int64)])
def test_no_samples_are_one_empty_chunk(lengths: int) -> None:
    assert cut(lengths, 0, 10, 10) == [(0, 0)]
