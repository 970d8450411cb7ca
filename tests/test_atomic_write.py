"""Created files and folders still exist after a crash of the machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from modyn.atomic_write import make_folder, write_atomically
from tests.support.disk_recorder import recorded_disk


def test_a_new_folder_is_synced_in_each_one_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    make_folder(tmp_path / "a" / "b", 0o700)
    assert synced == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "a")]
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    make_folder(tmp_path / "a" / "b")
    assert synced[3:] == [str(tmp_path / "a")]
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file")


def test_after_a_power_loss_a_file_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [b"a" * 700, b"b" * 10, b"c" * 2000]
    with recorded_disk(tmp_path) as disk:
        for number, content in enumerate(contents):
            write_atomically(path, [content[:5], content[5:]])
            disk.note(number)
    for loss in disk.losses():
        with loss.restored():
            newest = contents.index(path.read_bytes()) if path.exists() else -1
            assert newest in (len(loss.notes) - 1, len(loss.notes))


def test_a_folder_of_a_process_that_was_killed_is_there_after_a_power_loss(tmp_path: Path) -> None:
    """A folder that is found may have been made by a process that was killed before it was synced."""

    def write() -> None:
        make_folder(folder / "a" / "b")
        write_atomically(folder / "a" / "b" / "file", [b"content"])

    killed, step = True, 0
    while killed:
        folder = tmp_path / str(step)
        folder.mkdir()
        with recorded_disk(folder) as disk:
            killed = disk.kill_at(step, write)
            write()
            disk.note("written")
        for loss in disk.losses():
            with loss.restored():
                assert "written" not in loss.notes or (folder / "a" / "b" / "file").read_bytes() == b"content"
        step += 1
    assert step > 8
