"""The selector over real files and a real PostgreSQL: what it keeps, what it refuses, and what it repairs."""

from __future__ import annotations

import os
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, text
from sqlalchemy.engine import Connection

from modyn.db.engine import Database
from modyn.errors import (
    ConflictError,
    CorruptStateError,
    NotFoundError,
    UnavailableError,
)
from modyn.records import RunId, RunRegistration, SampleBatch
from modyn.selector.sample_log import unseen
from modyn.selector.selector import Selector
from modyn.selector.trigger_set import TriggerSetHeader, write_trigger_set
from modyn.selector.window import Selection
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.waiting import PATIENCE_S
from tests.support.selecting import nothing_deleted

BACKENDS = ("local", "database")
RUN = RunId("run-1")


def stream(start: int, end: int, dtype: type[np.generic] = np.int64) -> SampleBatch:
    """Positions [start, end) of a stream with keys, times and labels that tell which position they belong to."""
    positions = np.arange(start, end)
    return SampleBatch(positions * 3 + 1, positions - 50, (positions * 7 % 1000).astype(dtype) + np.array(0.5).astype(dtype))


def strategy(backend: str = "local", **options: Any) -> dict[str, Any]:
    return {"name": "NewDataStrategy", "maximum_keys_in_memory": 10, "storage_backend": backend, **options}


def register(selector: Selector, num_samples: int, *arguments: Any, **options: Any) -> None:
    """Register RUN with the options of `strategy`, and inform it of the first samples of the stream."""
    selector.register_run(RunRegistration(RUN, "d", strategy(*arguments, **options), 1))
    selector.inform(RUN, 0, stream(0, num_samples))


def trigger_keys(selector: Selector | FakeSelectorClient, run_id: RunId, trigger_id: int) -> list[int]:
    """Return all keys of a trigger set, read by partition."""
    found: list[int] = []
    for partition in range(selector.trigger_set(run_id, trigger_id).num_partitions):
        if isinstance(selector, FakeSelectorClient):
            found += selector.keys(run_id, trigger_id, partition).keys.tolist()
        else:
            found += [key for part in selector.keys(run_id, trigger_id, partition) for key in part.keys.tolist()]
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "selector"


@pytest.fixture
def selector(database: Database, directory: Path) -> Iterator[Selector]:
    made = Selector(database, directory, nothing_deleted)
    made.recover()
    yield made
    made.close()


@given(cuts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=30))
def test_repetitions_do_not_change_the_stream(cuts: list[tuple[int, int]]) -> None:
    held: list[int] = []
    for position, length in cuts:
        batch = stream(position, position + length)
        if position > len(held):
            with pytest.raises(ConflictError, match="gap"):
                unseen(RUN, len(held), position, batch)
        else:
            held += unseen(RUN, len(held), position, batch).keys.tolist()
    assert held == stream(0, len(held)).keys.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_every_column_comes_back_as_it_was(selector: Selector, backend: str, dtype: type[np.generic]) -> None:
    selector.register_run(RunRegistration(RUN, "d", strategy(backend), 1))
    extremes = np.array([0, 2**62, 5])
    labels = np.array([-1, 0, 3]).astype(dtype) if dtype is np.int64 else np.array([np.inf, -0.5, 1e-300])
    selector.inform(RUN, 0, SampleBatch(extremes, np.array([-(2**63), 2**63 - 1, 0]), labels))
    selector.inform(RUN, 3, stream(3, 100, dtype))
    log = selector._files(selector.run(RUN)).log
    first, rest, keys = log.read(0, 3), log.read(90, 100), log.read_keys(1, 4)
    assert len(log.read(5, 5)) == 0
    assert first.keys.tolist() == extremes.tolist()
    assert first.timestamps.tolist() == [-(2**63), 2**63 - 1, 0]
    assert first.labels.tolist() == labels.tolist()
    assert first.labels.dtype == dtype
    assert rest.labels.tolist() == stream(90, 100, dtype).labels.tolist()
    assert keys.tolist() == [2**62, 5, 10]


def test_runs_on_one_dataset_do_not_disturb_each_other(selector: Selector) -> None:
    """Eight at once, on both backends, in small interleaved batches, while others come and go."""

    def drive(number: int) -> list[int]:
        run_id = RunId(f"run-{number}")
        selector.register_run(RunRegistration(run_id, "d", strategy(BACKENDS[number % 2], tail_triggers=0), number))
        for first in range(0, 200, 20):
            selector.inform(run_id, first, stream(first + 1000 * number, first + 20 + 1000 * number))
            selector.trigger(run_id, first // 20, first + 20 - number)
        if number >= 6:
            selector.delete_run(run_id)
            return []
        return [key for trigger_id in range(10) for key in trigger_keys(selector, run_id, trigger_id)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(drive, range(8)))
    assert found[:6] == [stream(1000 * number, 1000 * number + 200 - number).keys.tolist() for number in range(6)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_run_informed_by_several_callers_at_once_holds_each_sample_once(selector: Selector, backend: str) -> None:
    selector.register_run(RunRegistration(RUN, "d", strategy(backend), 1))

    def send(first: int) -> int:
        return selector.inform(RUN, 0, stream(0, first))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, [10, 40, 20, 30, 40, 10, 25, 40]))
    selector.trigger(RUN, 0, 40)
    assert trigger_keys(selector, RUN, 0) == stream(0, 40).keys.tolist()


def test_what_a_crash_leaves_is_repaired(selector: Selector, database: Database, directory: Path) -> None:
    register(selector, 20)
    done = selector.trigger(RUN, 0, 20)
    (folder,) = (directory / "runs").iterdir()
    size = (folder / "samples").stat().st_size
    with open(folder / "samples", "ab") as torn:
        torn.write(b"torn!" * 1_000_000)
    (directory / "runs" / "never-committed.99").mkdir()
    (folder / "triggers" / "000000.set.tmp").write_bytes(b"half")
    (folder / "triggers" / "000001.set").write_bytes(b"written, but its row was not")
    again = Selector(database, directory, nothing_deleted)
    again.recover()
    assert size <= (folder / "samples").stat().st_size < size + 1_000_000
    assert list((directory / "runs").iterdir()) == [folder]
    assert [path.name.rsplit(".", 1)[0] for path in (directory / "orphans").iterdir()] == ["never-committed.99"]
    assert [path.name for path in (folder / "triggers").iterdir()] == ["000000.set"]
    again.inform(RUN, 20, stream(20, 30))
    again.trigger(RUN, 1, 30)
    assert again.trigger(RUN, 0, 20) == done
    assert trigger_keys(again, RUN, 1) == stream(0, 30).keys.tolist()


def test_with_another_database_no_samples_are_deleted_and_none_mistaken_for_others(
    selector: Selector, database: Database, directory: Path
) -> None:
    register(selector, 20)
    (path,) = (directory / "runs").glob("*/samples")
    samples = path.read_bytes()
    with database.session() as session:
        session.execute(text("TRUNCATE selector.runs RESTART IDENTITY CASCADE"))
    for restart in (1, 2):
        again = Selector(database, directory, nothing_deleted)
        again.recover()
        again.register_run(RunRegistration(RUN, "d", strategy(), 1))  # of the same name and number
        assert again.inform(RUN, 0, SampleBatch.empty()) == 0, restart
    (kept,) = (directory / "orphans").glob("*/samples")
    assert kept.read_bytes() == samples


@pytest.mark.parametrize("damage", ["other bytes", "no count", "a folder"])
def test_one_damaged_run_keeps_no_other_from_being_used(
    selector: Selector, database: Database, directory: Path, damage: str
) -> None:
    other = RunId("run-2")
    for run_id in (RUN, other):
        selector.register_run(RunRegistration(run_id, "d", strategy(), 1))
        selector.inform(run_id, 0, stream(0, 20))
    (path,) = (directory / "runs").glob(f"{RUN}.*/samples")
    content = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    else:
        path.write_bytes(b"other bytes" if damage == "other bytes" else content[:4096] + b"x" * 8192 + content[12288:])
    again = Selector(database, directory, nothing_deleted)
    again.recover()
    assert again.trigger(other, 0, 20).num_keys == 20
    for call in (lambda: again.inform(RUN, 20, stream(20, 30)), lambda: again.trigger(RUN, 0, 20)):
        with pytest.raises((CorruptStateError, UnavailableError), match=str(path)):
            call()
    again.delete_run(RUN)
    again.register_run(RunRegistration(RUN, "d", strategy(), 1))
    assert again.inform(RUN, 0, stream(0, 5)) == 5


def test_a_deletion_that_fails_is_told_and_keeps_no_other_run_from_being_used(
    selector: Selector, database: Database, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = RunId("run-2")
    for run_id in (RUN, other):
        selector.register_run(RunRegistration(run_id, "d", strategy(), 1))
        selector.inform(run_id, 0, stream(0, 20))

    def refuses(path: Path) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as failing:
        failing.setattr(shutil, "rmtree", refuses)
        with pytest.raises(UnavailableError, match=f"cannot delete .* of run '{RUN}': Read-only file system"):
            selector.delete_run(RUN)
        again = Selector(database, directory, nothing_deleted)
        again.recover()
        assert again.trigger(other, 0, 20).num_keys == 20
    again.delete_run(RUN)
    assert [path.name.split(".")[0] for path in (directory / "runs").iterdir()] == [other]


def test_without_a_restart_a_torn_tail_is_overwritten(selector: Selector, directory: Path) -> None:
    """The samples were written and not counted when the machine stopped: the call is repeated with other cuts."""
    register(selector, 5)
    (path,) = (directory / "runs").glob("*/samples")
    counted = path.read_bytes()[:12288]
    selector.inform(RUN, 5, stream(1000, 1100))
    with open(path, "r+b") as file:
        file.write(counted)
    selector.inform(RUN, 5, stream(5, 9))
    selector.trigger(RUN, 0, 9)
    assert trigger_keys(selector, RUN, 0) == stream(0, 9).keys.tolist()


@pytest.mark.parametrize("slot", [4096, 8192])
def test_a_count_that_was_torn_while_it_was_written_leaves_the_one_before(selector: Selector, directory: Path, slot: int) -> None:
    selector.register_run(RunRegistration(RUN, "d", strategy(), 1))
    held = [selector.inform(RUN, first, stream(first, first + 3)) for first in (0, 3, 6, 9)[: 2 + slot // 8192]]
    (path,) = (directory / "runs").glob("*/samples")
    with open(path, "r+b") as file:
        file.seek(slot + 3)
        file.write(b"torn")
    newest_is_torn = len(held) % 2 == (slot == 8192)
    assert selector.inform(RUN, 0, SampleBatch.empty()) == held[-2 if newest_is_torn else -1]
    with open(path, "r+b") as file:
        file.seek(12288 - slot + 3)
        file.write(b"torn")
    with pytest.raises(CorruptStateError, match="how many of its bytes are valid"):
        selector.inform(RUN, 0, SampleBatch.empty())


def test_a_damaged_count_of_the_only_samples_is_corrupt_and_they_are_not_overwritten(selector: Selector, directory: Path) -> None:
    register(selector, 3)
    (path,) = (directory / "runs").glob("*/samples")
    with open(path, "r+b") as file:
        file.seek(8192 + 3)
        file.write(b"torn")
    with pytest.raises(CorruptStateError, match="how many of its bytes are valid"):
        selector.inform(RUN, 0, stream(7, 9))


def test_a_count_that_could_not_be_synced_does_not_count(
    selector: Selector, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the repeated call would learn that its samples are held, and nothing would be synced."""
    selector.register_run(RunRegistration(RUN, "d", strategy(), 1))
    for held in (0, 4):
        synced: list[int] = []

        def fails_the_second_time(descriptor: int, synced: list[int] = synced) -> None:
            synced.append(descriptor)
            if len(synced) % 2 == 0:
                raise OSError(5, "Input/output error")

        with monkeypatch.context() as failing:
            failing.setattr(os, "fdatasync", fails_the_second_time)
            for attempt in (2, 4):
                with pytest.raises(UnavailableError, match="Input/output error"):
                    selector.inform(RUN, held, stream(held, held + 4))
                assert len(synced) == attempt
        assert selector.inform(RUN, held, SampleBatch.empty()) == held
        assert selector.inform(RUN, held, stream(held, held + 4)) == held + 4


def test_what_was_counted_when_the_process_was_killed_is_synced_by_the_next(
    selector: Selector, database: Database, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(selector, 5)
    (path,) = (directory / "runs").glob("*/samples")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    Selector(database, directory, nothing_deleted).recover()
    assert str(path) in synced


def test_a_log_that_lost_its_tail_is_corrupt_and_not_filled_with_zeros(selector: Selector, directory: Path) -> None:
    register(selector, 20)
    (path,) = (directory / "runs").glob("*/samples")
    with open(path, "r+b") as file:
        file.truncate(12288 + 100)
    with pytest.raises(CorruptStateError, match=str(path)):
        selector.inform(RUN, 20, stream(20, 30))
    with pytest.raises(CorruptStateError, match=str(path)):
        selector.trigger(RUN, 0, 20)
    for other, says in (
        (b"something else", "not a log of samples"),
        (b"MODYNLOG\x02".ljust(12288, b"\0"), "version 2, this Modyn reads version 5"),
    ):
        path.write_bytes(other)
        with pytest.raises(CorruptStateError, match=says):
            selector.inform(RUN, 20, stream(20, 30))
    path.unlink()
    with pytest.raises(CorruptStateError, match=f"{path} with the samples of run '{RUN}' is missing"):
        selector.inform(RUN, 20, stream(20, 30))


def test_columns_are_right_across_blocks(selector: Selector) -> None:
    selector.register_run(RunRegistration(RUN, "d", {**strategy(), "maximum_keys_in_memory": 50_000}, 1))
    for first in range(0, 300_000, 70_001):
        selector.inform(RUN, first, stream(first, min(first + 70_001, 300_000)))
    selector.trigger(RUN, 0, 300_000)
    assert trigger_keys(selector, RUN, 0) == stream(0, 300_000).keys.tolist()
    log = selector._files(selector._informed[RUN]).log
    part = log.read(65_530, 196_700)
    expected = stream(65_530, 196_700)
    for column in ("keys", "timestamps", "labels"):
        np.testing.assert_array_equal(getattr(part, column), getattr(expected, column))


def test_a_trigger_set_that_is_not_what_was_written_is_corrupt(selector: Selector, directory: Path) -> None:
    register(selector, 20)
    selector.trigger(RUN, 0, 10)
    selector.trigger(RUN, 1, 20)
    first, second = sorted((directory / "runs").glob("*/triggers/*"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(CorruptStateError, match="is not the one of trigger 0"):
        selector.keys(RUN, 0, 0)
    first.unlink()
    with pytest.raises(CorruptStateError, match="is missing"):
        selector.keys(RUN, 0, 0)


def test_triggers_of_all_history_do_not_store_it_each_time(selector: Selector, directory: Path) -> None:
    selector.register_run(RunRegistration(RUN, "d", strategy(), 1))
    for trigger_id in range(50):
        selector.inform(RUN, 1000 * trigger_id, stream(1000 * trigger_id, 1000 * (trigger_id + 1)))
        assert selector.trigger(RUN, trigger_id, 1000 * (trigger_id + 1)).num_keys == 1000 * (trigger_id + 1)
    assert sum(path.stat().st_size for path in directory.glob("runs/*/triggers/*")) < 50 * 1000
    for trigger_id in (0, 7):
        assert trigger_keys(selector, RUN, trigger_id) == stream(0, 1000 * (trigger_id + 1)).keys.tolist()


def rows(database: Database, run_number: int = 1) -> list[tuple[Any, ...]]:
    with database.session() as session:
        found = session.execute(text(f"SELECT * FROM selector.samples_{run_number} ORDER BY position"))
        return [tuple(row) for row in found]


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_rows_are_complete_when_a_trigger_selects(selector: Selector, database: Database, dtype: type[np.generic]) -> None:
    """The number of rows that were copied while samples came in does not matter."""
    selector.register_run(RunRegistration(RUN, "d", strategy("database"), 1))
    for first in range(0, 300, 30):
        selector.inform(RUN, first, stream(first, first + 30, dtype))
    selector.trigger(RUN, 0, 300)
    samples = stream(0, 300, dtype)
    labels = [(label, None) if dtype is np.int64 else (None, label) for label in samples.labels.tolist()]
    expected = zip(range(300), samples.keys.tolist(), samples.timestamps.tolist(), labels, strict=True)
    assert rows(database) == [(position, key, timestamp, *label) for position, key, timestamp, label in expected]


def test_a_failed_insert_fails_the_trigger_and_is_made_good(selector: Selector, database: Database) -> None:
    register(selector, 5, "database")
    selector.trigger(RUN, 0, 5)
    with database.session() as session:
        session.execute(text("ALTER TABLE selector.samples_1 ADD CONSTRAINT full_disk CHECK (position < 7)"))
    assert selector.inform(RUN, 5, stream(5, 15)) == 15
    with pytest.raises(psycopg2.errors.CheckViolation):
        selector.trigger(RUN, 1, 15)
    with pytest.raises(NotFoundError):
        selector.trigger_set(RUN, 1)
    with database.session() as session:
        session.execute(text("ALTER TABLE selector.samples_1 DROP CONSTRAINT full_disk"))
    selector.trigger(RUN, 1, 15)
    assert [row[0] for row in rows(database)] == list(range(15))


def test_copies_that_a_crash_cut_off_continue_where_they_stopped(database: Database, directory: Path) -> None:
    first = Selector(database, directory, nothing_deleted)
    first.register_run(RunRegistration(RUN, "d", strategy("database"), 1))
    first.inform(RUN, 0, stream(0, 10))
    first.trigger(RUN, 0, 10)
    first.close()  # Nothing is copied any more.
    first.inform(RUN, 10, stream(10, 40))
    second = Selector(database, directory, nothing_deleted)
    second.recover()
    second.trigger(RUN, 1, 40)
    second.close()
    assert [row[1] for row in rows(database)] == stream(0, 40).keys.tolist()


def test_a_log_restored_from_a_backup_has_no_row_copied_twice(selector: Selector, database: Database, directory: Path) -> None:
    register(selector, 3, "database")
    selector.trigger(RUN, 0, 3)
    (path,) = (directory / "runs").glob("*/samples")
    backup = path.read_bytes()
    selector.inform(RUN, 3, stream(3, 10))
    selector.trigger(RUN, 1, 10)
    path.write_bytes(backup)
    assert not selector._copy_some_rows(RUN)
    selector.inform(RUN, 3, stream(3, 12))
    selector.trigger(RUN, 2, 12)
    assert [row[1] for row in rows(database)] == stream(0, 12).keys.tolist()


def test_a_trigger_with_nothing_to_copy_leaves_the_row_of_the_run(selector: Selector, database: Database) -> None:
    def version() -> Any:
        with database.session() as session:
            return session.scalar(text("SELECT xmin FROM selector.runs"))

    selector.register_run(RunRegistration(RUN, "d", strategy("database"), 1))
    before = version()
    selector.trigger(RUN, 0, 0)
    assert version() == before


def test_a_disk_that_is_full_fails_the_call_and_counts_nothing(selector: Selector) -> None:
    register(selector, 5)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12288 + 4096 + 5 * 8 + 60, before[1]))
    try:
        with pytest.raises(UnavailableError, match="free or repair the disk"):
            selector.inform(RUN, 5, stream(5, 15))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert selector.inform(RUN, 5, stream(5, 7)) == 7
    selector.trigger(RUN, 0, 7)
    assert trigger_keys(selector, RUN, 0) == stream(0, 7).keys.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_database_that_drops_its_connections_loses_nothing(selector: Selector, database: Database, backend: str) -> None:
    selector.register_run(RunRegistration(RUN, "d", strategy(backend), 1))
    held = 0
    for first in range(0, 100, 10):
        with database.session() as session:
            session.execute(
                text(
                    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
            )
        try:
            held = selector.inform(RUN, first, stream(first, first + 10))
        except UnavailableError:
            held = selector.inform(RUN, first, stream(first, first + 10))
    assert held == 100
    selector.trigger(RUN, 0, 100)
    assert trigger_keys(selector, RUN, 0) == stream(0, 100).keys.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_deleting_a_run_deletes_it_and_nothing_else(
    selector: Selector, database: Database, directory: Path, backend: str
) -> None:
    other = RunId("run-2")
    for run_id in (RUN, other):
        selector.register_run(RunRegistration(run_id, "d", strategy(backend), 1))
        selector.inform(run_id, 0, stream(0, 20))
        selector.trigger(run_id, 0, 20)
    selector.delete_run(RUN)
    selector.delete_run(RUN)
    for call in (lambda: selector.trigger_set(RUN, 0), lambda: selector.keys(RUN, 0, 0)):
        with pytest.raises(NotFoundError):
            call()
    assert trigger_keys(selector, other, 0) == stream(0, 20).keys.tolist()
    assert [path.name.split(".")[0] for path in (directory / "runs").iterdir()] == ["run-2"]
    with database.session() as session:
        assert session.scalar(
            text("SELECT count(*) FROM pg_tables WHERE schemaname = 'selector' AND tablename LIKE 'samples%'")
        ) == (backend == "database")
    selector.register_run(RunRegistration(RUN, "another", strategy(backend), 2))
    assert selector.inform(RUN, 0, SampleBatch.empty()) == 0


def test_a_run_that_is_deleted_by_two_at_once_is_deleted(selector: Selector, monkeypatch: pytest.MonkeyPatch) -> None:
    register(selector, 20, "database")
    selector.trigger(RUN, 0, 20)
    both, remove = threading.Barrier(2, timeout=PATIENCE_S), shutil.rmtree

    def removed_by_the_other(path: Path) -> None:
        if both.wait() == 0:
            remove(path)
        else:
            while path.exists():
                time.sleep(0.001)
            raise FileNotFoundError(2, "No such file or directory", str(path / "samples"))

    monkeypatch.setattr(shutil, "rmtree", removed_by_the_other)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(selector.delete_run, [RUN, RUN]))
    with pytest.raises(NotFoundError):
        selector.run(RUN)


def test_a_selection_may_take_longer_than_transactions_may_idle(
    selector: Selector, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(selector, 20)

    @event.listens_for(database.engine, "begin")
    def idle_at_most(connection: Connection) -> None:
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 100"))

    def slowly(path: Path, size: int, selection: Selection) -> TriggerSetHeader:
        time.sleep(0.5)
        return write_trigger_set(path, size, selection)

    monkeypatch.setattr("modyn.selector.trigger_selection.write_trigger_set", slowly)
    assert selector.trigger(RUN, 0, 20).num_keys == 20


@pytest.mark.parametrize("tail_triggers", [None, 0, 1, 5])
def test_a_trigger_reads_at_most_one_row_of_triggers_however_many_there_are(
    selector: Selector, database: Database, tail_triggers: int | None
) -> None:
    """The one after whose samples its window begins; the newest is in memory."""
    register(selector, 15, tail_triggers=tail_triggers)
    rows = 0

    @event.listens_for(database.engine, "after_cursor_execute")
    def count(_: Connection, cursor: Any, statement: str, *__: object) -> None:
        nonlocal rows
        if statement.startswith("SELECT") and "FROM selector.triggers" in statement:
            rows += cursor.rowcount

    most = 0 if tail_triggers in (None, 0) else 1
    for trigger_id in range(15):
        rows = 0
        info = selector.trigger(RUN, trigger_id, trigger_id + 1)
        assert info.num_keys == (trigger_id if tail_triggers is None else min(tail_triggers, trigger_id)) + 1
        assert rows <= most
    assert rows == most


@pytest.mark.parametrize("by", ["recover", "register"])
def test_a_deletion_that_was_cut_off_is_finished(selector: Selector, database: Database, directory: Path, by: str) -> None:
    register(selector, 20, "database")
    selector.trigger(RUN, 0, 20)
    with database.session() as session:
        session.execute(text("UPDATE selector.runs SET deleting = true"))
    selector = Selector(database, directory, nothing_deleted)
    with pytest.raises(NotFoundError):
        selector.inform(RUN, 20, stream(20, 21))
    if by == "recover":
        selector.recover()
        assert not list((directory / "runs").iterdir())
    selector.register_run(RunRegistration(RUN, "other", strategy(), 1))
    assert selector.inform(RUN, 0, SampleBatch.empty()) == 0
