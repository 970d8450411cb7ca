"""A selection that takes long blocks nothing but the next one of its run, and ends when its caller does not want it any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from modyn._core import KeySet
from modyn.config.system import SystemConfig
from modyn.db.engine import Database
from modyn.errors import CancelledError, NotFoundError
from modyn.records import RunId, RunRegistration, SampleBatch
from modyn.rpc.retry import CancellationToken
from modyn.selector.selector import Selector
from modyn.selector.window import NO_KEYS
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.selecting import serving

RUN, OTHER = RunId("run-1"), RunId("run-2")


def stream(start: int, end: int) -> SampleBatch:
    positions = np.arange(start, end)
    return SampleBatch(positions, positions, positions % 10)


def section(backend: str = "local") -> dict[str, Any]:
    return {"name": "NewDataStrategy", "maximum_keys_in_memory": 10, "storage_backend": backend, "tail_triggers": 0}


class Gate:
    """Deletions that are known only once `opened` is set, for the dataset `slow`."""

    def __init__(self) -> None:
        self.asked, self.opened = threading.Event(), threading.Event()

    def __call__(self, dataset: str, identity: str) -> KeySet:
        if dataset == "slow":
            self.asked.set()
            assert self.opened.wait(PATIENCE_S)
        return NO_KEYS


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def selector(database: Database, tmp_path: Path, gate: Gate) -> Iterator[Selector]:
    made = Selector(database, tmp_path / "selector", gate)
    yield made
    made.close()


def test_everything_else_continues_while_a_trigger_set_is_selected(selector: Selector, database: Database, gate: Gate) -> None:
    """Informing of the run itself, and triggers and copied rows of others; a second call for the trigger gets the same set."""

    def num_rows(number: int) -> int:
        with database.session() as session:
            return int(session.scalar(text(f"SELECT count(*) FROM selector.samples_{number}")) or 0)

    for run_id, dataset in ((RUN, "slow"), (OTHER, "d")):
        selector.register_run(RunRegistration(run_id, dataset, section("database"), 1))
        selector.inform(run_id, 0, stream(0, 20))
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(selector.trigger, RUN, 0, 20) for _ in range(2)]
        assert gate.asked.wait(PATIENCE_S)
        assert selector.inform(RUN, 20, stream(20, 50)) == 50
        eventually(lambda: num_rows(1) == 50, lambda: f"{num_rows(1)} of 50 samples of the run that selects are copied")
        assert selector.inform(OTHER, 20, stream(20, 50)) == 50
        eventually(lambda: num_rows(2) == 50, lambda: f"{num_rows(2)} of 50 samples of the other run are copied")
        assert selector.trigger(OTHER, 0, 50).num_keys == 50
        assert not any(call.done() for call in calls)
        gate.opened.set()
        first, second = (call.result(PATIENCE_S) for call in calls)
    assert first == second
    assert first.num_keys == 20


def test_a_cancelled_selection_leaves_nothing_and_can_be_made_again(selector: Selector, gate: Gate) -> None:
    selector.register_run(RunRegistration(RUN, "slow", section(), 1))
    selector.inform(RUN, 0, stream(0, 20))
    selecting, waiting = CancellationToken(), CancellationToken()
    with ThreadPoolExecutor(2) as pool:
        call = pool.submit(selector.trigger, RUN, 0, 20, selecting)
        assert gate.asked.wait(PATIENCE_S)
        waiter = pool.submit(selector.trigger, RUN, 0, 20, waiting)
        waiting.cancel(CancelledError("waits no more"))
        with pytest.raises(CancelledError, match="waits no more"):
            waiter.result(PATIENCE_S)
        selecting.cancel(CancelledError("wanted no more"))
        gate.opened.set()
        with pytest.raises(CancelledError, match="wanted no more"):
            call.result(PATIENCE_S)
    with pytest.raises(NotFoundError, match="no trigger 0"):
        selector.trigger_set(RUN, 0)
    assert selector.trigger(RUN, 0, 20).num_keys == 20


def test_a_run_that_is_deleted_ends_its_selection(selector: Selector, gate: Gate, tmp_path: Path) -> None:
    selector.register_run(RunRegistration(RUN, "slow", section(), 1))
    selector.inform(RUN, 0, stream(0, 20))
    selecting = CancellationToken()
    with ThreadPoolExecutor(2) as pool:
        call = pool.submit(selector.trigger, RUN, 0, 20, selecting)
        assert gate.asked.wait(PATIENCE_S)
        deletion = pool.submit(selector.delete_run, RUN)
        eventually(lambda: selecting.cause is not None, "the deletion to cancel the selection")
        gate.opened.set()
        deletion.result(PATIENCE_S)
        with pytest.raises(NotFoundError):
            call.result(PATIENCE_S)
    assert list((tmp_path / "selector" / "runs").iterdir()) == []


def test_a_caller_that_cancels_ends_the_selection_at_the_service(system_config: SystemConfig) -> None:
    storage = FakeStorage()
    storage.add_dataset("d")
    with serving(system_config, storage) as client, ThreadPoolExecutor(1) as pool:
        client.register_run(RunRegistration(RUN, "d", section(), 1))
        client.inform(RUN, 0, stream(0, 20))
        token = CancellationToken()
        with storage.arrived:  # Storage does not answer, so that the selection does not end by itself.
            call = pool.submit(client.trigger, RUN, 0, 20, token)
            token.cancel(CancelledError("the run was stopped"))
            with pytest.raises(CancelledError, match="the run was stopped"):
                call.result(PATIENCE_S)
        assert client.trigger(RUN, 0, 20).num_keys == 20
