"""A storage service after a power loss at any moment of its work: each sample is there once, under the key that it had, and deleted ones stay so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.db.engine import Database, open_database
from modyn.errors import NotFoundError
from modyn.storage.catalogue.catalogue import Catalogue
from modyn.storage.datasets import DatasetStore
from modyn.storage.ingest.limits import IngestLimits
from modyn.storage.read.publication import Publication
from modyn.storage.read.snapshot import DatasetSnapshot
from tests.support.committed_rows import RecordedDatabase, losses_with_rows, restore_rows
from tests.support.disk_recorder import recorded_disk
from tests.support.disk_recording import DiskRecording
from tests.support.running_storage import binary_dataset, data_in, published_by, write_records


@contextmanager
def started(config: SystemConfig, database: Database) -> Iterator[DatasetStore]:
    """A store as a service starts it."""
    store = DatasetStore(config, Catalogue(database))
    store.start()
    try:
        yield store
    finally:
        store.close()


def live_data(snapshot: DatasetSnapshot) -> dict[int, int]:
    """Data by key of all samples that are not deleted."""
    keys = np.arange(snapshot.index.next_key)
    keys = keys[~snapshot.tombstones.keys.contains(keys)]
    return dict(zip(keys.tolist(), data_in(snapshot, keys), strict=True))


def ingest(store: DatasetStore, **limits: int) -> None:
    # Each file is a commit of its own, and segments are merged soon.
    store.dataset("numbers").limits = IngestLimits(flush_s=0.0, merge_run=2, **limits)
    list(store.ingest("numbers"))


def register_and_ingest(store: DatasetStore, data: Path, disk: DiskRecording) -> list[dict[int, int]]:
    """Ingest three files, and after each delete a sample of it. Returns: what is there after each step; steps that ended are noted."""
    states: list[dict[int, int]] = [{}]
    store.register(binary_dataset(data))
    disk.note("registered")
    for number in range(3):
        write_records(data / f"{number}.bin", range(100 * number, 100 * number + 4), 1000 + number)
        ingest(store)
        states.append(states[-1] | {4 * number + i: 100 * number + i for i in range(4)})
        disk.note("ingested")
        store.dataset("numbers").delete_samples(np.array([4 * number + 1]))
        states.append({key: value for key, value in states[-1].items() if key != 4 * number + 1})
        disk.note("deleted")
    assert live_data(store.snapshot("numbers")) == states[-1]
    return states


@pytest.mark.slow
def test_each_sample_is_there_once_under_its_key(quick_config: SystemConfig, tmp_path: Path) -> None:
    config, data = quick_config, tmp_path / "data"
    engine = open_database(config, "storage", "modyn.storage.migrations").engine
    config.service_dir("storage").mkdir(parents=True)
    with (
        recorded_disk(config.service_dir("storage")) as disk,
        started(config, RecordedDatabase(Database(engine, "storage"), disk)) as store,
    ):
        states = register_and_ingest(store, data, disk)
    for loss in losses_with_rows(disk):
        with loss.restored():
            steps = restore_rows(Database(engine, "storage"), loss)
            # What was acknowledged, and what had been begun perhaps.
            allowed = states[max(0, len(steps) - 1) : len(steps) + 1]
            replica = published_by(config)
            if steps:
                assert live_data(replica.snapshot("numbers")) in allowed
            with started(config, Database(engine, "storage")) as found:
                found.register(binary_dataset(data))
                before = live_data(found.snapshot("numbers"))
                assert before in allowed
                ingest(found)
                everything = {4 * number + i: 100 * number + i for number in range(3) for i in range(4)}
                gone = {key for step in range(2, len(states), 2) for key in [2 * step - 3] if states.index(before) >= step}
                assert live_data(found.snapshot("numbers")) == {
                    key: value for key, value in everything.items() if key not in gone
                }
                assert not any(step.problems for step in found.scrub("numbers"))
    assert any("remove" in line and ".segment" in line for line in loss.log), "no segments were merged"
    engine.dispose()


@pytest.mark.slow
def test_kills_and_power_losses_one_after_the_other_lose_nothing(quick_config: SystemConfig, tmp_path: Path) -> None:
    """Each round brings a file and a deletion: a process is killed at it, the next one completes it, and then the power is lost."""
    config, data, random = quick_config, tmp_path / "data", Random(0)
    folder = config.service_dir("storage")
    folder.mkdir(parents=True)
    engine = open_database(config, "storage", "modyn.storage.migrations").engine
    expected: dict[int, int] = {}
    for number in range(25):
        write_records(data / f"{number:02}.bin", range(100 * number, 100 * number + 4), 1000 + number)
        before = dict(expected)
        expected |= {4 * number + i: 100 * number + i for i in (0, 2, 3)}
        with recorded_disk(folder) as disk:
            database = RecordedDatabase(Database(engine, "storage"), disk)
            disk.kill_at(random.randrange(90), partial(ingest_and_delete, config, database, data, 4 * number + 1))
            ingest_and_delete(config, database, data, 4 * number + 1)
            disk.note("done")
        loss = next(loss for loss in iter(partial(disk.random_loss, random), None) if loss.notes)
        with loss.restored():
            done = restore_rows(Database(engine, "storage"), loss)
            with started(config, Database(engine, "storage")) as store:
                store.register(binary_dataset(data))
                found = live_data(store.snapshot("numbers"))
                assert found in ([expected] if done else [before, expected, expected | {4 * number + 1: 100 * number + 1}])
            ingest_and_delete(config, Database(engine, "storage"), data, 4 * number + 1)
            with started(config, Database(engine, "storage")) as store:
                assert live_data(store.snapshot("numbers")) == expected
                assert not any(step.problems for step in store.scrub("numbers"))
                index = store.dataset("numbers").folder
            published = Publication.read(index)
            named = {*published.segments, *(block.file for block in published.names), published.stamps}
            assert {path.name for path in index.iterdir()} <= {"index.json", "deletions", "nonce", "quarantine", *named}
    engine.dispose()


def ingest_and_delete(config: SystemConfig, database: Database, data: Path, key: int) -> None:
    with started(config, database) as store:
        store.register(binary_dataset(data))
        ingest(store, held_samples=1, segment_rows=3)  # as of a large file, whose segments are written as they fill
        store.dataset("numbers").delete_samples(np.array([key]))


def test_a_deleted_dataset_stays_deleted(quick_config: SystemConfig, tmp_path: Path) -> None:
    config, data = quick_config, tmp_path / "data"
    engine = open_database(config, "storage", "modyn.storage.migrations").engine
    write_records(data / "0.bin", range(4), 1000)
    with started(config, Database(engine, "storage")) as store:
        store.register(binary_dataset(data))
        ingest(store)
        with recorded_disk(config.service_dir("storage")) as disk:
            recorded = RecordedDatabase(Database(engine, "storage"), disk)
            store._catalogue.database = recorded
            store.delete("numbers")
            disk.note("deleted")
    for loss in losses_with_rows(disk):
        with loss.restored():
            steps = restore_rows(Database(engine, "storage"), loss)
            if steps:
                with pytest.raises(NotFoundError):
                    published_by(config).snapshot("numbers")
            with started(config, Database(engine, "storage")) as found:
                if steps:
                    assert not found.infos()
                if not found.infos():
                    assert not list((config.service_dir("storage") / "datasets").iterdir())
                else:
                    assert live_data(found.snapshot("numbers")) == {i: i for i in range(4)}
    engine.dispose()
