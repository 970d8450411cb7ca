"""Trigger sets on disk: partitions by arithmetic, files whole or not at all, damage noticed."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn._core import KeySet
from modyn.atomic_write import TEMPORARY_SUFFIX
from modyn.errors import CorruptStateError, InvalidArgumentError, ModynError, NotFoundError, UnavailableError
from modyn.records import KeysAndWeights, SampleBatch
from modyn.selector.trigger_set import TriggerSet, partition_bounds, write_trigger_set
from modyn.selector.window import BLOCK, Selection, whole, window_of_trigger
from modyn.testing.memory_reader import MemoryReader


def selection(num_keys: int, part: int = 3, promised: int | None = None) -> Selection:
    """Keys 5, 12, 19, … with weights 0.5, 1.5, …, in chunks."""

    def chunks() -> Iterator[KeysAndWeights]:
        for first in range(0, num_keys, part):
            positions = np.arange(first, min(first + part, num_keys))
            yield KeysAndWeights(positions * 7 + 5, (positions + 0.5).astype(np.float32))

    return Selection(num_keys if promised is None else promised, chunks())


NO_LOG = MemoryReader(SampleBatch.empty())
"""For sets that are stored as keys."""


def contents(found: TriggerSet, chunk_size: int = 3) -> KeysAndWeights:
    """Return all keys and weights, partition by partition."""
    num_partitions = -(-found.header.num_keys // found.header.partition_size)
    parts = [list(found.partition(partition, chunk_size)) for partition in range(num_partitions)]
    assert all(0 < len(chunk.keys) <= chunk_size for part in parts for chunk in part)
    return KeysAndWeights.concatenate([chunk for part in parts for chunk in part])


@given(num_keys=st.integers(1, 10_000), partition_size=st.integers(1, 2000))
def test_partitions_make_up_the_set(num_keys: int, partition_size: int) -> None:
    num_partitions = -(-num_keys // partition_size)
    bounds = [partition_bounds(num_keys, partition_size, partition) for partition in range(num_partitions)]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == num_keys
    assert max(stop - start for start, stop in bounds) <= partition_size
    for partition in (-1, num_partitions):
        with pytest.raises(InvalidArgumentError):
            partition_bounds(num_keys, partition_size, partition)


def test_an_empty_set_has_no_partition(tmp_path: Path) -> None:
    header = write_trigger_set(tmp_path / "e.set", 3, selection(0))
    found = TriggerSet(tmp_path / "e.set", NO_LOG)
    assert header.num_keys == found.header.num_keys == 0
    with pytest.raises(InvalidArgumentError, match="no partition 0"):
        found.partition(0, 10)


def test_the_folder_is_in_the_folder_of_the_run_before_a_set_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order on the disk matters: otherwise, a crash of the machine could remove the folder but leave the row that refers to the set."""
    path, synced = tmp_path / "run" / "triggers" / "0.set", []
    sync = os.fsync

    def remember(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", remember)
    write_trigger_set(path, 3, selection(4))
    assert (path.parent.parent, False) in synced
    assert synced[-1] == (path.parent, True)


@pytest.mark.parametrize("part", [1, 3, 100])
def test_what_was_written_is_read_however_it_came(tmp_path: Path, part: int) -> None:
    path = tmp_path / "deeper" / "t.set"
    header = write_trigger_set(path, 4, selection(10, part))
    found = TriggerSet(path, NO_LOG)
    keys = np.arange(10) * 7 + 5
    assert contents(found).keys.tolist() == keys.tolist()
    assert contents(found).weights.tolist() == [i + 0.5 for i in range(10)]
    assert header.keys_sha256 == hashlib.sha256(keys.astype("<i8").tobytes()).hexdigest()
    chunks = list(found.partition(2, chunk_size=1))
    assert [chunk.keys.tolist() for chunk in chunks] == [[61], [68]]
    assert [chunk.weights.tolist() for chunk in chunks] == [[8.5], [9.5]]
    assert [p.name for p in path.parent.iterdir()] == ["t.set"]


def flip(at: int) -> Callable[[bytearray], bytes]:
    def damage(data: bytearray) -> bytes:
        data[at] ^= 1
        return bytes(data)

    return damage


def test_damage_after_a_first_look_is_noticed(tmp_path: Path) -> None:
    """Checksums are verified once a file, but a file that changed is another one."""
    path = tmp_path / "t.set"
    write_trigger_set(path, 4, selection(10))
    TriggerSet(path, NO_LOG)
    path.write_bytes(flip(130)(bytearray(path.read_bytes())))
    with pytest.raises(CorruptStateError):
        TriggerSet(path, NO_LOG)


def test_a_missing_set_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        TriggerSet(tmp_path / "t.set", NO_LOG)


@pytest.mark.parametrize("promised", [9, 11])
def test_a_policy_that_breaks_its_promise_leaves_the_old_set(tmp_path: Path, promised: int) -> None:
    path = tmp_path / "t.set"
    write_trigger_set(path, 4, selection(10))
    before = path.read_bytes()
    with pytest.raises(ModynError, match=f"promised {promised} keys"):
        write_trigger_set(path, 4, selection(10, promised=promised))
    assert path.read_bytes() == before


def test_unfinished_writes_do_not_disturb(tmp_path: Path) -> None:
    """Temporary files of a process that was killed; process and thread ids come again."""
    path = tmp_path / "t.set"
    same, other = (
        path.with_name(f"{path.name}.{process}-{threading.get_ident()}{TEMPORARY_SUFFIX}")
        for process in (os.getpid(), os.getpid() + 1)
    )
    for stale in (same, other):
        stale.write_bytes(b"x" * 10_000)
    write_trigger_set(path, 4, selection(10))
    found = TriggerSet(path, NO_LOG)
    assert (len(contents(found).keys), len(contents(found).weights)) == (10, 10)
    assert not same.exists()
    assert other.stat().st_size == 10_000


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="cannot write the trigger set"):
        write_trigger_set(tmp_path / "file" / "t.set", 4, selection(10))


@given(
    size=st.sampled_from([0, 1, 30, BLOCK + 5]),
    deleted=st.sampled_from([0.0, 0.01, 0.4, 0.999]),
    partition_size=st.sampled_from([7, 1000, 100_000]),
    seed=st.integers(0, 9),
    num_files=st.sampled_from([None, 1, 7, 1000]),
)
def test_a_set_of_ranges_holds_the_keys_that_the_log_has_there(
    tmp_path_factory: pytest.TempPathFactory, size: int, deleted: float, partition_size: int, seed: int, num_files: int | None
) -> None:
    """A set of a whole window, from which samples may be deleted, has the same keys as if they were stored, and less space. Keys come in any order,
    or file by file."""
    rng = np.random.default_rng(seed)
    keys = rng.permutation(size)
    if num_files is not None:
        files = np.array_split(np.arange(size), num_files)
        keys = np.concatenate([files[i] for i in rng.permutation(num_files)])
    reader = MemoryReader(SampleBatch(keys, np.arange(size), np.zeros(size, np.int64)))
    gone = np.flatnonzero(rng.random(size) < deleted)
    folder = tmp_path_factory.mktemp("sets")
    window = window_of_trigger(reader, 0, size, 1, KeySet(gone))
    header = write_trigger_set(folder / "a.set", partition_size, whole(window))
    stored = write_trigger_set(folder / "b.set", partition_size, Selection(len(window), whole(window).chunks))
    assert replace(header, key_runs=()) == stored
    sets = [contents(TriggerSet(folder / name, reader), 5000) for name in ("a.set", "b.set")] if len(window) else []
    for found in sets:
        assert found.keys.tolist() == keys[~np.isin(keys, gone)].tolist()
        assert (found.weights == 1).all()
    if not len(gone):
        assert (folder / "a.set").stat().st_size < 10_000
    assert (folder / "a.set").stat().st_size <= (folder / "b.set").stat().st_size + 100


def test_ranges_that_do_not_cover_what_is_promised_are_refused(tmp_path: Path) -> None:
    keys = KeysAndWeights(np.arange(10), np.ones(10, np.float32))
    with pytest.raises(ModynError, match="promised 10 keys and yielded ranges of 9"):
        write_trigger_set(tmp_path / "t.set", 4, Selection(10, iter([keys]), [(0, 5), (6, 10)]))
    assert not (tmp_path / "t.set").exists()
