"""Listings of folders, compared with `os.walk` and `os.stat`: odd names, links, companion files, vanishing files."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import SecurityError
from modyn.storage.files.file_system import UNKNOWN, NameEndings, Roots, SeenFile, SeenFiles
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FileFormat
from modyn.storage.model.file_table import FileTable

IMAGES = build_format("SingleSampleFileWrapper", {"file_extension": ".png", "label_file_extension": ".label"})
BINARY = build_format("BinaryFileWrapper", {"record_size": 16, "label_size": 8})


class AnyName(type(BINARY)):  # type: ignore[misc]  # a class that is only known here
    """A user's format, of whose names nothing can be said beforehand."""

    def holds_samples(self, path: str) -> bool:
        return len(os.path.basename(path)) % 2 == 1

    def endings(self) -> NameEndings | None:
        return None


def write(path: Path, size: int, mtime_ns: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, ns=(mtime_ns, mtime_ns))


def walked(base: Path, file_format: FileFormat) -> list[tuple[int, bytes, int, int]]:
    """Time, path, size and last change of all files below `base`, without links."""
    found = []
    for folder, _, names in os.walk(base):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.islink(path) or not file_format.holds_samples(path):
                continue
            status = os.stat(path)
            companion_times = [
                os.stat(other).st_mtime_ns if os.path.exists(other) else None for other in file_format.companions(path)
            ]
            times = [status.st_mtime_ns, *(time for time in companion_times if time is not None)]
            changed = UNKNOWN if None in companion_times or file_format.endings() is None else max(times)
            found.append((status.st_mtime_ns, os.fsencode(os.path.relpath(path, base)), status.st_size, changed))
    return sorted(found)


def listed(base: Path, file_format: FileFormat) -> list[tuple[int, bytes, int, int]]:
    files = LocalFiles(str(base)).list_files(file_format.names(), Roots(), FileTable()).files
    columns = (files.mtimes_ns.tolist(), files.paths, files.sizes.tolist(), files.changed_ns.tolist())
    return [(time, os.fsencode(path), size, changed) for time, path, size, changed in zip(*columns, strict=True)]


names = st.binary(min_size=1, max_size=12).filter(lambda name: not set(name) & set(b"/\0") and name not in {b".", b".."})
endings = st.sampled_from([b".png", b".label", b".bin", b""])


@given(
    entries=st.lists(st.tuples(st.lists(names, max_size=2), names, endings, st.integers(0, 50), st.integers(-5, 5)), max_size=12),
    format_=st.sampled_from([IMAGES, BINARY, AnyName(BINARY.config)]),
)
def test_a_listing_is_what_a_walk_finds(
    tmp_path_factory: pytest.TempPathFactory,
    entries: list[tuple[list[bytes], bytes, bytes, int, int]],
    format_: FileFormat,
) -> None:
    base = tmp_path_factory.mktemp("tree")
    for folders, name, ending, size, time in entries:
        path = base.joinpath(*map(os.fsdecode, [*folders, name + ending]))
        try:
            write(path, size, time * 10**9)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue  # A file where a folder is wanted, or the other way round.
    assert listed(base, format_) == walked(base, format_)


def test_a_folder_with_many_files_is_looked_at_by_several_threads(tmp_path: Path) -> None:
    for i in range(2000):
        write(tmp_path / f"{i % 3}" / f"{i}.png", i % 7, i % 11)
        if i % 5:
            write(tmp_path / f"{i % 3}" / f"{i}.label", 1, i % 13)
    assert listed(tmp_path, IMAGES) == walked(tmp_path, IMAGES)


def test_each_folder_is_entered_once_and_links_stay_under_the_roots(tmp_path: Path) -> None:
    base, shared, outside = tmp_path / "root" / "data", tmp_path / "root" / "shared", tmp_path / "outside"
    for path in (base / "own.bin", base / "deep" / "own.bin", shared / "x.bin", outside / "secret.bin"):
        write(path, 16, 10**9)
    (base / "deep" / "up").symlink_to(base)
    (base / "a").symlink_to(shared)
    (base / "b").symlink_to(shared)
    (base / "one.bin").symlink_to(shared / "x.bin")
    (base / "one.txt").symlink_to(shared / "x.bin")
    (base / "secret.bin").symlink_to(outside / "secret.bin")
    (base / "out").symlink_to(outside)
    (base / "nothing.bin").symlink_to(tmp_path / "root" / "nothing")
    (base / "round").symlink_to("round")
    (base / "folder.bin").mkdir()
    os.mkfifo(base / "pipe.bin")
    listing = LocalFiles(str(base)).list_files(BINARY.names(), Roots.of([tmp_path / "root"]), FileTable())
    through_a_link = {"a/x.bin", "b/x.bin"} & set(listing.files.paths)
    assert len(through_a_link) == 1
    assert listing.files.paths == sorted(["deep/own.bin", "one.bin", "own.bin", *through_a_link])
    assert listing.refused.keys() == {"out", "secret.bin", "round"}


def test_a_file_that_vanishes_while_it_is_looked_at_is_not_an_error(tmp_path: Path) -> None:
    write(tmp_path / "stays.bin", 16, 0)
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            for i in range(30):
                write(tmp_path / f"{i}" / "x.bin", 16, 0)
            for i in range(30):
                shutil.rmtree(tmp_path / f"{i}")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(50):
            listing = LocalFiles(str(tmp_path)).list_files(BINARY.names(), Roots(), FileTable())
            assert listing.refused == {}
            assert "stays.bin" in listing.files.paths
    finally:
        stop.set()
        thread.join()


def test_files_of_two_origins_are_in_one_order() -> None:
    first = SeenFiles.of([SeenFile("b", 1, 5), SeenFile("a", 2, 9)])
    both = first.merged_with(SeenFiles.of([SeenFile("a", 3, 5)]))
    assert list(both) == [SeenFile("a", 3, 5), SeenFile("b", 1, 5), SeenFile("a", 2, 9)]
    assert list(both.take(np.array([2, 0]))) == [SeenFile("a", 2, 9), SeenFile("a", 3, 5)]


def test_roots(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "rootless").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "root")
    roots = Roots.of([tmp_path / "link"])
    roots.check(str(tmp_path / "root" / "x"))
    for outside in ("rootless", "root/../rootless", "."):
        with pytest.raises(SecurityError, match="dataset_roots"):
            roots.check(str(tmp_path / outside))
    Roots().check("/anywhere")
