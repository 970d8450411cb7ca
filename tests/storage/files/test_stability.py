"""Decisions whether files are stable, without a service."""

from __future__ import annotations

import os
from pathlib import Path

from modyn.storage.files.file_system import SeenFile, SeenFiles
from modyn.storage.files.local import LocalFiles
from modyn.storage.files.stability import COMPANION_WAIT_S, StabilityTracker
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FileFormat

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
