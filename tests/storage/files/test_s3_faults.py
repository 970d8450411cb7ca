"""What a bucket makes hard: objects that are replaced while they are copied, a full temporary folder, a process that was killed.

The server of these tests is a folder of this machine.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from modyn._core import PathTable
from modyn.errors import DataError, UnavailableError
from modyn.storage.files import local_copies
from modyn.storage.files.file_system import Roots, SeenFile, UnusableNowError
from modyn.storage.files.local_copies import LocalCopies, sweep
from modyn.storage.files.s3 import S3Files
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FormatResume
from modyn.storage.ingest.file_indexer import ChangedError, FileJob
from modyn.storage.model.file_table import FileTable
from modyn.storage.model.samples import IndexedSamples
from modyn.storage.read.record_readers import RecordReaders

CSV = build_format("CsvFileWrapper", {"label_index": 0})


class Opened:
    """An object as it was when it was opened, which its ranges are not: they are asked for one by one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tag = hashlib.md5(path.read_bytes()).hexdigest()
        self._size = path.stat().st_size

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def metadata(self) -> dict[str, str]:
        return {"ETag": self._tag}

    def size(self) -> int:
        return self._size

    def read_at(self, num_bytes: int, at: int) -> bytes:
        return self._path.read_bytes()[at : at + num_bytes]

    def read(self, num_bytes: int = -1) -> bytes:
        return self._path.read_bytes()[: num_bytes if num_bytes >= 0 else None]


class Client:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._local = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())

    def get_file_info(self, asked: Any) -> Any:
        return self._local.get_file_info(asked)

    def open_input_file(self, key: str) -> Opened:
        return Opened(self._folder / key)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "server" / "bucket" / "rows"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def files(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Files]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    files = S3Files("s3://bucket/rows")
    files.__dict__["client"] = Client(tmp_path / "server")
    yield files
    files.requests.shutdown()


def put(bucket: Path, name: str, content: bytes, time: int = 1000) -> None:
    (bucket / name).write_bytes(content)
    os.utime(bucket / name, (time, time))


def listed(files: S3Files) -> list[SeenFile]:
    return list(files.list_files(CSV.names(), Roots(), FileTable()).files)


def test_an_object_that_is_replaced_while_it_is_indexed_is_left_to_the_next_look(
    files: S3Files, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same second and with the same size: only its tag tells."""
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
    put(bucket, "a.csv", b"3,more\n", 2000)
    with pytest.raises(ChangedError):
        list(FileJob(files, CSV, seen).samples())
    (bucket / "a.csv").unlink()
    with pytest.raises(ChangedError):
        list(FileJob(files, CSV, seen).samples())


def test_an_object_for_which_there_is_no_room_is_a_problem_of_its_own(
    files: S3Files, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, "a.csv", b"1,one\n")
    (seen,) = listed(files)

    def full(self: S3Files, path: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(S3Files, "copy", full)
    with pytest.raises(UnusableNowError, match="no room for it in the temporary folder; set TMPDIR"):
        list(FileJob(files, CSV, seen).samples())


def test_copies_are_gone_when_they_were_indexed(files: S3Files, bucket: Path, tmp_path: Path) -> None:
    put(bucket, "a.csv", b"1,one\n")
    (seen,) = listed(files)
    for chunk in FileJob(files, CSV, seen).samples():
        assert len(chunk) == 1
        (own,) = (tmp_path / "tmp").iterdir()
        os.utime(own, (1000, 1000))
        sweep(tmp_path / "tmp")
        assert own.exists(), "another process does not sweep it while it is used"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_temporary_folder_is_swept_once_a_minute(files: S3Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Path] = []
    monkeypatch.setattr(local_copies, "sweep", swept.append)
    for now, times in (0.0, 1), (59.0, 1), (60.0, 2):
        monkeypatch.setattr("time.monotonic", lambda now=now: now)
        with LocalCopies(files):
            pass
        assert swept == [tmp_path / "tmp"] * times


def test_copies_that_cannot_be_locked_leave_nothing(files: S3Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(DataError, match="No locks available"):
        LocalCopies(files)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert os.listdir("/proc/self/fd") == before


def test_what_a_killed_process_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    for name in ("modyn-s3-killed", "modyn-s3-old", "modyn-s3-used", "modyn-s3-young", "other"):
        (tmp_path / name / "copies").mkdir(parents=True)
    for name in ("modyn-s3-killed", "modyn-s3-used"):
        (tmp_path / name / "in-use").touch()
    for name in ("modyn-s3-killed", "modyn-s3-old", "modyn-s3-used", "other"):
        os.utime(tmp_path / name, (1000, 1000))
    with open(tmp_path / "modyn-s3-used" / "in-use", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["modyn-s3-used", "modyn-s3-young", "other"]


@pytest.mark.parametrize(
    ("message", "kind"), [("AWS Error SLOW_DOWN during GetObject", UnavailableError), ("AWS Error ACCESS_DENIED", DataError)]
)
def test_row_groups_tell_trouble_with_the_server_from_a_bad_file(
    files: S3Files, bucket: Path, tmp_path: Path, message: str, kind: type[Exception]
) -> None:
    pq.write_table(pa.table({"data": [b"x"], "label": [1]}), bucket / "a.parquet")
    parquet = build_format("ParquetFileWrapper", {"payload_columns": ["data"], "label_column": "label"})
    paths = PathTable("s3://bucket/rows")
    paths.append_packed(np.frombuffer(b"a.parquet", np.uint8), np.array([9]))
    source = RecordReaders(num_threads=1).open_format(parquet, files, paths)
    files.open = lambda path: _fail(message)  # type: ignore[method-assign]
    with pytest.raises(kind, match=message):
        source.gather(np.zeros(1, np.uint32), np.zeros(1, np.int64), 1)
    assert issubclass(kind, DataError) == ("DENIED" in message)


def _fail(message: str) -> Any:
    raise OSError(message)
