"""A payload server whose datasets change or hang under it: no bytes of another dataset, and no other dataset waits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from modyn.errors import CancelledError, NotFoundError
from modyn.storage.flight.client import FetchLimits, PayloadClient, PayloadStream
from modyn.storage.flight.server import ServerLimits
from modyn.storage.read.payload_reader import locate
from modyn.storage.read.snapshot import DatasetSnapshot
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.running_storage import ONCE, RunningStorage, binary_dataset, write_records
from tests.support.watched_reads import StartServer, WatchedSnapshots


def replace_dataset(storage: RunningStorage, folder: Path) -> None:
    """Register a dataset of the same name, keys, labels and lengths with other data."""
    storage.client.delete_dataset("numbers")
    write_records(folder / "0.bin", range(5_000_000, 5_001_000), 1000)
    storage.index(binary_dataset(folder))


class Replacing:
    """The datasets of a store, until one is asked for the `turn`th time: before that another takes its place."""

    def __init__(self, storage: RunningStorage, folder: Path, turn: int) -> None:
        self._storage, self._folder, self._turn = storage, folder, turn

    def snapshot(self, name: str) -> DatasetSnapshot:
        self._turn -= 1
        if self._turn == 0:
            replace_dataset(self._storage, self._folder)
        return self._storage.store.snapshot(name)


@pytest.mark.parametrize("turn", [2, 3], ids=["between call and look-up", "between look-up and reading"])
def test_keys_of_one_dataset_never_get_bytes_of_another(
    numbers: RunningStorage, serve: StartServer, tmp_path: Path, turn: int
) -> None:
    with PayloadClient(serve(Replacing(numbers, tmp_path / "other", turn)), limits=ONCE) as client:
        with pytest.raises(NotFoundError, match="another was registered under its name"):
            next(client.fetch("numbers", np.arange(10)))
        assert bytes(next(client.fetch("numbers", np.arange(1))).payload(0)) == (5_000_000).to_bytes(8, "little")


def test_a_fetch_never_mixes_two_datasets(numbers: RunningStorage, serve: StartServer) -> None:
    class Replaced:
        def snapshot(self, name: str) -> DatasetSnapshot:
            return replace(numbers.store.snapshot(name), identity="numbers-2")

    endpoints = [numbers.config.endpoint("flight"), serve(Replaced())]
    with PayloadClient(endpoints, limits=ONCE) as client, pytest.raises(NotFoundError, match="another was registered"):
        list(client.fetch("numbers", np.arange(1000)))


def test_what_was_looked_up_is_not_read_from_another_dataset(numbers: RunningStorage, tmp_path: Path) -> None:
    located = locate(lambda: numbers.store.snapshot("numbers"), np.arange(10), "raise")
    assert len(located.take(slice(3, 5))) == 2
    replace_dataset(numbers, tmp_path / "other")
    with pytest.raises(NotFoundError, match="another was registered under its name"):
        located.take(slice(3, 5))


def test_a_dataset_that_hangs_holds_up_no_other(
    numbers: RunningStorage, hanging: WatchedSnapshots, serve: StartServer, stack: ExitStack, tmp_path: Path
) -> None:
    """Clients that have gone give their places back."""
    write_records(tmp_path / "others" / "0.bin", range(100), 1000)
    numbers.client.register_dataset(binary_dataset(tmp_path / "others", "others"))
    numbers.ingest("others")
    # Nothing is sent after 0.1 s, so that only a look at the call reveals that its client has gone.
    limits = ServerLimits(max_streams=6, alive_s=0.05, hang_s=0.1, poll_s=0.05)
    client = stack.enter_context(PayloadClient(serve(hanging, limits), limits=FetchLimits(retry_s=PATIENCE_S)))

    def hang(fetched: PayloadStream) -> None:
        with pytest.raises(CancelledError):
            next(fetched)

    for _ in range(3):
        with ThreadPoolExecutor(10) as pool:
            fetches = [client.fetch("numbers", np.arange(10)) for _ in range(10)]
            waiting = [pool.submit(hang, fetched) for fetched in fetches]
            assert len(next(client.fetch("others", np.arange(50), deadline_s=PATIENCE_S))) == 50
            for fetched in fetches:
                fetched.cancel()
            for each in waiting:
                each.result(PATIENCE_S)


def test_threads_of_datasets_that_are_not_read_end(numbers: RunningStorage, tmp_path: Path) -> None:
    def num_threads() -> int:
        return sum(thread.name.startswith("gather") for thread in threading.enumerate())

    before = num_threads()
    for number in range(8):
        name = f"others-{number}"
        write_records(tmp_path / name / "0.bin", range(10), 1000)
        numbers.client.register_dataset(binary_dataset(tmp_path / name, name))
        numbers.ingest(name)
        assert numbers.data_of(range(10), name) == list(range(10))
    # They are asked to end and not waited for.
    eventually(lambda: num_threads() <= before + 3, lambda: f"{num_threads()} threads, {before} before")
