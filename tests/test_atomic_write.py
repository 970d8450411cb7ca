"""What is made is found again after a crash of the machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from modyn.atomic_write import make_folder


def test_a_new_folder_is_synced_in_each_one_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    make_folder(tmp_path / "a" / "b", 0o700)
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    make_folder(tmp_path / "a" / "b")
    assert len(synced) == 2
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file")
