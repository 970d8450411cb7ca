"""Endpoints that go away under a fetch: it goes on with those that are left, or ends; it never hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from modyn.config.system import Endpoint
from modyn.errors import CancelledError, UnavailableError
from modyn.storage.flight.client import Fetch, PayloadClient, Request
from modyn.storage.flight.protocol import AnswerHead, Kind, Question
from modyn.storage.flight.streams import Stream
from modyn.storage.model.samples import Payloads
from modyn.testing.running_storage import RunningStorage
from modyn.testing.waiting import PATIENCE_S, eventually


class CountedCondition(threading.Condition):
    """Knows how many wait on it."""

    num_waiting = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.num_waiting += 1
        try:
            return super().wait(timeout)
        finally:
            self.num_waiting -= 1


def answer(request: Request) -> tuple[AnswerHead, Payloads]:
    """To the whole of it: 8 bytes a key."""
    count = len(request.keys)
    payloads = Payloads(request.keys, request.keys, np.zeros(8 * count, np.uint8), 8 * np.arange(count + 1), 8)
    return AnswerHead(Kind.SAMPLES, request.number, count, 8), payloads


def asked_by(fetch: Fetch, stream: Stream) -> Request:
    request = fetch.ask(stream)
    assert request is not None
    return request


@pytest.fixture
def nobody() -> Iterator[PayloadClient]:
    """A client whose buffer is full with one answer. Its streams are not started: the test is what they are."""
    endpoints = [Endpoint(address=f"unix:/nowhere/{number}.sock") for number in range(2)]
    with PayloadClient(endpoints, streams=2, buffer_bytes=80) as client:
        yield client


def test_a_request_that_comes_back_never_waits_behind_others(nobody: PayloadClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer waits for the one that comes back, and the others for room that only the consumer makes."""
    monkeypatch.setattr("modyn.storage.flight.client.FIRST_KEYS", 10)
    monkeypatch.setattr("modyn.storage.flight.client.MAX_KEYS", 10)
    fetch = Fetch(nobody, Question("numbers", "raise"), np.arange(60), 0)
    changed = fetch._changed = CountedCondition()
    slow, fast = (Stream(fetch, nobody.connections, endpoint) for endpoint in range(2))
    slow.is_asking = fast.is_asking = True
    head, second, third = asked_by(fetch, slow), asked_by(fetch, fast), asked_by(fetch, fast)
    fetch.deliver(fast, *answer(second))
    with ThreadPoolExecutor(2) as pool:
        full = pool.submit(fetch.deliver, fast, *answer(third))
        fetch.broke(slow, UnavailableError("killed"))
        asking = pool.submit(fetch.ask, fast)
        eventually(lambda: changed.num_waiting == 2 or full.done() or asking.done())
        assert not full.done()
        assert not asking.done(), "it would be answered behind what waits for room"
        assert fetch.ask(slow) is head
        fetch.deliver(slow, *answer(head))
        pool.submit(fetch.ask, slow)

        arrived = [fetch.next(), fetch.next()]
        full.result(PATIENCE_S)
        arrived.append(fetch.next())
        assert [piece.keys.tolist() for piece in arrived if piece is not None] == np.arange(30).reshape(3, 10).tolist()
        following = asking.result(PATIENCE_S)
        assert following is not None
        assert following.number > third.number
        fetch.end(None)


@pytest.mark.parametrize("streams", [1, 3])
def test_endpoints_that_take_long_to_fail_are_given_up_too(
    numbers: RunningStorage, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the last has failed, the first may be tried again at once: there is never a pause."""
    monkeypatch.setattr("modyn.storage.flight.connections.Connections.pause_s", lambda _: 0.0)
    endpoints = [Endpoint(address=f"unix:{numbers.config.run_dir}/none-{number}.sock") for number in range(2)]
    with (
        PayloadClient(endpoints, streams, retry_s=0.3) as client,
        pytest.raises(UnavailableError, match="cannot be reached"),
    ):
        list(client.fetch("numbers", np.arange(1000), deadline_s=PATIENCE_S))


@pytest.mark.parametrize("retry_s", [0.0, 0.3])
def test_no_endpoint_is_given_up_untried(numbers: RunningStorage, retry_s: float) -> None:
    away = [Endpoint(address=f"unix:{numbers.config.run_dir}/none-{number}.sock") for number in range(3)]
    with PayloadClient([*away, numbers.config.endpoint("flight")], retry_s=retry_s) as client:
        for _ in range(4):  # each begins with another
            assert sum(map(len, client.fetch("numbers", np.arange(1000)))) == 1000


def test_a_client_that_is_closed_cancels_all_and_begins_nothing(numbers: RunningStorage) -> None:
    """Whatever other threads ask meanwhile."""
    for _ in range(5):
        client = PayloadClient(numbers.config.endpoint("flight"))
        begun = threading.Semaphore(0)

        def fetch(client: PayloadClient, begun: threading.Semaphore) -> None:
            with pytest.raises(CancelledError, match="client was closed"):
                while True:
                    fetched = [client.fetch("numbers", np.arange(10)) for _ in range(50)]
                    next(fetched[0])
                    begun.release()

        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(fetch, client, begun) for _ in range(3)]
            assert begun.acquire(timeout=PATIENCE_S)
            client.close()
            for each in running:
                each.result(PATIENCE_S)
        with pytest.raises(CancelledError, match="client was closed"):
            client.fetch("numbers", np.arange(10))
