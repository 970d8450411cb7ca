"""Watched folders: new files arrive at waiting streams by themselves, each sample once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from modyn.config.system import StorageConfig, SystemConfig
from modyn.errors import NotFoundError, UnavailableError
from modyn.storage.files.file_system import Listing, Names, Roots
from modyn.storage.files.local import LocalFiles
from modyn.storage.ingest.ingestion import ingest
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.watcher import Watcher, pause_s
from modyn.storage.model.file_table import FileTable
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.running_storage import RunningStorage, binary_dataset, start_storage, write_records


def wait_until(storage: RunningStorage, num_samples: int) -> None:
    eventually(
        lambda: storage.client.dataset("numbers").num_samples >= num_samples,
        lambda: f"{storage.client.dataset('numbers')} {storage.client.problems('numbers')}",
    )


def test_new_files_are_pushed_without_being_asked_for(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write_records(folder / "old.bin", [0], 1000)
    storage.client.register_dataset(binary_dataset(folder, watch=True))
    new = storage.client.new_samples("numbers", 0, 100)
    assert next(new).keys.tolist() == [0]
    write_records(folder / "a.bin", [1, 2], 1000)
    assert next(new).keys.tolist() == [1, 2]
    write_records(folder / "a.bin", [3], 1000, mode="ab")
    assert next(new).keys.tolist() == [3]
    new.cancel()
    assert storage.data_of(range(4)) == [0, 1, 2, 3]


def test_files_of_one_time_in_several_polls_are_all_seen_once(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    storage.client.register_dataset(binary_dataset(folder, watch=True))
    new = storage.client.new_samples("numbers", 0, 100)
    got: list[int] = []
    for i in range(6):
        write_records(folder / f"{9 - i}.bin", [i], 1000)
        got += next(new).keys.tolist()
        time.sleep(0.12)  # A poll or two that find nothing must not bring the newest samples again.
    new.cancel()
    assert got == list(range(6))
    assert storage.data_of(range(6)) == list(range(6))
    assert storage.client.dataset("numbers").num_samples == 6


def test_a_folder_in_which_nothing_happens_costs_the_database_nothing(
    make_config: Callable[..., SystemConfig], stack: ExitStack, tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    write_records(folder / "a.bin", [1], 1000)
    config = make_config(storage={"poll_interval_s": 3600, "settle_s": 0.05})  # the looks are made here
    storage = start_storage(config, stack)
    storage.client.register_dataset(binary_dataset(folder, watch=True))
    dataset = storage.store.dataset("numbers")

    def statements_of_looks() -> int:
        statements.clear()
        for _ in range(5):
            ingest(dataset, storage.store._roots, 1, patient=False)
        return len(statements)

    statements: list[str] = []
    event.listen(dataset.catalogue.database.engine, "before_cursor_execute", lambda *values: statements.append(values[2]))
    eventually(lambda: statements_of_looks() == 0 and storage.client.dataset("numbers").num_samples == 1)
    write_records(folder / "b.bin", [2], 1000)
    eventually(lambda: statements_of_looks() == 0 and storage.client.dataset("numbers").num_samples == 2)


def test_what_is_written_below_a_folder_that_is_touched_then_is_indexed_once(
    make_config: Callable[..., SystemConfig], stack: ExitStack, tmp_path: Path
) -> None:
    """`cp -a`, `rsync -a` and `tar x` do this: the kernel reports both the file and its folder."""
    folder = tmp_path / "d" / "a"
    write_records(folder / "x.bin", [1], 1000)
    storage = start_storage(make_config(storage={"poll_interval_s": 3600, "settle_s": 0.0}), stack)
    storage.client.register_dataset(binary_dataset(tmp_path / "d", watch=True))
    wait_until(storage, 1)
    storage.ingest()  # the watcher's first look is over then
    write_records(folder / "x.bin", [2], 2000, mode="ab")
    write_records(folder / "y.bin", [3], 3000)
    os.utime(folder)
    ingest(storage.store.dataset("numbers"), storage.store._roots, 1, patient=False)
    assert storage.data_of(range(storage.client.dataset("numbers").next_key)) == [1, 2, 3]


def test_a_listing_that_names_a_file_twice_is_refused(storage: RunningStorage, tmp_path: Path) -> None:
    class Repeating(LocalFiles):
        def list_files(self, names: Names, roots: Roots, known: FileTable, *, complete: bool = True) -> Listing:
            listing = super().list_files(names, roots, known, complete=complete)
            return replace(listing, files=listing.files.merged_with(listing.files))

    write_records(tmp_path / "d" / "x.bin", [1], 1000)
    storage.client.register_dataset(binary_dataset(tmp_path / "d"))
    dataset = storage.store.dataset("numbers")
    dataset.filesystem = Repeating(str(tmp_path / "d"))
    with pytest.raises(AssertionError, match=f"the listing of {tmp_path / 'd'} names a file more than once, x.bin"):
        ingest(dataset, storage.store._roots, 1)
    assert storage.client.dataset("numbers").next_key == 0


def test_a_watcher_outlives_a_folder_that_goes_away(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    storage.client.register_dataset(binary_dataset(folder, watch=True))
    folder.rmdir()
    eventually(lambda: storage.client.problems("numbers"))
    write_records(folder / "a.bin", [5], 1000)
    wait_until(storage, 1)
    assert storage.client.problems("numbers") == []


def test_a_watched_dataset_is_watched_again_after_a_restart(quick_config: SystemConfig, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with ExitStack() as stack:
        start_storage(quick_config, stack).client.register_dataset(binary_dataset(folder, watch=True))
    write_records(folder / "a.bin", [5], 1000)
    with ExitStack() as stack:
        wait_until(start_storage(quick_config, stack), 1)


def test_asking_while_a_watcher_works_indexes_once(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    storage.client.register_dataset(binary_dataset(folder, watch=True))
    for i in range(10):
        write_records(folder / f"{i}.bin", [i], 1000 + i)
        storage.ingest()
    assert storage.client.dataset("numbers").next_key == 10
    assert storage.data_of(range(10)) == list(range(10))


def test_a_growing_file_is_left_alone_until_it_rests(quick_config: SystemConfig, stack: ExitStack, tmp_path: Path) -> None:
    """The time that it has to rest is far away while it grows, and over afterwards, however slow the writer is."""
    config = quick_config.model_copy(update={"storage": StorageConfig(settle_s=3600, poll_interval_s=0.02)})
    storage = start_storage(config, stack)
    folder = tmp_path / "d"
    storage.client.register_dataset(binary_dataset(folder, watch=True))
    stability = storage.store.dataset("numbers").stability
    with (folder / "a.bin").open("wb", buffering=0) as file:
        for _ in range(20):
            file.write(b"x" * 15)
            stability.num_unstable = 0
            eventually(lambda: stability.num_unstable)
            file.write(b"x")
        assert storage.client.dataset("numbers").num_samples == 0
    stability.settle_s = 0.05
    wait_until(storage, 20)
    assert storage.client.problems("numbers") == []


@pytest.mark.parametrize("error", [UnavailableError("PostgreSQL is gone"), ZeroDivisionError("a bug")])
def test_a_look_that_fails_is_tried_again(storage: RunningStorage, tmp_path: Path, error: Exception) -> None:
    storage.client.register_dataset(binary_dataset(tmp_path / "d"))
    looked, times = threading.Event(), [0]

    def look(_: OpenDataset) -> None:
        times[0] += 1
        if times[0] < 3:
            raise error
        looked.set()

    watcher = Watcher(storage.store.dataset("numbers"), look, 0.01)
    try:
        assert looked.wait(PATIENCE_S)
    finally:
        watcher.stop()


def test_the_watcher_of_a_deleted_dataset_ends(storage: RunningStorage, tmp_path: Path) -> None:
    storage.client.register_dataset(binary_dataset(tmp_path / "d", watch=True))
    storage.client.delete_dataset("numbers")
    assert not [thread for thread in threading.enumerate() if thread.name == "watch-numbers"]
    with pytest.raises(NotFoundError):
        storage.client.dataset("numbers")


def test_long_looks_are_taken_less_often() -> None:
    assert pause_s(1.0, 0.1) == 1.0
    assert pause_s(1.0, 10.0) == 40.0
