"""Deleted keys, against a Python set."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.errors import CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.storage.deletions import Deletions

keys = st.integers(0, 20) | st.integers(65_500, 65_600) | st.integers(0, 2**40)


@settings(max_examples=60, deadline=None)
@given(additions=st.lists(st.lists(keys, max_size=30), max_size=5), asked=st.lists(keys | st.integers(-5, -1), max_size=30))
def test_deletions_are_a_set_that_survives_a_restart(
    tmp_path_factory: pytest.TempPathFactory, additions: list[list[int]], asked: list[int]
) -> None:
    path = tmp_path_factory.mktemp("deletions") / "deletions"
    expected: set[int] = set()
    for added in additions:
        deletions = Deletions.open(path)
        assert deletions.add(np.array(added, np.int64)) == len(set(added) - expected)
        expected |= set(added)
    deletions = Deletions.open(path)
    asked += list(expected)
    assert deletions.count == len(expected)
    assert deletions.contains(np.array(asked, np.int64)).tolist() == [key in expected for key in asked]
    for first, end in ((0, 10), (5, 65_550), (65_536, 2**40), (7, 7), (0, 2**41)):
        between = sorted(key for key in expected if first <= key < end)
        assert deletions.keys_between(first, end).tolist() == between
        assert deletions.count_between(first, end) == len(between)


def test_neighbours_of_a_deleted_key_stay(tmp_path: Path) -> None:
    deletions = Deletions.open(tmp_path / "deletions")
    deletions.add(np.array([65_535, 65_536, 8]))
    assert deletions.contains(np.array([7, 8, 9, 65_534, 65_535, 65_536, 65_537])).tolist() == [
        False,
        True,
        False,
        False,
        True,
        True,
        False,
    ]


def test_many_keys_take_little_space(tmp_path: Path) -> None:
    path = tmp_path / "deletions"
    deletions = Deletions.open(path)
    assert deletions.add(np.arange(0, 10_000_000, dtype=np.int64)) == 10_000_000
    assert os.path.getsize(path) < 20_000
    assert deletions.add(np.arange(9_999_990, 10_000_010, dtype=np.int64)) == 10
    assert Deletions.open(path).count == 10_000_010


def test_negative_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="-3"):
        Deletions.open(tmp_path / "deletions").add(np.array([1, -3]))
    assert os.listdir(tmp_path) == []


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    deletions = Deletions.open(folder / "deletions")
    deletions.add(np.array([1]))
    os.rename(folder, tmp_path / "moved")
    with pytest.raises(UnavailableError, match="cannot write"):
        deletions.add(np.array([2]))
    assert deletions.contains(np.array([1, 2])).tolist() == [True, False]
    assert Deletions.open(tmp_path / "moved" / "deletions").count == 1


@pytest.mark.parametrize("damage", ["empty", "magic", "version", "cut", "flipped", "no-frame"])
def test_damage_is_found(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "deletions"
    Deletions.open(path).add(np.array([1, 2, 3]))
    content = bytearray(path.read_bytes())
    if damage == "empty":
        content.clear()
    elif damage == "magic":
        content[0] ^= 1
    elif damage == "version":
        content[8] = 9
    elif damage == "cut":
        del content[-3:]
    elif damage == "flipped":
        content[12] ^= 1  # the checksum
    else:
        content[32:] = b"nonsense"
    path.write_bytes(content)
    with pytest.raises(CorruptStateError, match=str(path)):
        Deletions.open(path)
