"""Live inputs without labels: they are in the stream at once, and are trained on when their labels have come by key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.system import SupervisorConfig, SystemConfig
from modyn.errors import CancelledError
from modyn.records import Interval, SampleBatch
from modyn.rpc.retry import CancellationToken
from modyn.storage.client import LateLabelBatch, NewRecord, StorageClient
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.records import NewRun, RunMode, RunOptions
from modyn.supervisor.journal.states import RunState
from modyn.supervisor.queue.queue import RunQueue
from modyn.supervisor.run.executor import RunExecutor
from modyn.supervisor.run.late_labels import LateLabelQueue, among
from modyn.supervisor.services.run_clients import RunClients
from modyn.testing.services import InMemoryServices, pipeline_yaml, wait_until_terminal
from modyn.testing.waiting import eventually

AMOUNT = {"id": "DataAmountTrigger", "num_samples": 4}


def services_in(folder: Path) -> tuple[InMemoryServices, StorageClient]:
    """Services with a dataset of records."""
    folder.mkdir()
    services = InMemoryServices(folder)
    services.storage.add_dataset("train", records=True)
    return services, services.storage.client()


def records(start: int, stop: int, label: int | None = None) -> list[NewRecord]:
    return [NewRecord(f"key-{number}", b"x", label, 1_000 + number) for number in range(start, stop)]


def sets_of(services: InMemoryServices, run_id: Any) -> list[list[int]]:
    run = services.selector.runs.get(run_id)
    return [] if run is None else [found.keys.tolist() for found in run.sets]


@contextmanager
def running(config: SystemConfig, services: InMemoryServices, **sections: Any) -> Iterator[tuple[RunQueue, Any]]:
    with services.supervise(config) as runs:
        yaml = pipeline_yaml(**{"trigger": AMOUNT, **sections})
        run = runs.submit(yaml, "p.yaml", RunOptions(RunMode.PRODUCTION, final_trigger=True))
        yield runs, run.run_id


def test_training_waits_for_labels_and_then_takes_each_once(system_config: SystemConfig, tmp_path: Path) -> None:
    services, client = services_in(tmp_path / "x")
    with running(system_config, services) as (runs, run_id):
        client.append_records("train", records(0, 3, label=1) + records(3, 10))
        eventually(lambda: runs.journal.run(run_id).num_samples == 10)
        assert sets_of(services, run_id) == []
        assert runs.journal.run(run_id).num_waiting == 7
        # No sample comes any more: the label alone makes the trigger fire.
        client.set_labels("train", {"key-8": 2})
        eventually(lambda: sets_of(services, run_id) == [[0, 1, 2, 8]])
        client.set_labels("train", {"key-3": 1, "key-5": 1, "key-4": 1})
        client.append_records("train", records(10, 12, label=1))
        eventually(lambda: len(sets_of(services, run_id)) == 2)
        eventually(lambda: runs.journal.run(run_id).num_samples == 12)
        runs.finish(run_id)
        done = wait_until_terminal(runs, run_id)
    sets = sets_of(services, run_id)
    assert sorted(key for found in sets for key in found) == [0, 1, 2, 3, 4, 5, 8, 10, 11]
    assert len(sets[1]) >= 4
    assert done.state is RunState.FINISHED, done.error
    assert "the labels of 3 of 12 samples have not come" in done.message
    trained = services.selector.runs[run_id].selectable
    assert trained.labels[trained.keys == 8].tolist() == [2]


def test_drift_is_watched_on_samples_without_labels(system_config: SystemConfig, tmp_path: Path) -> None:
    services, client = services_in(tmp_path / "x")
    drift = {
        "id": "DataDriftTrigger",
        "on": "payload",
        "evaluation_interval_data_points": 5,
        "windowing_strategy": {"id": "AmountWindowingStrategy", "amount_ref": 5, "amount_cur": 5},
        "metrics": {
            "m": {"id": "MeanDistanceDriftMetric", "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": 1e9}}
        },
    }
    with running(system_config, services, trigger=drift) as (runs, run_id):
        client.append_records("train", records(0, 5, label=1))
        eventually(lambda: len(sets_of(services, run_id)) == 1)
        client.append_records("train", records(5, 15))
        eventually(lambda: runs.journal.run(run_id).num_samples == 15)
        eventually(lambda: len(runs.journal.checks(run_id)) >= 2)
        assert len(sets_of(services, run_id)) == 1
        runs.finish(run_id)
        wait_until_terminal(runs, run_id)


def late_batch(first: int, keys: list[int], deleted: tuple[int, ...] = ()) -> LateLabelBatch:
    """Sample `key` is of the time 100 + `key`."""
    found = np.array(keys, np.int64)
    return LateLabelBatch(first, SampleBatch(found, found + 100, found), np.isin(found, deleted))


def label_queue(*received: int) -> LateLabelQueue:
    """The queue of a run that begins with key 2 and has received these of the deleted samples."""
    return LateLabelQueue(Interval(102), lambda keys, _: np.isin(keys, received))


def taken(queue: LateLabelQueue, last_key: int) -> tuple[list[int], int] | None:
    found = queue.take(Cursor(last_key=last_key))
    return None if found is None else (found[0].keys.tolist(), found[1])


def test_labels_wait_for_their_samples_and_those_of_no_sample_are_left_out() -> None:
    queue = label_queue()
    assert taken(queue, 0) is None
    queue.add(late_batch(5, [1, 2, 9, 3]))
    queue.add(late_batch(9, [4]))
    assert taken(queue, 4) == ([2], 7), "the label of key 1 is of before the interval; that of key 9 waits, and all after it"
    assert taken(queue, 8) is None
    assert taken(queue, 9) == ([9, 3, 4], 10)


def test_labels_of_samples_that_never_come_hold_up_no_other() -> None:
    queue = label_queue(5)
    queue.add(late_batch(0, [1, 8, 3, 4, 5, 9, 6], deleted=(8, 4, 5)))
    # 1 is of before the interval, 8 and 4 were deleted before the run came to them, 5 after it; 9 comes.
    assert taken(queue, 0) == ([], 2)
    assert taken(queue, 6) == ([3, 5], 5)
    assert taken(queue, 9) == ([9, 6], 7)


@given(stream=st.sets(st.integers(0, 300)), keys=st.lists(st.integers(0, 300), unique=True), most=st.integers(1, 7))
def test_keys_are_found_in_a_stream_in_their_order(stream: set[int], keys: list[int], most: int) -> None:
    held = np.array(sorted(stream), np.int64)

    def read(position: int, limit: int) -> SampleBatch:
        found = held[position : position + min(limit, most)]
        return SampleBatch(found, found, found)

    assert among(np.array(keys, np.int64), read, len(held)).tolist() == [key in stream for key in keys]


def test_a_run_continues_where_all_labels_have_come(system_config: SystemConfig, tmp_path: Path) -> None:
    """The samples that come after its stop bring their labels with them."""
    services, client = services_in(tmp_path / "x")
    with running(system_config, services) as (runs, run_id):
        client.append_records("train", records(0, 4))
        client.set_labels("train", {f"key-{number}": 1 for number in range(4)})
        eventually(lambda: sets_of(services, run_id) == [[0, 1, 2, 3]])
        eventually(lambda: runs.journal.run(run_id).num_waiting == 0)
        runs.stop(run_id)
        wait_until_terminal(runs, run_id)
        client.append_records("train", records(4, 10, label=1))
        runs.resume(run_id)
        eventually(lambda: runs.journal.run(run_id).num_samples == 10)
        runs.finish(run_id)
        done = wait_until_terminal(runs, run_id)
    assert done.state is RunState.FINISHED, done.error
    assert sets_of(services, run_id) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_labels_of_deleted_samples_count_where_the_run_has_received_these(system_config: SystemConfig, tmp_path: Path) -> None:
    services, client = services_in(tmp_path / "x")
    client.append_records("train", records(0, 8))
    client.set_labels("train", {"key-0": 1, "key-1": 1})
    client.delete_samples("train", np.array([0, 1]))
    with running(system_config, services) as (runs, run_id):
        eventually(lambda: runs.journal.run(run_id).num_samples == 6)
        client.delete_samples("train", np.array([5]))
        client.set_labels("train", {"key-7": 1, "key-6": 1, "key-2": 1})
        eventually(lambda: runs.journal.run(run_id).num_waiting == 3)
        assert sets_of(services, run_id) == []
        client.set_labels("train", {"key-3": 1})
        eventually(lambda: sets_of(services, run_id) == [[7, 6, 2, 3]])
        runs.finish(run_id)
        done = wait_until_terminal(runs, run_id)
    assert "the labels of 2 of 6 samples have not come" in done.message


def test_a_run_that_has_received_labels_which_storage_lost_fails_by_name(system_config: SystemConfig, tmp_path: Path) -> None:
    """After an older backup of storage was restored: it would wait for ever for the next label."""
    services, client = services_in(tmp_path / "x")
    with running(system_config, services) as (runs, run_id):
        client.append_records("train", records(0, 10))
        client.set_labels("train", {"key-8": 2, "key-3": 1})
        eventually(lambda: runs.journal.run(run_id).num_waiting == 8)
        runs.stop(run_id)
        wait_until_terminal(runs, run_id)
        services.storage.datasets["train"].late.popitem()
        runs.resume(run_id)
        done = wait_until_terminal(runs, run_id)
    assert done.state is RunState.FAILED
    assert "dataset 'train' has 1 labels that came after their samples, and 2 were received of it: some are lost" in done.error


class Killed(BaseException):
    """A kill -9."""


@pytest.mark.parametrize("at", [3, 8, 13, *(pytest.param(at, marks=pytest.mark.slow) for at in range(4, 40, 3))])
def test_killed_anywhere_each_label_is_trained_on_once(system_config: SystemConfig, tmp_path: Path, at: int) -> None:
    """The supervisor is killed after a call of the selector has been answered."""
    services, client = services_in(tmp_path / "x")
    client.append_records("train", records(0, 4, label=1) + records(4, 30))
    for start in range(4, 28, 3):
        client.set_labels("train", {f"key-{number}": number % 3 for number in (start + 2, start, start + 1)})
    with services.supervise(system_config) as runs:
        journal = runs.journal
        options = RunOptions(RunMode.PRODUCTION, final_trigger=True)
        new = NewRun(options, "Test", pipeline_yaml(trigger=AMOUNT), "p.yaml", {}, selection_seed=7)
        run_id = journal.create(new).run_id

        def drive(strike: int | None) -> None:
            """Execute the run until it has all labels. Args: strike: number of the selector's call after which it is killed; None: none."""
            num_calls, finishing = count(1), CancellationToken()

            class Struck:
                def __getattr__(self, name: str) -> Any:
                    def call(*arguments: Any, **options: Any) -> Any:
                        result = getattr(services.selector, name)(*arguments, **options)
                        if next(num_calls) == strike:
                            raise Killed
                        if name == "inform_labels" and result == 28:
                            finishing.cancel(CancelledError("the run was asked to finish"))
                        return result

                    return call

            clients = services.clients()
            fields = {**{name: getattr(clients, name) for name in RunClients.__dataclass_fields__}, "selector": Struck()}
            attempt, config = journal.claim(run_id), SupervisorConfig(stream_batch_size=6)
            snapshot = journal.snapshot(run_id)
            executor = RunExecutor(snapshot, attempt, RunClients(**fields), EventHub(), config, CancellationToken(), finishing)
            attempt.end(RunState.FINISHED, message=executor.execute())

        with suppress(Killed):
            drive(at)
        if journal.run(run_id).state is not RunState.FINISHED:
            journal.become(run_id, RunState.INTERRUPTED)
            journal.submit_again(run_id)
            drive(None)
        assert "the labels of 2 of 30 samples have not come" in journal.run(run_id).message
        positions = [(trigger.position, trigger.num_waiting) for trigger in journal.triggers(run_id)]
    sets, run = sets_of(services, run_id), services.selector.runs[run_id]
    assert sorted(key for found in sets for key in found) == list(range(28))
    assert [position - waiting for position, waiting in positions] == run.boundaries
    expected = [1] * 4 + [number % 3 for number in range(4, 28)]
    assert [expected[key] for key in run.selectable.keys.tolist()] == run.selectable.labels.tolist()
    assert [request.trigger_id for request in services.trainer_server.requests] == list(range(len(sets)))
