"""The recorder sees all that Python does to files, and each mistake of a writer shows in one of the power losses that are made of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import zipfile
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from modyn.atomic_write import sync
from tests.support.disk_recorder import recorded_disk
from tests.support.disk_recording import DiskRecording
from tests.support.simulated_disk import SECTOR


def content_of(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def write(folder: Path, *, file: bool = True, names: bool = True, early: bool = False, in_place: bool = False) -> None:
    """Replace `a` by two sectors, with or without what makes it durable, or in the wrong order."""
    path = folder / "a" if in_place else folder / "a.tmp"
    with open(path, "r+b" if in_place else "wb") as target:
        target.write(b"new!" * (SECTOR // 2))
        target.flush()
        if early and names:
            os.replace(path, folder / "a")
            sync(folder)
        if file:
            os.fsync(target.fileno())
    if not early and not in_place:
        os.replace(path, folder / "a")
        if names:
            sync(folder)


@pytest.mark.parametrize(
    ("mistake", "found"),
    [
        ({}, set()),
        ({"file": False}, {"damaged"}),
        ({"names": False}, {"lost"}),
        ({"early": True}, {"damaged"}),
        ({"in_place": True}, {"damaged"}),
    ],
)
def test_each_mistake_of_a_writer_is_found(tmp_path: Path, mistake: dict[str, bool], found: set[str]) -> None:
    old, new = b"old." * (SECTOR // 2), b"new!" * (SECTOR // 2)
    (tmp_path / "a").write_bytes(old)
    with recorded_disk(tmp_path) as disk:
        write(tmp_path, **mistake)
        disk.note("written")
    seen = set()
    for loss in disk.losses():
        with loss.restored():
            content = (tmp_path / "a").read_bytes()
            if content not in (old, new):
                seen.add("damaged")
            elif loss.notes and content != new:
                seen.add("lost")
    assert seen == found


def test_all_ways_to_write_are_recorded(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "before").mkdir()
    (folder / "before" / "file").write_bytes(b"before")
    os.link(folder / "before" / "file", folder / "second name")
    with recorded_disk(folder) as disk:
        (folder / "before" / "file").write_text("text\n" * 5000)
        with open(folder / "second name", "ab") as file:
            file.write(b"appended")
        with open(folder / "before" / "file", "r+b", buffering=0) as raw:
            raw.seek(3)
            raw.write(memoryview(b"12"))
            raw.truncate(20_000)
        with open(folder / "lines", "x", buffering=1) as text:
            print("a line", file=text)
            text.writelines(["b\n", "c"])
        with open(folder / "lines", "w+b") as both:
            both.write(b"0123456789")
            both.seek(2)
            assert both.read(2) == b"23"
            both.write(b"x")
        descriptor = os.open("new", os.O_RDWR | os.O_CREAT | os.O_APPEND, dir_fd=(at := os.open(folder, os.O_RDONLY)))
        os.write(descriptor, b"123")
        os.writev(descriptor, [b"4", b"56"])
        os.close(descriptor)
        os.close(at)
        descriptor = os.open(folder / "placed", os.O_RDWR | os.O_CREAT)
        os.pwrite(descriptor, b"far", 3000)
        os.pwritev(descriptor, [b"ne", b"ar"], 10)
        os.posix_fallocate(descriptor, 4000, 100)
        os.ftruncate(descriptor, 4050)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(b"first")
        os.truncate(folder / "placed", 3500)
        shutil.copyfile(folder / "placed", folder / "copied")
        with zipfile.ZipFile(folder / "archive", "w") as archive:
            archive.writestr("member", b"m" * 3000)
    check_whole(disk)


def check_whole(disk: DiskRecording) -> None:
    """A power loss at the end that loses nothing leaves the folder as it is."""
    expected = content_of(disk.folder)
    *_, whole = (loss for loss in disk.losses() if loss.kind == "everything")
    whole.restore()
    assert content_of(disk.folder) == expected


def test_all_ways_to_change_names_are_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    (folder / "before" / "deep").mkdir(parents=True)
    with recorded_disk(folder) as disk:
        with tempfile.TemporaryDirectory(dir=folder) as made, tempfile.TemporaryFile(dir=folder) as nameless:
            Path(made, "file").touch()
            nameless.write(b"nothing")
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as named:
            named.write(b"named")
        (folder / "link").symlink_to("before")
        (folder / "link" / "through").write_bytes(b"a link")
        (folder / "before" / "through").rename(folder / "through")
        (folder / "before").rename(folder / "after")
        os.link(folder / "through", folder / "again")
        (folder / "through").unlink()
        os.makedirs(folder / "x" / "y" / "z")
        (folder / "x" / "y" / "file").write_bytes(b"")
        shutil.rmtree(folder / "x" / "y")
        (folder / "x").rmdir()
        shutil.move(folder / "again", tmp_path / "outside")
        (tmp_path / "outside").write_bytes(b"not recorded")
        with pytest.raises(FileNotFoundError):
            (folder / "nowhere" / "file").write_bytes(b"")
    check_whole(disk)


def test_what_was_not_recorded_fails_the_recording(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="at made"), recorded_disk(tmp_path):
        subprocess.run(["touch", tmp_path / "made"], check=True)
    with pytest.raises(AssertionError, match="at array"), recorded_disk(tmp_path), open(tmp_path / "array", "wb") as file:
        np.arange(9).tofile(file)
    (tmp_path / "array").unlink()
    with recorded_disk(tmp_path, native=["arr*"]) as disk, open(tmp_path / "array", "wb") as file:
        np.arange(9).tofile(file)
    assert [loss.tree.get("array") for loss in disk.losses() if loss.kind == "everything"][-1] == np.arange(9).tobytes()
    outside = tmp_path.parent / f"{tmp_path.name}.outside"
    outside.touch()
    with pytest.raises(AssertionError, match="from outside"), recorded_disk(tmp_path):
        outside.rename(tmp_path / "inside")


def test_a_killed_process_changes_nothing_more(tmp_path: Path) -> None:
    found: list[list[str]] = []
    for step in range(9):
        folder = tmp_path / str(step)
        folder.mkdir()
        with recorded_disk(folder) as disk:
            killed = disk.kill_at(step, partial(write, folder))
        found.append(sorted(content_of(folder)))
        if not killed:
            break
    # Created, written, synced, renamed; then the folder was synced.
    assert found == [[], ["a.tmp"], ["a.tmp"], ["a.tmp"], ["a"], ["a"]]


NAMES = st.sampled_from(["a", "b", "f/a", "f/b"])


STEPS = st.tuples(
    st.sampled_from(["write", "append", "resize", "rename", "link", "remove", "sync", "sync folder"]),
    NAMES,
    NAMES,
    st.integers(0, 1500),
)


def step(kind: str, path: Path, other: Path, size: int) -> None:
    if kind == "sync folder":
        sync(path.parent)
    elif kind in ("write", "append"):
        with open(path, "wb" if kind == "write" else "ab") as file:
            file.write(bytes([size % 255 + 1]) * size)
    elif path.exists():
        if kind == "sync":
            sync(path)
        elif kind == "resize":
            os.truncate(path, size)
        elif kind == "rename":
            path.rename(other)
        elif kind == "link" and not other.exists():
            os.link(path, other)
        elif kind == "remove":
            path.unlink()


@pytest.mark.slow
@settings(max_examples=12)
@given(steps=st.lists(STEPS, max_size=12), random=st.randoms(use_true_random=False))
@example(steps=[("write", "a", "a", 0), ("rename", "a", "f/b", 0), ("rename", "f/b", "a", 0)], random=Random(0))
def test_what_was_synced_survives_and_all_of_it_may(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str, int]], random: Random
) -> None:
    folder = tmp_path_factory.mktemp("disk")
    (folder / "f").mkdir()
    with recorded_disk(folder) as disk:
        states = [content_of(folder)]
        for kind, name, other, size in steps:
            step(kind, folder / name, folder / other, size)
            disk.note(None)
            states.append(content_of(folder))
        for path in (*(path for path in folder.rglob("*") if path.is_file()), folder, folder / "f"):
            sync(path)
        disk.note("synced")
    check(disk, random, folder, states)


def check(disk: DiskRecording, random: Random, folder: Path, states: list[dict[str, bytes | None]]) -> None:
    found = []
    for loss in disk.losses():
        found.append({path: content if isinstance(content, bytes) else None for path, content in loss.tree.items()})
        if "synced" in loss.notes:
            assert found[-1] == states[-1]
    # Each state in which the folder has been is one that is found, and in this order.
    rest = iter(found)
    distinct = [state for state, before in zip(states, [None, *states], strict=False) if state != before]
    assert all(any(state == other for other in rest) for state in distinct)
    loss = disk.random_loss(random)
    loss.restore()
    assert f"after {loss.num_operations} operations" in str(loss)
    assert "synced" not in loss.notes or content_of(folder) == states[-1]
