"""Files that a policy keeps from trigger to trigger: what is opened is what the trigger before has written, for any event in between."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.system import SystemConfig
from modyn.db.engine import Database
from modyn.errors import CorruptStateError, UnavailableError
from modyn.records import Int64Array, KeysAndWeights, RunId, RunRegistration, SampleBatch
from modyn.selector.selection import SELECTION, SelectionConfig, SelectionPolicy
from modyn.selector.selector import Selector
from modyn.selector.window import Selection, SelectionContext, SelectionWindow, StateFiles
from modyn.testing.fake_selector import FakeSelectorClient
from tests.support.committed_rows import RecordedDatabase, losses_with_rows, restore_rows
from tests.support.disk_recorder import recorded_disk
from tests.support.plugins import installed
from tests.support.selecting import nothing_deleted

RUN = RunId("run-1")
NAME = "EveryOther"


class EveryOther(SelectionPolicy):
    """Selects every second sample of those that no trigger has selected; keeps their positions, and how often it was asked."""

    Config: ClassVar[type[SelectionConfig]] = SelectionConfig

    def select(self, window: SelectionWindow, context: SelectionContext) -> Selection:
        """Every second unused sample, at least one."""
        file = context.files.open("used")
        used = file.column("positions") if file else np.zeros(0, np.int64)
        positions = np.concatenate([np.zeros(0, np.int64), *window.positions()])
        free = np.flatnonzero(~np.isin(positions, used))[::2]
        if context.trigger_id % 3 != 2:  # else nothing is written, and the next trigger opens the file as it is
            context.files.write("used", {"positions": np.concatenate([used, positions[free]])}, {"trigger": context.trigger_id})
        return Selection(len(free), self._chunks(window, free))

    def _chunks(self, window: SelectionWindow, numbers: Int64Array) -> Iterator[KeysAndWeights]:
        return map(KeysAndWeights.unweighted, window.keys_at(iter([numbers] if len(numbers) else [])))


def stream(start: int, end: int) -> SampleBatch:
    positions = np.arange(start, end)
    return SampleBatch(positions * 3 + 1, positions, positions % 4)


def sites(dataset: str, identity: str, column: str, keys: Int64Array) -> Int64Array:
    """Strata of a column."""
    return np.minimum(keys % 5, 2)


def keys_of(selector: Selector, trigger_id: int) -> list[int]:
    info = selector.trigger_set(RUN, trigger_id)
    chunks = [chunk for part in range(info.num_partitions) for chunk in selector.keys(RUN, trigger_id, part)]
    return [key for chunk in chunks for key in chunk.keys.tolist()]


SECTION: dict[str, Any] = {"name": NAME, "maximum_keys_in_memory": 10}
NO_REPLACEMENT: dict[str, Any] = {
    "name": "CoresetStrategy",
    "maximum_keys_in_memory": 10,
    "presampling_config": {"strategy": "RandomNoReplacement", "ratio": 45},
}
BALANCED: dict[str, Any] = {
    "name": "CoresetStrategy",
    "maximum_keys_in_memory": 10,
    "presampling_config": {"strategy": "ColumnBalanced", "ratio": 45, "column": "site"},
}
FRESHNESS: dict[str, Any] = {"name": "FreshnessSamplingStrategy", "maximum_keys_in_memory": 10, "limit": 9}


@pytest.fixture(autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    source = f"from {__name__} import {NAME}\n"
    with installed(tmp_path_factory.mktemp("plugin"), SELECTION, NAME, source, NAME):
        yield


def undisturbed(section: dict[str, Any], num_triggers: int) -> list[list[int]]:
    """Keys of each trigger of a run over memory."""
    with FakeSelectorClient(read_column=sites) as client:
        client.register_run(RunRegistration(RUN, "d", section, 7))
        client.inform(RUN, 0, stream(0, 10 * num_triggers))
        for trigger_id in range(num_triggers):
            client.trigger(RUN, trigger_id, 10 * (trigger_id + 1))
        return [found.keys.tolist() for found in client.runs[RUN].sets]


@given(written=st.lists(st.sets(st.sampled_from(["a", "b", "c-1"])), min_size=1, max_size=6))
def test_a_name_opens_the_file_that_was_written_last(tmp_path_factory: pytest.TempPathFactory, written: list[set[str]]) -> None:
    folder, expected = tmp_path_factory.mktemp("run") / "triggers", dict[str, int]()
    files = StateFiles(folder, 0)
    for trigger_id, names in enumerate(written):
        files = StateFiles(folder, trigger_id, files.references())
        for name in ("a", "b", "c-1"):
            file = files.open(name)
            assert (file.meta["trigger"] if file else None) == expected.get(name)
            assert file is None or file.column("numbers").tolist() == [expected[name]] * 3
        for name in names:
            for number in (-1, trigger_id):  # the last one counts
                files.write(name, {"numbers": np.full(3, number)}, {"trigger": number})
                still = files.open(name)
                assert (still.meta["trigger"] if still else None) == expected.get(name)
        expected |= dict.fromkeys(names, trigger_id)


def test_a_file_that_is_not_what_the_row_says_is_corrupt(tmp_path: Path) -> None:
    first = StateFiles(tmp_path, 0)
    first.write("buffer", {"keys": np.arange(1000)})
    first.write("other", {"keys": np.arange(1000) + 1})
    path, other = tmp_path / "000000.buffer.state", tmp_path / "000000.other.state"
    content = path.read_bytes()
    second = StateFiles(tmp_path, 1, first.references())
    for bad, says in (
        (other.read_bytes(), "is not the one that the trigger before has written"),
        (content[:500] + b"x" + content[501:], "column keys does not match its checksum"),
        (content[:-9], "its header promises"),
        (b"something else", "is not a state of a selection policy"),
    ):
        path.write_bytes(bad)
        with pytest.raises(CorruptStateError, match=f"{path}.*{says}"):
            second.open("buffer")
    path.unlink()
    with pytest.raises(CorruptStateError, match=f"{path} is missing; restore it from a backup"):
        second.open("buffer")


def test_what_was_written_is_read_at_once(tmp_path: Path) -> None:
    files = StateFiles(tmp_path, 0)
    files.write("buffer", {"keys": np.arange(3)})
    assert files.reopen("buffer").column("keys").tolist() == [0, 1, 2]


def test_what_cannot_be_written_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnavailableError, match=f"cannot write {tmp_path}/file/triggers/000004.buffer.state"):
        StateFiles(tmp_path / "file" / "triggers", 4).write("buffer", {"keys": np.arange(3)})
    for name in ("", "../up", "a b", "a/b", "x.y"):
        with pytest.raises(ValueError, match="cannot name a file"):
            StateFiles(tmp_path, 0).write(name, {"keys": np.arange(3)})


def test_a_writer_that_fails_leaves_what_was(tmp_path: Path) -> None:
    files = StateFiles(tmp_path, 0)
    with pytest.raises(ZeroDivisionError), files.writer("buffer", {"keys": (np.int64, 3)}):
        raise ZeroDivisionError
    assert files.references() == {}
    assert list(tmp_path.iterdir()) == []


def test_only_the_state_of_the_newest_trigger_is_kept(database: Database, tmp_path: Path) -> None:
    selector = Selector(database, tmp_path, nothing_deleted)
    selector.register_run(RunRegistration(RUN, "d", SECTION, 7))
    expected = undisturbed(SECTION, 8)
    for trigger_id, kept in enumerate([0, 1, 1, 3, 4, 4, 6, 7]):
        selector.inform(RUN, 10 * trigger_id, stream(10 * trigger_id, 10 * trigger_id + 10))
        selector.trigger(RUN, trigger_id, 10 * trigger_id + 10)
        assert [path.name for path in tmp_path.glob("runs/*/triggers/*.state")] == [f"{kept:06}.used.state"]
        assert keys_of(selector, trigger_id) == expected[trigger_id]
        if trigger_id % 2:
            selector.close()
            (folder,) = tmp_path.glob("runs/*/triggers")
            (folder / f"{trigger_id + 1:06}.used.state").write_bytes(b"of a trigger without a row")
            (folder / f"{trigger_id:06}.used.state.1-2.tmp").write_bytes(b"half")
            selector = Selector(database, tmp_path, nothing_deleted)
            selector.recover()
            assert sorted(path.suffix for path in folder.iterdir()) == [".set"] * (trigger_id + 1) + [".state"]
    selector.delete_run(RUN)
    assert list((tmp_path / "runs").iterdir()) == []
    selector.close()


def test_a_lost_state_fails_the_trigger_and_no_other_run(database: Database, tmp_path: Path) -> None:
    selector, other = Selector(database, tmp_path, nothing_deleted), RunId("run-2")
    for run_id in (RUN, other):
        selector.register_run(RunRegistration(run_id, "d", SECTION, 7))
        selector.inform(run_id, 0, stream(0, 20))
        selector.trigger(run_id, 0, 10)
    (path,) = tmp_path.glob(f"runs/{RUN}.*/triggers/*.state")
    path.unlink()
    with pytest.raises(CorruptStateError, match=f"{path} is missing"):
        selector.trigger(RUN, 1, 20)
    assert selector.trigger(other, 1, 20).num_keys == 8
    selector.close()


def triggers(database: Database, folder: Path, section: dict[str, Any], count: int) -> list[list[int]]:
    """Start a selector that makes the triggers of a run up to `count`, as a supervisor that continues does; return all their keys."""
    selector = Selector(database, folder, nothing_deleted, sites)
    try:
        selector.recover()
        selector.register_run(RunRegistration(RUN, "numbers", section, 7))
        selector.inform(RUN, 0, stream(0, 10 * count))
        for trigger_id in range(count):
            selector.trigger(RUN, trigger_id, 10 * trigger_id + 10)
        return [keys_of(selector, trigger_id) for trigger_id in range(count)]
    finally:
        selector.close()


@pytest.mark.parametrize(
    "section",
    [NO_REPLACEMENT, BALANCED, pytest.param(FRESHNESS, marks=pytest.mark.slow)],
    ids=["epochs", "column", "freshness"],
)
def test_a_kill_at_any_moment_changes_no_key(system_config: SystemConfig, database: Database, section: dict[str, Any]) -> None:
    folder, expected, step, killed = system_config.service_dir("selector"), undisturbed(section, 3), 0, True
    while killed:
        folder.mkdir(parents=True, exist_ok=True)
        triggers(database, folder, section, 2)
        with recorded_disk(folder) as disk:
            killed = disk.kill_at(step, partial(triggers, RecordedDatabase(database, disk), folder, section, 3))
        assert triggers(database, folder, section, 3) == expected
        assert len(list(folder.glob("runs/*/triggers/*.state"))) == 1
        Selector(database, folder, nothing_deleted).delete_run(RUN)
        step += 1
    assert step > 10


@pytest.mark.slow
@pytest.mark.parametrize("section", [SECTION, NO_REPLACEMENT, BALANCED], ids=["plug-in", "epochs", "column"])
def test_a_power_loss_at_any_moment_changes_no_key(
    system_config: SystemConfig, database: Database, section: dict[str, Any]
) -> None:
    folder, expected = system_config.service_dir("selector"), undisturbed(section, 3)
    folder.mkdir(parents=True)
    with recorded_disk(folder) as disk:
        triggers(RecordedDatabase(database, disk), folder, section, 3)
    for loss in losses_with_rows(disk):
        with loss.restored():
            restore_rows(database, loss)
            assert triggers(database, folder, section, 3) == expected
