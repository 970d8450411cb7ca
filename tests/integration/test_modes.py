"""The evaluated pipeline equals the deployed pipeline: live data and its replay lead to the same decisions."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import numpy as np

from modyn.client import Client
from modyn.supervisor.client import RunMode, RunState
from modyn.testing.stack import (
    DAY,
    NUM_CLASSES,
    NUM_FEATURES,
    RECORD,
    RunningStack,
    tiny_dataset_config,
    tiny_evaluation,
    tiny_pipeline,
    tiny_training,
)
from modyn.testing.waiting import eventually
from tests.support.comparison import RunOutcome, outcome

FILES = [
    # (time, samples): an empty file, equal times in files that come one after the other, a gap in time, single samples
    (0, 30),
    (DAY // 2, 1),
    (DAY // 2, 45),
    (DAY - 1, 0),
    (DAY - 1, 20),
    (DAY, 7),
    (DAY, 64),
    (9 * DAY, 1),
    (9 * DAY + 5, 80),
    (9 * DAY + 5, 33),
]
NUM_SAMPLES = sum(count for _, count in FILES)

TRIGGERS = {
    "amount": {"id": "DataAmountTrigger", "num_samples": 40},
    "time": {"id": "TimeTrigger", "every": "1d", "start_timestamp": 0},
}


def pipeline(dataset: str, trigger: str) -> str:
    return tiny_pipeline(
        dataset,
        pipeline={"name": f"{dataset}-{trigger}"},
        trigger=TRIGGERS[trigger],
        selection_strategy={
            "name": "CoresetStrategy",
            "maximum_keys_in_memory": 30,
            "tail_triggers": 1,
            "presampling_config": {"strategy": "Random", "ratio": 50},
        },
        training=tiny_training(seed=5, shuffle=True),
        evaluation=tiny_evaluation(dataset, days=1),
    )


def write_file(folder: Path, number: int, when: int, count: int) -> None:
    """Appears complete, as files that are moved into place do."""
    chance = np.random.default_rng(number)
    records = np.zeros(count, RECORD)
    records["label"] = chance.integers(0, NUM_CLASSES, count)
    records["features"] = chance.normal(0, 1, (count, NUM_FEATURES))
    path = folder.parent / f"{number:03d}.bin.part"
    path.write_bytes(records.tobytes())
    os.utime(path, (when, when))
    path.rename(folder / f"{number:03d}.bin")


def start(client: Client, folder: Path, text: str, mode: RunMode) -> str:
    path = folder / "pipeline.yaml"
    path.write_text(text)
    return client.run(path, mode).run_id


def without_state(found: RunOutcome) -> tuple[object, ...]:
    """A production run is ended by its user, and evaluates nothing that only the end of the data makes due."""
    return found.triggers, found.num_samples, found.samples_trained, found.evaluations


def test_production_decides_as_experiment_does(running_stack: RunningStack, tmp_path: Path) -> None:
    live, archive = tmp_path / "live", tmp_path / "archive"
    for folder in (live, archive):
        folder.mkdir()
    with running_stack.client() as client:
        client.register_dataset(tiny_dataset_config("live", live, watch=True))
        runs = {name: start(client, tmp_path, pipeline("live", name), RunMode.PRODUCTION) for name in TRIGGERS}
        arrived = 0
        for number, (when, count) in enumerate(FILES):
            write_file(live, number, when, count)
            arrived += count
            # Every second file waits until the one before is indexed: some come alone, some by two.
            if number % 2:
                eventually(partial(has_indexed, client, "live", arrived), f"{arrived} samples were to be indexed")
        found = {}
        for name, run_id in runs.items():
            eventually(partial(is_waiting_after, client, run_id, NUM_SAMPLES), f"run {run_id} was to see everything")
            eventually(partial(has_evaluated, client, run_id), f"run {run_id} was to evaluate")
            client.stop(run_id)
            assert client.wait(run_id).state is RunState.STOPPED
            found[name] = outcome(client, run_id)
        assert [t.position for t in found["amount"].triggers] == list(range(40, NUM_SAMPLES + 1, 40))
        # A gap in time fires once; the newest interval is still open.
        assert [t.position for t in found["time"].triggers] == [96, 167]
        assert all(t.weights_sha256 for name in found for t in found[name].triggers)

        # The same files at once, in a dataset of their own: other batches, other time of arrival, same order.
        for number, (when, count) in enumerate(FILES):
            write_file(archive, number, when, count)
        client.register_dataset(tiny_dataset_config("archive", archive))
        assert client.ingest("archive").num_samples == NUM_SAMPLES
        for name in TRIGGERS:
            of_live = client.wait(start(client, tmp_path, pipeline("live", name), RunMode.EXPERIMENT))
            assert of_live.state is RunState.FINISHED, of_live.error
            assert without_state(outcome(client, of_live.run_id)) == without_state(found[name])
            of_archive = client.wait(start(client, tmp_path, pipeline("archive", name), RunMode.EXPERIMENT))
            assert of_archive.state is RunState.FINISHED, of_archive.error
            assert outcome(client, of_archive.run_id).triggers == found[name].triggers


def has_indexed(client: Client, dataset: str, num_samples: int) -> bool:
    return client.dataset(dataset).num_samples == num_samples


def is_waiting_after(client: Client, run_id: str, num_samples: int) -> bool:
    run = client.show(run_id)
    return run.num_samples == num_samples and run.state is RunState.WAITING_FOR_DATA


def has_evaluated(client: Client, run_id: str) -> bool:
    return len(client.evaluations(run_id)) == len(client.supervisor.triggers(run_id))


def test_late_samples_are_trained_on_once_in_the_order_of_arrival(running_stack: RunningStack, tmp_path: Path) -> None:
    """A production run meets them when they come, a replay in the order of their times: neither loses or doubles one."""
    folder = tmp_path / "late"
    folder.mkdir()
    text = tiny_pipeline("late", trigger={"id": "DataAmountTrigger", "num_samples": 10})
    with running_stack.client() as client:
        client.register_dataset(tiny_dataset_config("late", folder, watch=True))
        run_id = start(client, tmp_path, text, RunMode.PRODUCTION)
        for number, day in enumerate([5, 1, 5, 2]):
            write_file(folder, number, day * DAY, 10)
            eventually(partial(is_waiting_after, client, run_id, 10 * (number + 1)), f"file {number} was to be seen")
        client.stop(run_id)
        client.wait(run_id)
        replay = client.wait(start(client, tmp_path, text, RunMode.EXPERIMENT))
        arrived, replayed = outcome(client, run_id), outcome(client, replay.run_id)
    assert [t.fired_at_timestamp // DAY for t in arrived.triggers] == [5, 5, 5, 5]
    assert [t.first_timestamp // DAY for t in arrived.triggers] == [5, 1, 5, 2]
    assert [t.first_timestamp // DAY for t in replayed.triggers] == [1, 2, 5, 5]
    assert {t.keys_checksum for t in arrived.triggers} == {t.keys_checksum for t in replayed.triggers}
    assert len({t.keys_checksum for t in arrived.triggers}) == 4


def test_a_production_run_that_is_resumed_continues_after_what_it_has_seen(running_stack: RunningStack, tmp_path: Path) -> None:
    """Files arrive while it is stopped, while it resumes and afterwards."""
    folder = tmp_path / "paused"
    folder.mkdir()
    text = tiny_pipeline("paused", trigger={"id": "DataAmountTrigger", "num_samples": 20}, training=tiny_training(seed=9))
    with running_stack.client() as client:
        client.register_dataset(tiny_dataset_config("paused", folder, watch=True))
        run_id = start(client, tmp_path, text, RunMode.PRODUCTION)
        write_file(folder, 0, 1 * DAY, 50)
        eventually(lambda: client.show(run_id).num_triggers == 2)
        client.stop(run_id)
        client.wait(run_id)
        write_file(folder, 1, 2 * DAY, 25)
        writer = threading.Thread(target=write_file, args=(folder, 2, 3 * DAY, 30))
        writer.start()
        client.resume(run_id)
        writer.join()
        write_file(folder, 3, 4 * DAY, 15)
        eventually(partial(is_waiting_after, client, run_id, 120))
        client.stop(run_id)
        client.wait(run_id)
        replay = client.wait(start(client, tmp_path, text, RunMode.EXPERIMENT))
        assert outcome(client, run_id).triggers == outcome(client, replay.run_id).triggers
