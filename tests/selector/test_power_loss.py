"""Samples and trigger sets of a run after a power loss at any moment: all acknowledged data, and no wrong data."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import astuple
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.config.system import SystemConfig
from modyn.db.engine import Database, open_database
from modyn.errors import CorruptStateError, NotFoundError
from modyn.records import KeysAndWeights, RunId, RunRegistration, SampleBatch
from modyn.selector.sample_log import GROUP, SampleLog
from modyn.selector.selector import Selector
from modyn.selector.trigger_set import TriggerSet, write_trigger_set
from modyn.selector.window import Selection
from tests.support.committed_rows import RecordedDatabase, losses_with_rows, restore_rows
from tests.support.disk_recorder import recorded_disk
from tests.support.disk_recording import DiskRecording
from tests.support.selecting import nothing_deleted, stream

RUN = RunId("run-1")


def assert_held(log: SampleLog, count: int) -> None:
    for found, expected in zip(astuple(log.read(0, count)), astuple(stream(0, count)), strict=True):
        assert np.array_equal(found, expected)


def check_log(folder: Path, acknowledged: int, attempted: int) -> int:
    """Repair the log as a start does; it holds the stream up to one of the two positions, and takes more. Returns: which of them."""
    log = SampleLog(RUN, folder / "run")
    log.repair()
    held = log.state().num_samples
    assert held in (acknowledged, attempted)
    assert_held(log, held)
    log.append(held, stream(held, held + 9))
    assert_held(log, held + 9)
    return held


def test_each_append_is_there_or_not(tmp_path: Path) -> None:
    ends = [5, 70, GROUP + 10, GROUP + 11]
    with recorded_disk(tmp_path) as disk:
        log = SampleLog(RUN, tmp_path / "run")
        log.create()
        disk.note(0)
        for start, end in zip([0, *ends], ends, strict=False):
            log.append(start, stream(start, end))
            disk.note(end)
    for loss in disk.losses():
        with loss.restored() as folder:
            if loss.notes:
                check_log(folder, loss.notes[-1], [0, *ends, ends[-1]][len(loss.notes)])
            elif (log := SampleLog(RUN, folder / "run")).exists():
                # Of a registration that was cut off. The start of the selector sets it aside.
                with suppress(CorruptStateError):
                    assert log.state().num_samples == 0


def test_samples_that_are_sent_again_after_a_kill_are_durable(tmp_path: Path) -> None:
    """The next process reads data that a killed process wrote but did not sync. It must not treat this data as durable."""
    killed, step = True, 0
    while killed:
        log = SampleLog(RUN, tmp_path / str(step) / "run")
        log.create()
        log.append(0, stream(0, 5))
        with recorded_disk(tmp_path / str(step)) as disk:
            killed = disk.kill_at(step, partial(log.append, 5, stream(5, 9)))
            log.repair()
            log.append(5, stream(5, 9))
            disk.note("informed")
        for loss in disk.losses():
            if loss.notes:
                with loss.restored() as folder:
                    check_log(folder, 9, 9)
        step += 1
    assert step > 4


@pytest.mark.slow
@settings(max_examples=2 * settings().max_examples)
@given(
    sizes=st.lists(st.sampled_from([1, 63, 64, 500, GROUP, 9000]), min_size=1, max_size=4),
    random=st.randoms(use_true_random=False),
)
def test_what_is_left_by_one_power_loss_stands_another(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], random: Random
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log, held = SampleLog(RUN, folder / "run"), 0
    log.create()
    for size in sizes:
        with recorded_disk(folder) as disk:
            log.repair()
            log.append(held, stream(held, held + size))
            disk.note("appended")
        loss = disk.random_loss(random)
        with loss.restored():
            log.repair()
            found = log.state().num_samples
            assert found == held + size or (found == held and not loss.notes)
            assert_held(log, found)
            held = found


KEYS = np.random.default_rng(0).integers(0, 10**12, 900)
"""Too many progressions for a header."""
WEIGHTS = np.linspace(0, 1, len(KEYS), dtype=np.float32)


@pytest.mark.parametrize("by_ranges", [False, True])
def test_a_trigger_set_is_whole_or_not_there(tmp_path: Path, by_ranges: bool) -> None:
    disk_folder, run = tmp_path / "disk", tmp_path / "disk" / "run"
    disk_folder.mkdir()
    log = SampleLog(RUN, run)
    log.create()
    log.append(0, SampleBatch(KEYS, KEYS, KEYS))
    chunks = [KeysAndWeights(KEYS[:500], WEIGHTS[:500]), KeysAndWeights(KEYS[500:], WEIGHTS[500:])]
    if by_ranges:
        chunks = [KeysAndWeights.unweighted(KEYS)]
    selection = Selection(len(KEYS), iter(chunks), ranges=[(0, len(KEYS))] if by_ranges else None)
    with recorded_disk(disk_folder) as disk:
        header = write_trigger_set(run / "triggers" / "000000.set", 300, selection)
        disk.note("written")
    for number, loss in enumerate(disk.losses()):
        with loss.restored(tmp_path / str(number)) as folder:
            try:
                found = TriggerSet(folder / "run" / "triggers" / "000000.set", SampleLog(RUN, folder / "run"))
            except NotFoundError:
                assert not loss.notes
                continue
            assert found.header.keys_sha256 == header.keys_sha256
            read = [part for partition in range(3) for part in found.partition(partition, 200)]
            assert np.array_equal(np.concatenate([part.keys for part in read]), KEYS)
            assert np.array_equal(np.concatenate([part.weights for part in read]), np.ones(len(KEYS)) if by_ranges else WEIGHTS)


def work(selector: Selector, disk: DiskRecording) -> None:
    """Two triggers of a run, with samples before each; then the run is deleted. What has ended is noted."""
    selector.register_run(RunRegistration(RUN, "numbers", {"name": "NewDataStrategy", "maximum_keys_in_memory": 10}, 7))
    disk.note("registered")
    for trigger_id in range(2):
        selector.inform(RUN, 30 * trigger_id, stream(30 * trigger_id, 30 * trigger_id + 30))
        disk.note("informed")
        selector.trigger(RUN, trigger_id, 30 * trigger_id + 25)
        disk.note("triggered")
    selector.delete_run(RUN)
    disk.note("deleted")


def check_run(selector: Selector, folder: Path, steps: int) -> None:
    """Check what a selector holds after a number of steps of `work` and perhaps a part of the next, and that work continues from there."""
    try:
        selector.run(RUN)
    except NotFoundError:
        assert steps in (0, 5, 6)
        assert not list((folder / "runs").iterdir())
        # A deleted run leaves nothing; a registration that was cut off is set aside.
        assert not steps or not (folder / "orphans").exists()
        return
    assert steps < 6
    log = SampleLog(RUN, next((folder / "runs").iterdir()))
    held = log.state().num_samples
    assert held in [(0,), (0, 30), (30,), (30, 60), (60,), (60,)][steps]
    assert_held(log, held)
    for trigger_id in range(2):
        num_samples = 30 * trigger_id + 25
        selector.inform(RUN, held, stream(held, max(held, 60)))
        if trigger_id < (steps - 1) // 2:
            assert selector.trigger_set(RUN, trigger_id).num_keys == num_samples
        selector.trigger(RUN, trigger_id, num_samples)
        keys = [part.keys for first in range(0, num_samples, 10) for part in selector.keys(RUN, trigger_id, first // 10)]
        assert np.array_equal(np.concatenate(keys), stream(0, num_samples).keys)


@pytest.mark.slow
def test_runs_are_what_was_acknowledged(system_config: SystemConfig) -> None:
    database = open_database(system_config, "selector", "modyn.selector.migrations")
    folder = system_config.service_dir("selector")
    folder.mkdir(parents=True)
    with recorded_disk(folder) as disk:
        selector = Selector(RecordedDatabase(database, disk), folder, nothing_deleted)
        selector.recover()
        work(selector, disk)
        selector.close()
    for loss in losses_with_rows(disk):
        with loss.restored():
            steps = restore_rows(database, loss)
            selector = Selector(database, folder, nothing_deleted)
            selector.recover()
            check_run(selector, folder, len(steps))
            selector.close()
    database.close()


@pytest.mark.slow
def test_kills_and_power_losses_one_after_the_other_lose_nothing(system_config: SystemConfig) -> None:
    """Each round brings samples and a trigger: a process is killed at it, the next one completes it, and then the power is lost."""
    database, random = open_database(system_config, "selector", "modyn.selector.migrations"), Random(0)
    folder = system_config.service_dir("selector")
    folder.mkdir(parents=True)
    for number in range(25):
        with recorded_disk(folder) as disk:
            recorded = RecordedDatabase(database, disk)
            disk.kill_at(random.randrange(30), partial(inform_and_trigger, recorded, folder, number))
            inform_and_trigger(recorded, folder, number)
            disk.note("done")
        loss = next(loss for loss in iter(partial(disk.random_loss, random), None) if loss.notes)
        with loss.restored():
            done = restore_rows(database, loss)
            selector = Selector(database, folder, nothing_deleted)
            selector.recover()
            if done:
                assert selector.trigger_set(RUN, number).num_keys == 10 * number + 10
                assert_held(SampleLog(RUN, next((folder / "runs").iterdir())), 10 * number + 10)
            inform_and_trigger(database, folder, number)
    database.close()


def inform_and_trigger(database: Database, folder: Path, number: int) -> None:
    selector = Selector(database, folder, nothing_deleted)
    try:
        selector.recover()
        selector.register_run(RunRegistration(RUN, "numbers", {"name": "NewDataStrategy", "maximum_keys_in_memory": 100}, 7))
        selector.inform(RUN, 10 * number, stream(10 * number, 10 * number + 10))
        for trigger_id in range(number + 1):
            num_samples = 10 * trigger_id + 10
            selector.trigger(RUN, trigger_id, num_samples)
            keys = [part.keys for first in range(0, num_samples, 100) for part in selector.keys(RUN, trigger_id, first // 100)]
            assert np.array_equal(np.concatenate(keys), stream(0, num_samples).keys)
    finally:
        selector.close()
