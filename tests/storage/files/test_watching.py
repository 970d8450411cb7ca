"""Listings by what the kernel reports, against complete ones; and that a look at unchanged files makes nothing for each of them."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from modyn import _core
from modyn.storage.files.file_system import Listing, Roots
from modyn.storage.files.local import LocalFiles, mounts_about
from modyn.storage.formats import build_format
from modyn.storage.model.file_table import FileRow, FileTable

IMAGES = build_format("SingleSampleFileWrapper", {"file_extension": ".png", "label_file_extension": ".label"})


def can_be_watched(folder: Path) -> bool:
    watch = _core.FolderWatch()
    _core.FolderScan(folder, "", "", 1, _core.KnownFiles(), watch).enter("")
    return watch.holds


def content(listing: Listing) -> tuple[object, ...]:
    files = listing.files
    columns = files.paths, files.sizes.tolist(), files.mtimes_ns.tolist(), files.changed_ns.tolist()
    return columns, listing.refused, listing.absent.tolist()


def index(table: FileTable, listing: Listing) -> None:
    """Take all files of the listing as they are."""
    ids = table.ids(listing.files.paths).tolist()
    rows = [FileRow(i, file.path, file.size, file.mtime_ns, file.size, 1, "") for i, file in zip(ids, listing.files, strict=True)]
    table.change(row for row in rows if row.file_id >= 0)
    new = (row for row in rows if row.file_id < 0)
    table.add(row._replace(file_id=file_id) for file_id, row in enumerate(new, len(table)))


folders = st.sampled_from(["", "a", "a/b", "c"])
names = st.sampled_from(["1.png", "1.label", "2.png", "other"])
steps = st.one_of(
    st.tuples(st.sampled_from(["write", "append", "touch", "remove", "link"]), folders, names),
    st.tuples(
        st.sampled_from(["make folder", "touch folder", "remove folder", "replace base", "look", "look at all", "index"]),
        folders,
        st.just(""),
    ),
    st.tuples(st.just("hard link"), folders, st.sampled_from(["1.png", "2.png"])),
    st.tuples(st.sampled_from(["rename", "rename folder"]), folders, st.sampled_from(["2.png", "a", "c", "a/d"])),
)


def change(base: Path, kind: str, folder: str, name: str) -> None:
    path = base / folder / name
    try:
        match kind:
            case "write":
                path.write_bytes(b"x" * (os.stat(path).st_size + 1 if path.exists() else 1))
            case "append":
                with path.open("ab") as file:
                    file.write(b"yy")
            case "touch" | "touch folder":
                os.utime(path, ns=(5, os.stat(path).st_mtime_ns + 1))
            case "remove":
                path.unlink()
            case "link":
                path.symlink_to(base / "a")
            case "hard link":
                os.link(base / "a" / "1.png", path)
            case "make folder":
                path.mkdir(parents=True)
            case "remove folder":
                shutil.rmtree(path)
            case "replace base":
                shutil.copytree(base, f"{base}-new", symlinks=True)
                base.rename(f"{base}-old")
                Path(f"{base}-new").rename(base)
                shutil.rmtree(f"{base}-old")
            case "rename":
                (base / folder / "1.png").rename(path)
            case "rename folder":
                (base / folder).rename(base / name)
    except OSError:
        pass  # There is no such file or folder now, or another one in its place.


@settings(max_examples=3 * settings().max_examples)
@given(steps=st.lists(steps, min_size=5, max_size=40))
@example(steps=[("look", "", ""), ("write", "a", "1.png"), ("touch folder", "a", "")])
@example(
    steps=[("write", "a", "1.png"), ("index", "", ""), ("hard link", "c", "2.png"), ("index", "", ""), ("append", "c", "2.png")]
)
def test_a_listing_of_what_changed_is_a_complete_one(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str]]
) -> None:
    base = tmp_path_factory.mktemp("watched") / "base"
    for folder in ("a/b", "c"):
        (base / folder).mkdir(parents=True)
    watching, table = LocalFiles(str(base)), FileTable()
    for kind, folder, name in [*steps, ("look", "", "")]:
        change(base, kind, folder, name)
        if kind in {"look", "look at all", "index"} and base.exists():
            everything = LocalFiles(str(base)).list_files(IMAGES.names(), Roots(), table)
            listing = watching.list_files(IMAGES.names(), Roots(), table, complete=kind == "look at all")
            assert content(listing) == content(everything)
            if kind == "index":
                index(table, listing)


def test_a_write_through_a_name_of_the_file_elsewhere_is_seen(tmp_path: Path) -> None:
    base, elsewhere = tmp_path / "base", tmp_path / "other.png"
    base.mkdir()
    elsewhere.write_bytes(b"1")
    os.link(elsewhere, base / "a.png")
    files, table = LocalFiles(str(base)), FileTable()
    for _ in range(2):  # what was indexed by the look before is looked at again
        index(table, files.list_files(IMAGES.names(), Roots(), table, complete=False))
    elsewhere.write_bytes(b"12")
    assert files.list_files(IMAGES.names(), Roots(), table, complete=False).files.sizes.tolist() == [2]


def test_only_mounts_that_a_folder_can_notice_count() -> None:
    """Such a mount is at the folder, above or below it. Any other (a USB stick, a container) would only force a complete look."""
    points = "/", "/data", "/data/my\\040set", "/data/my\\040set/new", "/data/my", "/data/my\\040set2", "/proc"
    lines = [f"{i} 1 8:1 / {point} rw - ext4 /dev/sda1 rw".encode() for i, point in enumerate(points)]
    assert mounts_about("/data/my set", b"\n".join(lines) + b"\n") == b"\n".join(lines[:4])


def test_nothing_is_looked_at_where_nothing_changed(tmp_path: Path) -> None:
    """The kernel's report is all there is to know: a file whose change it cannot report is found by the next complete listing."""
    if not can_be_watched(tmp_path):
        pytest.skip("the temporary folder is on a file system that other machines may write to")
    (tmp_path / "a.png").write_bytes(b"1")
    files, table = LocalFiles(str(tmp_path)), FileTable()
    index(table, files.list_files(IMAGES.names(), Roots(), table, complete=False))
    assert content(files.list_files(IMAGES.names(), Roots(), table, complete=False)) == content(
        files.list_files(IMAGES.names(), Roots(), table)
    )
    table.change([FileRow(0, "a.png", 2, 0, 2, 1, "")])  # As if it had changed without a report.
    assert files.list_files(IMAGES.names(), Roots(), table, complete=False).files.paths == []
    assert files.list_files(IMAGES.names(), Roots(), table).files.paths == ["a.png"]


def lines_of(call: Callable[[], object]) -> int:
    """Lines of Python that `call` runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def traced_bytes(call: Callable[[], object]) -> int:
    """The most bytes of Python's objects that `call` holds at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def resident_bytes(call: Callable[[], object]) -> int:
    """How much larger the process gets while `call` runs, also by what C++ holds."""
    Path("/proc/self/clear_refs").write_text("5")  # forgets the largest memory so far
    before = peak()
    call()
    return peak() - before


def peak() -> int:
    """The largest resident memory of the process, in bytes, since it was forgotten last."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def fill(base: Path, num_files: int) -> None:
    for first in range(0, num_files, 1000):
        folder = base / f"{first:08d}"
        folder.mkdir(parents=True)
        descriptor = os.open(folder, os.O_RDONLY)
        for i in range(min(1000, num_files - first)):
            os.mknod(f"{i}.png", dir_fd=descriptor)
        os.close(descriptor)


def longest_hold(call: Callable[[], object]) -> float:
    """The longest time that another thread of Python did not run while `call` did, as a share of the whole call."""
    ticks, ended = [time.perf_counter()], threading.Event()

    def tick() -> None:
        while not ended.is_set():
            ticks.append(time.perf_counter())
            time.sleep(1e-4)  # asks for the interpreter again

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        started = time.perf_counter()
        call()
        stopped = time.perf_counter()
    finally:
        ended.set()
        ticking.join()
    inside = [started, *(tick for tick in ticks if started < tick < stopped), stopped]
    return max(later - earlier for earlier, later in pairwise(inside)) / (stopped - started)


@pytest.mark.parametrize("num_files", [20_000, pytest.param(1_000_000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])])
def test_other_threads_run_while_unchanged_files_are_looked_at(tmp_path: Path, num_files: int) -> None:
    """A sort holds the interpreter from its beginning to its end; the best of three looks, as other programs interrupt them."""
    fill(tmp_path / "many", num_files)
    files, table = LocalFiles(str(tmp_path / "many")), FileTable()
    index(table, files.list_files(IMAGES.names(), Roots(), table))
    numbers = np.random.default_rng(0).random(500_000).tolist()
    assert longest_hold(lambda: sorted(numbers)) > 0.8
    assert min(longest_hold(lambda: files.list_files(IMAGES.names(), Roots(), table)) for _ in range(3)) < 0.4
    shutil.rmtree(tmp_path / "many")


@pytest.mark.parametrize("num_files", [5_000, pytest.param(1_000_000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])])
def test_a_look_at_unchanged_files_makes_nothing_for_each_of_them(tmp_path: Path, num_files: int) -> None:
    """No line of Python runs and no object is made for a file, so the interpreter's lock is not held longer. C++ takes some bytes for each file."""
    fill(tmp_path / "few", 100)
    fill(tmp_path / "many", num_files)
    few, few_table = LocalFiles(str(tmp_path / "few")), FileTable()
    index(few_table, few.list_files(IMAGES.names(), Roots(), few_table, complete=False))
    files, table = LocalFiles(str(tmp_path / "many")), FileTable()
    index(table, files.list_files(IMAGES.names(), Roots(), table, complete=False))
    assert len(table) == num_files
    found: list[Listing] = []

    def least(measure: Callable[[Callable[[], object]], int], call: Callable[[], object]) -> int:
        """Return the cost of `call` alone: the minimum of several calls leaves out costs of other threads, mounts and the garbage collector."""
        return min(measure(call) for _ in range(3))

    for complete in (True, False):

        def look(complete: bool = complete) -> None:
            found.append(files.list_files(IMAGES.names(), Roots(), table, complete=complete))

        # A look reads the machine's mounts, of which there may be many: what files take is what is more than for a few of them.
        base = least(lines_of, lambda: few.list_files(IMAGES.names(), Roots(), few_table, complete=complete))  # noqa: B023
        assert least(lines_of, look) < base + 500
        assert least(traced_bytes, look) < 256 << 10
        assert least(resident_bytes, look) < (32 << 20) + 64 * num_files
    assert all(not len(listing.files) and not len(listing.absent) for listing in found)
    assert np.array_equal(table.ids([f"{num_files - 1000:08d}/999.png"]), [num_files - 1]) or num_files > 1000
    shutil.rmtree(tmp_path / "many")
