"""Endpoints that go away under a fetch: it continues with those that are left, or ends; it never hangs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from pyarrow import flight

from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import CancelledError, UnavailableError
from modyn.storage.flight.client import PayloadClient
from modyn.storage.flight.endpoints import EndpointPool
from modyn.storage.flight.protocol import location
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.running_storage import SMALL_FETCHING, RunningStorage


class Breaking(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """A server whose calls break once it is `released`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.asked, self.released = threading.Event(), threading.Event()
        super().__init__(location(endpoint))

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        self.asked.set()
        self.released.wait(PATIENCE_S)
        raise flight.FlightUnavailableError("it was killed")


def test_a_request_that_breaks_never_waits_for_others(numbers: RunningStorage) -> None:
    """The consumer waits for the request that breaks, and the others for room that only the consumer makes."""
    away = Endpoint(address=f"unix:{numbers.config.run_dir}/breaking.sock")
    limits = replace(SMALL_FETCHING, buffer_bytes=80, avoid_s=3600.0)
    with Breaking(away) as server, PayloadClient([away, numbers.config.endpoint("flight")], limits=limits) as client:
        client._pool._turns = count(0)  # The first thread of the first fetch begins with the endpoint that breaks.
        fetched = client.fetch("numbers", np.arange(1000))
        with ThreadPoolExecutor(1) as pool:
            head = pool.submit(next, fetched)
            assert server.asked.wait(PATIENCE_S)
            eventually(lambda: fetched._fetch._buffered == 80)
            server.released.set()
            assert head.result(PATIENCE_S).keys.tolist() == list(range(10))
        assert [key for payloads in fetched for key in payloads.keys.tolist()] == list(range(10, 1000))


@pytest.mark.parametrize("streams", [1, 3])
def test_endpoints_that_take_long_to_fail_are_given_up_too(
    numbers: RunningStorage, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may be tried again at once when the last has failed: there is never a pause."""
    monkeypatch.setattr(EndpointPool, "pause_s", lambda _: 0.0)
    endpoints = [Endpoint(address=f"unix:{numbers.config.run_dir}/none-{number}.sock") for number in range(2)]
    with (
        PayloadClient(endpoints, streams, replace(SMALL_FETCHING, retry_s=0.3)) as client,
        pytest.raises(UnavailableError, match="cannot be reached"),
    ):
        list(client.fetch("numbers", np.arange(1000), deadline_s=PATIENCE_S))


@pytest.mark.parametrize("retry_s", [0.0, 0.3])
def test_no_endpoint_is_given_up_untried(numbers: RunningStorage, retry_s: float) -> None:
    away = [Endpoint(address=f"unix:{numbers.config.run_dir}/none-{number}.sock") for number in range(3)]
    with PayloadClient([*away, numbers.config.endpoint("flight")], limits=replace(SMALL_FETCHING, retry_s=retry_s)) as client:
        for _ in range(4):  # each begins with another
            assert sum(map(len, client.fetch("numbers", np.arange(1000)))) == 1000


def test_a_client_that_is_closed_cancels_all_and_begins_nothing(numbers: RunningStorage) -> None:
    """This holds for any concurrent requests of other threads."""
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
