"""What a run was informed of, and its trigger sets, after a power loss at any moment: all of what was acknowledged, and nothing that is wrong."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.errors import CorruptStateError, NotFoundError
from modyn.records import KeysAndWeights, RunId, SampleBatch
from modyn.selector.sample_log import GROUP, SampleLog
from modyn.selector.trigger_set import TriggerSet, write_trigger_set
from modyn.selector.window import Selection
from modyn.testing.disk_recorder import recorded_disk

RUN = RunId("run-1")


def stream(start: int, end: int) -> SampleBatch:
    positions = np.arange(start, end)
    return SampleBatch(positions * 3 + 1, positions - 50, positions % 10)


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


@pytest.mark.slow
@settings(max_examples=100)
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
