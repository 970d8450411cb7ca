"""Which files are ripe, and how a folder is looked at: decisions without a service."""

from __future__ import annotations

import os
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import SecurityError
from modyn.storage.files.file_system import LocalFiles
from modyn.storage.files.listing import Roots, SeenFile, SeenFiles, list_files
from modyn.storage.files.stability import COMPANION_WAIT_S, StabilityTracker
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FileFormat
from modyn.storage.index.segment_index import SEGMENT_ROWS
from modyn.storage.ingest.segment_writer import merge_run
from modyn.storage.model.file_table import FileRow, FileTable

BINARY = build_format("BinaryFileWrapper", {"record_size": 16, "label_size": 8})
FOLDER = LocalFiles("/d")
IMAGES = build_format("SingleSampleFileWrapper", {"file_extension": ".png", "label_file_extension": ".label"})


def seen(name: str, mtime_s: float, size: int = 16) -> SeenFile:
    return SeenFile(name, size, int(mtime_s * 1e9))


def stable(
    tracker: StabilityTracker, folder: LocalFiles, files: list[SeenFile], file_format: FileFormat, now: float, tick: float
) -> tuple[list[SeenFile], dict[str, str]]:
    ready, late = tracker.stable(folder, SeenFiles.of(files), file_format.companions, now, tick)
    return list(ready), late


def test_old_files_are_stable_at_once_and_young_ones_after_the_settle_time() -> None:
    tracker = StabilityTracker(2.0)
    old, young = seen("old", 100), seen("young", 999)
    assert stable(tracker, FOLDER, [old, young], BINARY, now=1000, tick=50)[0] == [old]
    assert tracker.num_unstable == 1
    assert stable(tracker, FOLDER, [young], BINARY, now=1000.9, tick=50.9)[0] == []
    assert stable(tracker, FOLDER, [young], BINARY, now=1001.1, tick=51.1)[0] == [young]
    assert tracker.num_unstable == 0


def test_a_file_that_keeps_changing_waits() -> None:
    tracker = StabilityTracker(2.0)
    for i in range(10):
        file = seen("f", 1000 + i, size=i)
        assert stable(tracker, FOLDER, [file], BINARY, now=1000.5 + i, tick=i)[0] == []
    assert stable(tracker, FOLDER, [seen("f", 1009, size=9)], BINARY, now=1011.5, tick=12)[0] != []


def test_a_file_from_the_future_is_stable_when_it_rested() -> None:
    tracker = StabilityTracker(2.0)
    future = seen("f", 9000)
    assert stable(tracker, FOLDER, [future], BINARY, now=1000, tick=0)[0] == []
    assert stable(tracker, FOLDER, [future], BINARY, now=1001, tick=1)[0] == []
    assert stable(tracker, FOLDER, [future], BINARY, now=1002, tick=2)[0] == [future]


def test_a_companion_must_be_there_and_rest_too(tmp_path: Path) -> None:
    tracker = StabilityTracker(2.0)
    image = seen("a.png", 100)
    ready, late = stable(tracker, LocalFiles(str(tmp_path)), [image], IMAGES, now=101, tick=1)
    assert (ready, late, tracker.num_unstable) == ([], {}, 0)
    ready, late = stable(tracker, LocalFiles(str(tmp_path)), [image], IMAGES, now=101, tick=1.1 + COMPANION_WAIT_S)
    assert ready == []
    assert "a.label" in late["a.png"]
    (tmp_path / "a.label").touch()
    os.utime(tmp_path / "a.label", (200, 200))
    assert stable(tracker, LocalFiles(str(tmp_path)), [image], IMAGES, now=200.5, tick=10)[0] == []
    assert tracker.num_unstable == 1
    assert stable(tracker, LocalFiles(str(tmp_path)), [image], IMAGES, now=202.5, tick=12)[0] == [image]


def test_what_is_to_be_done_with_a_file() -> None:
    table = FileTable([FileRow(0, "a", 16, 5, 16, 1, "f"), FileRow(1, "b", 16, 5, 16, 1, "f", altered=True)])

    def compared(*files: SeenFile) -> list[list[int]]:
        found = table.compare(*SeenFiles.of(files).columns)
        return [column.tolist() for column in (found.new, found.changed, found.unchanged, found.absent)]

    assert compared(SeenFile("a", 16, 5), SeenFile("b", 16, 5), SeenFile("c", 16, 5)) == [[2], [1], [0], []]
    assert compared(SeenFile("a", 16, 6)) == [[], [0], [], [1]]
    assert compared(SeenFile("a", 32, 5)) == [[], [0], [], [1]]
    assert compared() == [[], [], [], [0, 1]]
    table.change([FileRow(1, "b", 16, 5, 16, 1, "f"), FileRow(0, "a", 32, 6, 32, 2, "g")])
    assert compared(SeenFile("b", 16, 5), SeenFile("a", 32, 6)) == [[], [], [0, 1], []]
    with pytest.raises(ValueError, match="does not follow"):
        table.add([FileRow(3, "d", 1, 1, 1, 1, "")])
    assert [len(column) for column in astuple(FileTable().compare(*SeenFiles.of([]).columns))] == [0, 0, 0, 0]


def test_files_are_listed_in_one_order(tmp_path: Path) -> None:
    for name, mtime in (("z/a.bin", 10), ("b.bin", 20), ("a.bin", 20), ("c.txt", 5)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (mtime, mtime))
    assert [file.path for file in list_files(str(tmp_path), BINARY.names(), Roots()).files] == ["z/a.bin", "a.bin", "b.bin"]


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


@given(st.lists(st.integers(1, 3 * SEGMENT_ROWS // 2), max_size=100))
def test_merging_keeps_segments_few_and_bounded(added: list[int]) -> None:
    sizes: list[int] = []
    for size in added:
        sizes.append(min(size, SEGMENT_ROWS))
        before = sum(sizes)
        while run := merge_run(sizes):
            sizes[-run:] = [sum(sizes[-run:])]
        assert sum(sizes) == before
        assert max(sizes) <= SEGMENT_ROWS


def test_many_single_samples_make_few_segments() -> None:
    sizes: list[int] = []
    rewritten = 0
    for _ in range(20_000):
        sizes.append(1)
        while run := merge_run(sizes):
            rewritten += sum(sizes[-run:])
            sizes[-run:] = [sum(sizes[-run:])]
    assert len(sizes) <= 80
    assert rewritten <= 5 * 20_000
