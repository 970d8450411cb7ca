"""Storage whose payloads come in many short record batches, and further payload servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count

import pytest

from modyn.config.system import SystemConfig
from modyn.config.system_sections.endpoint import Endpoint
from modyn.storage.flight.server import PayloadServer, ServerLimits, Snapshots
from modyn.testing.waiting import PATIENCE_S
from tests.support.running_storage import SMALL_FETCHING, SMALL_SERVING, RunningStorage, start_storage
from tests.support.watched_reads import StartServer, WatchedSnapshots


@pytest.fixture
def storage(quick_config: SystemConfig, stack: ExitStack) -> RunningStorage:
    """A service without datasets."""
    return start_storage(quick_config, stack, SMALL_SERVING, replace(SMALL_FETCHING, retry_s=PATIENCE_S))


@pytest.fixture
def serve(storage: RunningStorage, stack: ExitStack) -> StartServer:
    """Starts a further payload server, of the same datasets and on a socket of its own unless told otherwise; returns its endpoint."""
    numbers = count()

    def start(
        snapshots: Snapshots | None = None, limits: ServerLimits = SMALL_SERVING, endpoint: Endpoint | None = None
    ) -> Endpoint:
        endpoint = endpoint or Endpoint(address=f"unix:{storage.config.run_dir}/test-{next(numbers)}.sock")
        server = PayloadServer(endpoint, snapshots or storage.store, limits)
        stack.callback(server.stop)
        return endpoint.model_copy(update={"address": server.address})

    return start


@pytest.fixture
def hanging(numbers: RunningStorage) -> Iterator[WatchedSnapshots]:
    """Datasets of which `numbers` is on a mount whose server is gone, until the end of the test or until it is released."""
    hanging = WatchedSnapshots(numbers.store, num_free=0)
    yield hanging
    hanging.released.set()
