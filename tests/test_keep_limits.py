"""Retention limits: the choice by age, number and size, and files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modyn.keep_limits import KeepLimits, KeptItem, outlived, remove_outlived_files, set_aside

ITEMS = [KeptItem("old", 10.0, 5), KeptItem("older", 5.0, 1), KeptItem("new", 90.0, 5), KeptItem("newer", 95.0, 5)]


@pytest.mark.parametrize(
    ("limits", "gone"),
    [
        (KeepLimits(), []),
        (KeepLimits(max_age_s=90), ["older"]),
        (KeepLimits(max_age_s=89), ["older", "old"]),
        (KeepLimits(max_number=3), ["older"]),
        (KeepLimits(max_number=0), ["older", "old", "new", "newer"]),
        (KeepLimits(max_bytes=10), ["older", "old"]),
        (KeepLimits(max_bytes=16), []),
        (KeepLimits(max_age_s=90, max_number=1, max_bytes=100), ["older", "old", "new"]),
    ],
)
def test_what_outlives_age_number_or_size_goes_the_oldest_first(limits: KeepLimits, gone: list[str]) -> None:
    assert outlived(ITEMS, limits, now=100.0) == gone
    assert bool(limits) == (limits != KeepLimits())


def test_old_files_go_and_those_of_the_last_hour_stay(tmp_path: Path) -> None:
    for name, age_s in (("old", 9000.0), ("older", 9999.0), ("fresh", 10.0)):
        (tmp_path / name).write_bytes(b"12345")
        os.utime(tmp_path / name, (1e6 - age_s, 1e6 - age_s))
    paths = [*tmp_path.iterdir(), tmp_path / "gone meanwhile"]
    assert remove_outlived_files(paths, KeepLimits(max_age_s=9500), now=1e6) == [tmp_path / "older"]
    assert remove_outlived_files(paths, KeepLimits(max_bytes=0), now=1e6) == [tmp_path / "old"]
    assert [path.name for path in tmp_path.iterdir()] == ["fresh"]


def test_the_age_of_a_file_that_is_set_aside_begins_then(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    os.utime(tmp_path / "model", (1.0, 1.0))
    path = set_aside(tmp_path / "model", tmp_path / "quarantine")
    assert remove_outlived_files([path], KeepLimits(max_age_s=7200, max_bytes=0)) == []
    assert path.read_bytes() == b"weights"
