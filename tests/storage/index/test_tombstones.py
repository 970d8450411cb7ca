"""Deleted keys, against a Python set."""

from __future__ import annotations

import base64
import errno
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.storage.index.tombstones import Tombstones

keys = st.integers(0, 20) | st.integers(65_500, 65_600) | st.integers(0, 2**40)


@given(additions=st.lists(st.lists(keys, max_size=30), max_size=5), asked=st.lists(keys | st.integers(-5, -1), max_size=30))
def test_deletions_are_a_set_that_survives_a_restart(
    tmp_path_factory: pytest.TempPathFactory, additions: list[list[int]], asked: list[int]
) -> None:
    path = tmp_path_factory.mktemp("deletions") / "deletions"
    expected: set[int] = set()
    for added in additions:
        deletions = Tombstones.open(path)
        assert deletions.add(np.array(added, np.int64)) == len(set(added) - expected)
        expected |= set(added)
    deletions = Tombstones.open(path)
    asked += list(expected)
    assert len(deletions.keys) == len(expected)
    assert deletions.keys.contains(np.array(asked, np.int64)).tolist() == [key in expected for key in asked]
    for first, end in ((0, 10), (5, 65_550), (65_536, 2**40), (7, 7), (0, 2**41)):
        between = sorted(key for key in expected if first <= key < end)
        assert deletions.keys.between(first, end).tolist() == between


@pytest.mark.slow
def test_many_keys_take_little_space(tmp_path: Path) -> None:
    path = tmp_path / "deletions"
    deletions = Tombstones.open(path)
    assert deletions.add(np.arange(0, 2_000_000, dtype=np.int64)) == 2_000_000
    assert os.path.getsize(path) < 20_000
    assert deletions.add(np.arange(1_999_990, 2_000_010, dtype=np.int64)) == 10
    assert len(Tombstones.open(path).keys) == 2_000_010


def test_a_file_compressed_by_another_library_is_read_and_added_to(tmp_path: Path) -> None:
    """Modyn wrote it with the package zstandard 0.25, in two blocks."""
    path = tmp_path / "deletions"
    path.write_bytes(
        base64.b64decode(
            "TU9EWU5ERUwDAAAAAgAAAAAAAACEAAAAAAAAAAYAAAAAAAAA265ZNCUAAADEuxP0IAAAACi1L/0gIOUAAKAAAAMAAAABAAIAAwABAAEAAABwEQIAYKQBYAEfAAAA"
            "JBG41RwAAAAotS/9IBy1AABwAAABAAAABQABAAAAAAACACxEDwALAA=="
        )
    )
    Tombstones.open(path).add(np.array([9]))
    assert Tombstones.open(path).keys.between(0, 2**41).tolist() == [1, 2, 3, 5, 9, 70_000, 2**40]


def test_negative_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="-3"):
        Tombstones.open(tmp_path / "deletions").add(np.array([1, -3]))
    assert os.listdir(tmp_path) == []


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    deletions = Tombstones.open(folder / "deletions")
    deletions.add(np.array([1]))
    os.rename(folder, tmp_path / "moved")
    with pytest.raises(UnavailableError, match="cannot write"):
        deletions.add(np.array([2]))
    assert deletions.keys.contains(np.array([1, 2])).tolist() == [True, False]
    assert len(Tombstones.open(tmp_path / "moved" / "deletions").keys) == 1


def test_each_addition_changes_what_others_see_of_the_file_and_costs_what_it_brings(tmp_path: Path) -> None:
    """The first additions are appended; a log that has doubled becomes one block again. Readers notice either by size or inode."""
    path = tmp_path / "deletions"
    deletions = Tombstones.open(path)
    rng = np.random.default_rng(0)
    expected: set[int] = set()
    seen, inodes = set(), set()
    for _ in range(100):
        new = rng.integers(0, 2**34, 1000)
        deletions.add(new)
        expected |= set(new.tolist())
        status = path.stat()
        seen.add((status.st_ino, status.st_size))
        inodes.add(status.st_ino)
    assert len(seen) == 100
    assert 2 <= len(inodes) < 10
    assert path.stat().st_size < 16 * len(expected)
    again = Tombstones.open(path)
    assert len(again.keys) == len(expected)
    assert again.keys.between(0, 2**34).tolist() == sorted(expected)


@pytest.mark.parametrize("left", [b"\0", b"x" * 7, b"y" * 5000])
def test_what_a_kill_left_after_the_log_does_not_count(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "deletions"
    Tombstones.open(path).add(np.array([1]))
    Tombstones.open(path).add(np.array([2, 5]))
    with open(path, "ab") as file:
        file.write(left)
    deletions = Tombstones.open(path)
    assert deletions.keys.between(0, 10).tolist() == [1, 2, 5]
    size = path.stat().st_size
    deletions.add(np.array([7]))
    assert path.stat().st_size > size
    assert Tombstones.open(path).keys.between(0, 10).tolist() == [1, 2, 5, 7]


def test_a_disk_that_takes_only_a_part_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deletions"
    deletions = Tombstones.open(path)
    deletions.add(np.array([1]))
    before = path.stat().st_size
    left = 7
    write = os.pwrite

    def of_a_full_disk(descriptor: int, content: memoryview, position: int) -> int:
        """Takes parts, and `left` bytes in all."""
        nonlocal left
        part = min(5, len(content), left)
        if not part:
            raise OSError(errno.ENOSPC, "No space left on device")
        left -= part
        return write(descriptor, bytes(content[:part]), position)

    monkeypatch.setattr(os, "pwrite", of_a_full_disk)
    with pytest.raises(UnavailableError, match="No space left"):
        deletions.add(np.array([2, 3]))
    assert path.stat().st_size == before
    assert Tombstones.open(path).keys.between(0, 10).tolist() == [1]
    left = 10_000
    deletions.add(np.array([2, 3]))
    assert Tombstones.open(path).keys.between(0, 10).tolist() == [1, 2, 3]


def test_a_commit_that_fails_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deletions"
    deletions = Tombstones.open(path)
    deletions.add(np.array([1]))

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(UnavailableError, match="Input/output"):
        patch.setattr(os, "fdatasync", broken)
        deletions.add(np.array([2]))
    assert len(Tombstones.open(path).keys) == len(deletions.keys) == 1
    assert deletions.add(np.array([2])) == 1
    assert len(Tombstones.open(path).keys) == 2


def test_a_file_of_an_older_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "deletions"
    path.write_bytes(struct.pack("<8sIIqq", b"MODYNDEL", 2, 0, 32, 0))
    with pytest.raises(CorruptStateError, match="has version 2, this Modyn reads version 3; use the Modyn that wrote it"):
        Tombstones.open(path)


def test_a_log_that_was_cut_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "deletions"
    deletions = Tombstones.open(path)
    deletions.add(np.array([1]))
    os.truncate(path, 44)
    with pytest.raises(CorruptStateError, match="was cut"):
        deletions.add(np.array([2]))
