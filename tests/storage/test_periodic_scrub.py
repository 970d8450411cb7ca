"""The slow scrub: damage is found while storage runs, shown where users look, and what changes meanwhile is no damage."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import REGISTRY

from modyn.storage.ingest.limits import IngestLimits
from modyn.storage.periodic_scrub import PeriodicScrub, ScrubPace
from modyn.storage.read.scrub import scrub
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.running_storage import RunningStorage, binary_dataset, flip, write_records

FAST = ScrubPace(factor=0.0)
HOUR = 3600.0


def num_damaged() -> float | None:
    return REGISTRY.get_sample_value("modyn_storage_damaged_files")


def test_a_flip_after_the_opening_is_found_logged_once_and_shown(
    numbers: RunningStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = numbers.store.dataset("numbers")
    path = dataset.snapshot().index.segments[0].path
    periodic = PeriodicScrub(numbers.store, HOUR, FAST)
    periodic.scrub_all()
    assert (num_damaged(), numbers.client.problems("numbers")) == (0, [])
    flip(path, 64)
    capsys.readouterr()
    periodic.scrub_all()
    periodic.scrub_all()
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "index_file_damaged" in line]
    (problem,) = numbers.client.problems("numbers")
    assert problem.path == str(path)
    assert "restore the folder of the storage service from a backup" in problem.reason
    assert all(part in line for part in ("error", "numbers", str(path), problem.reason))
    assert (num_damaged(), numbers.client.dataset("numbers").num_problems) == (1, 1)
    flip(path, 64)
    assert numbers.client.scrub_dataset("numbers") == []
    assert (num_damaged(), numbers.client.problems("numbers")) == (0, [])


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_compared(numbers: RunningStorage) -> None:
    folder = numbers.store.dataset("numbers").folder
    numbers.client.delete_samples("numbers", np.asarray([3]))
    (names,) = folder.glob("*.names")
    names.unlink()
    names.mkdir()  # no user may read it, root neither
    flip(folder / "deletions", (folder / "deletions").stat().st_size - 9)
    PeriodicScrub(numbers.store, HOUR, FAST).scrub_all()
    assert [problem.path for problem in numbers.client.problems("numbers")] == [str(names), str(folder / "deletions")]


def test_a_segment_that_is_replaced_during_a_scrub_is_not_a_problem(storage: RunningStorage, tmp_path: Path) -> None:
    storage.client.register_dataset(binary_dataset(tmp_path / "data"))
    dataset = storage.store.dataset("numbers")
    dataset.limits = IngestLimits(merge_run=2)

    def add(number: int) -> None:
        write_records(tmp_path / "data" / f"{number}.bin", range(10), 1000 + number)
        storage.ingest()

    add(0)
    (first,) = dataset.snapshot().index.segments
    begun = scrub(dataset.folder)
    add(1)
    assert not first.path.exists()
    assert [problem for _, problem in begun if problem] == []
    second = scrub(dataset.folder)
    assert next(second)[1] is None
    storage.client.delete_dataset("numbers")
    assert [problem for _, problem in second if problem] == []


def test_a_damaged_segment_is_not_merged_into_one_with_new_checksums(storage: RunningStorage, tmp_path: Path) -> None:
    storage.client.register_dataset(binary_dataset(tmp_path / "data"))
    dataset = storage.store.dataset("numbers")
    dataset.limits = IngestLimits(merge_run=2)
    write_records(tmp_path / "data" / "0.bin", range(10), 1000)
    storage.ingest()
    path = dataset.snapshot().index.segments[0].path
    flip(path, 64)
    write_records(tmp_path / "data" / "1.bin", range(10), 1001)
    assert storage.ingest().finished
    assert [problem.path for problem in storage.client.problems("numbers")] == [str(path)]
    assert storage.client.dataset("numbers").num_samples == 20
    write_records(tmp_path / "data" / "2.bin", range(10), 1002)
    storage.ingest()
    sizes = [segment.info.num_samples for segment in dataset.snapshot().index.segments]
    assert (sizes, path.exists()) == ([10, 20], True), "those after it are merged"
    flip(path, 64)
    assert storage.client.scrub_dataset("numbers") == []
    write_records(tmp_path / "data" / "3.bin", range(20), 1003)
    storage.ingest()
    assert [segment.info.num_samples for segment in dataset.snapshot().index.segments] == [50]


def test_a_segment_that_is_repaired_during_a_round_is_not_a_problem_after_it(numbers: RunningStorage) -> None:
    dataset = numbers.store.dataset("numbers")
    path = dataset.snapshot().index.segments[0].path
    flip(path, 64)
    num_checked = 0

    def mend() -> bool:
        nonlocal num_checked
        num_checked += 1
        if num_checked == 1:
            assert [problem.path for problem in dataset.damaged] == [str(path)]
            flip(path, 64)
            assert numbers.client.scrub_dataset("numbers") == []
        return True

    dataset.scrub(mend)
    assert num_checked > 1
    assert dataset.damaged == []


def test_the_end_of_the_service_ends_a_round_over_many_datasets(numbers: RunningStorage, tmp_path: Path) -> None:
    numbers.client.register_dataset(binary_dataset(tmp_path / "more", "more"))
    for name in ("numbers", "more"):
        (numbers.store.dataset(name).folder / "index.json").write_bytes(b"x")
    periodic = PeriodicScrub(numbers.store, HOUR, FAST)
    periodic.close()
    periodic.scrub_all()
    assert num_damaged() == 0


def test_damage_is_counted_without_a_periodic_scrub(numbers: RunningStorage) -> None:
    flip(numbers.store.dataset("numbers").snapshot().index.segments[0].path, 64)
    assert len(numbers.client.scrub_dataset("numbers")) == 1
    assert num_damaged() == 1


def test_the_end_of_the_service_does_not_wait_for_a_pause(numbers: RunningStorage) -> None:
    dataset = numbers.store.dataset("numbers")
    flip(dataset.snapshot().index.segments[0].path, 64)
    periodic = PeriodicScrub(numbers.store, 0.001, ScrubPace(factor=1e12, longest_s=HOUR))
    periodic.start()
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "scrub")
    eventually(lambda: dataset.damaged)  # what follows is a pause of an hour
    periodic.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
