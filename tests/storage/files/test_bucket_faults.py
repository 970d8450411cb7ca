"""What a bucket makes hard: objects that are replaced while they are copied, a full temporary folder, a process that was killed.

The bucket of these tests is a store in memory.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from modyn.errors import DataError
from modyn.storage.files import local_copies
from modyn.storage.files.bucket import BucketFiles
from modyn.storage.files.file_system import Roots, SeenFile, UnusableNowError
from modyn.storage.files.local_copies import LocalCopies, sweep
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FormatResume
from modyn.storage.ingest.file_indexer import ChangedError, FileJob
from modyn.storage.model.file_table import FileTable
from modyn.storage.model.samples import IndexedSamples

CSV = build_format("CsvFileWrapper", {"label_index": 0})


@pytest.fixture
def bucket() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def files(bucket: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketFiles]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    files = BucketFiles("s3://bucket/rows", make_store=lambda url, limits: bucket)
    yield files
    files.requests.shutdown()


def put(bucket: MemoryStore, name: str, content: bytes) -> None:
    obstore.put(bucket, f"rows/{name}", content)


def listed(files: BucketFiles) -> list[SeenFile]:
    return list(files.list_files(CSV.names(), Roots(), FileTable()).files)


def test_an_object_that_is_replaced_while_it_is_indexed_is_left_to_the_next_look(
    files: BucketFiles, bucket: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same second and with the same size: only its tag shows it."""
    put(bucket, "a.csv", b"1,one\n")
    (seen,) = listed(files)
    assert [chunk.labels.tolist() for chunk in FileJob(files, CSV, seen).samples()] == [[1]]
    index = type(CSV).index

    def replaced(self: Any, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        put(bucket, "a.csv", b"2,two\n")
        return index(self, path, resume)

    with monkeypatch.context() as patch:
        patch.setattr(type(CSV), "index", replaced)
        with pytest.raises(ChangedError):
            list(FileJob(files, CSV, seen).samples())
    put(bucket, "a.csv", b"3,more\n")
    with pytest.raises(ChangedError):
        list(FileJob(files, CSV, seen).samples())
    obstore.delete(bucket, "rows/a.csv")
    with pytest.raises(ChangedError):
        list(FileJob(files, CSV, seen).samples())


def test_an_object_for_which_there_is_no_room_is_a_problem_of_its_own(
    files: BucketFiles, bucket: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, "a.csv", b"1,one\n")
    (seen,) = listed(files)

    def full(self: BucketFiles, path: str, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(BucketFiles, "copy", full)
    with pytest.raises(UnusableNowError, match="no room for it in the temporary folder; set TMPDIR"):
        list(FileJob(files, CSV, seen).samples())


def test_copies_are_gone_when_they_were_indexed(files: BucketFiles, bucket: MemoryStore, tmp_path: Path) -> None:
    put(bucket, "a.csv", b"1,one\n")
    (seen,) = listed(files)
    for chunk in FileJob(files, CSV, seen).samples():
        assert len(chunk) == 1
        (own,) = (tmp_path / "tmp").iterdir()
        os.utime(own, (1000, 1000))
        sweep(tmp_path / "tmp")
        assert own.exists(), "another process does not sweep it while it is used"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_temporary_folder_is_swept_once_a_minute(files: BucketFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Path] = []
    monkeypatch.setattr(local_copies, "sweep", swept.append)
    for now, times in (0.0, 1), (59.0, 1), (60.0, 2):
        monkeypatch.setattr("time.monotonic", lambda now=now: now)
        with LocalCopies(files):
            pass
        assert swept == [tmp_path / "tmp"] * times


def test_copies_that_cannot_be_locked_leave_nothing(files: BucketFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(DataError, match="No locks available"):
        LocalCopies(files)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert os.listdir("/proc/self/fd") == before


def test_what_a_killed_process_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    for name in ("modyn-bucket-killed", "modyn-bucket-old", "modyn-bucket-used", "modyn-bucket-young", "other"):
        (tmp_path / name / "copies").mkdir(parents=True)
    for name in ("modyn-bucket-killed", "modyn-bucket-used"):
        (tmp_path / name / "in-use").touch()
    for name in ("modyn-bucket-killed", "modyn-bucket-old", "modyn-bucket-used", "other"):
        os.utime(tmp_path / name, (1000, 1000))
    with open(tmp_path / "modyn-bucket-used" / "in-use", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["modyn-bucket-used", "modyn-bucket-young", "other"]
