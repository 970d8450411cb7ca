"""Faults of reading from a bucket: objects that are replaced during a copy, a full temporary folder, a killed process.

The bucket of these tests is a store in memory.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.store import MemoryStore

from modyn._core import FileChangedError
from modyn.errors import DataError
from modyn.storage.files import local_copies
from modyn.storage.files.bucket import BucketFiles
from modyn.storage.files.file_system import IndexedVersion, Roots, SeenFile, UnusableNowError
from modyn.storage.files.local_copies import LocalCopies, sweep
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FormatConfig, FormatResume
from modyn.storage.ingest.file_indexer import ChangedError, FileJob
from modyn.storage.model.file_table import FileTable
from modyn.storage.model.samples import IndexedSamples
from modyn.testing.waiting import eventually
from tests.support.running_storage import RunningStorage, binary_dataset
from tests.support.unruly_formats import UnrulyTogether

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


def test_a_refused_row_of_an_object_names_its_line(files: BucketFiles, bucket: MemoryStore) -> None:
    floats = build_format("CsvFileWrapper", {"label_index": 0, "label_type": "float"})
    put(bucket, "a.csv", b"1,one\n2,two\nnan,three\n")
    (seen,) = listed(files)
    with pytest.raises(DataError, match=r"^s3://bucket/rows/a\.csv, line 3 at byte 12: the label nan is not a finite number"):
        list(FileJob(files, floats, seen).samples())


def test_an_object_that_is_replaced_while_it_is_indexed_is_left_to_the_next_look(
    files: BucketFiles, bucket: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new object has the same size and second: only its tag shows the difference."""
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


def test_a_small_object_that_is_replaced_after_it_was_listed_has_no_copy(files: BucketFiles, bucket: MemoryStore) -> None:
    put(bucket, "a.csv", b"1,one\n")
    put(bucket, "b.csv", b"2,two\n")
    first, second = (files.full_path(seen.path) for seen in listed(files))
    put(bucket, "b.csv", b"3,six\n")
    with LocalCopies(files) as copies:
        copies.add_small([first, second])
        assert Path(copies.local(first)).read_bytes() == b"1,one\n"
        assert not os.path.exists(copies.local(second))
        assert [(path, type(error)) for path, error in copies.errors.items()] == [(second, FileChangedError)]


class Replacing(BucketFiles):
    """A bucket in which objects are replaced once, right before they are read: with as many bytes."""

    bucket: MemoryStore
    to_replace: dict[str, bytes]

    def read(self, path: str, start: int = 0, stop: int | None = None, indexed: IndexedVersion | None = None) -> memoryview:
        if (content := self.to_replace.pop(os.path.basename(path), None)) is not None:
            put(self.bucket, os.path.basename(path), content)
        return super().read(path, start, stop, indexed)


def test_a_small_object_that_is_replaced_while_it_is_copied_is_left_to_the_next_look(
    storage: RunningStorage, bucket: MemoryStore, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    storage.client.register_dataset(binary_dataset(tmp_path / "data", "unruly"))
    dataset = storage.store.dataset("unruly")
    folder = Replacing("s3://bucket/rows", make_store=lambda url, limits: bucket)
    folder.bucket, folder.to_replace = bucket, {"b.u": b"3"}
    dataset.format, dataset.filesystem = UnrulyTogether(FormatConfig()), folder
    put(bucket, "a.u", b"1")
    put(bucket, "b.u", b"2")

    def is_complete() -> bool:
        assert storage.ingest("unruly").problems == 0
        return storage.client.dataset("unruly").num_samples == 2

    eventually(is_complete)
    assert is_complete(), "a later look finds them as they were indexed"
    assert sorted(storage.client.samples_by_key("unruly", np.arange(2)).labels.tolist()) == [1, 3]
    folder.requests.shutdown()


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
