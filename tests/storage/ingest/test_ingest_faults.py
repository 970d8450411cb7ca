"""Ingestion of files that change while they are read, and of files that are temporarily unreadable."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modyn.errors import UnavailableError
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats.base import FileFormat, FormatConfig, FormatResume
from modyn.storage.formats.binary import BinaryFormat
from modyn.storage.formats.csv import CsvFormat
from modyn.storage.ingest import file_indexer
from modyn.storage.ingest.file_indexer import beginning
from modyn.storage.ingest.ingestion import ingest
from modyn.storage.ingest.limits import IngestLimits
from modyn.storage.model.samples import IndexedSamples
from tests.support.running_storage import RunningStorage, binary_dataset, files_dataset, image_dataset, write_image, write_records


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def look(storage: RunningStorage, name: str = "numbers") -> None:
    """Scan the folder once, like a watcher."""
    storage.store._scan(storage.store.dataset(name))


def while_indexed(monkeypatch: pytest.MonkeyPatch, kind: type[FileFormat], act: Callable[[Path], None], times: int = 1) -> None:
    """Calls `act` with the file's path when its samples were found, before it is remembered what they were found in."""
    index = kind.index
    left = [times]

    def indexed(self: FileFormat, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        yield from index(self, path, resume)
        if left[0]:
            left[0] -= 1
            act(Path(path))

    monkeypatch.setattr(kind, "index", indexed)


@pytest.mark.parametrize("limits", [IngestLimits(), IngestLimits(held_samples=1, growing_bytes=1)], ids=["small", "large"])
def test_a_file_that_is_rewritten_while_it_is_indexed_is_left_to_the_next_look(
    storage: RunningStorage, data: Path, monkeypatch: pytest.MonkeyPatch, limits: IngestLimits
) -> None:
    """An ingestion on request looks again by itself."""
    write_records(data / "a.bin", range(5), 1000)
    storage.client.register_dataset(binary_dataset(data))
    storage.store.dataset("numbers").limits = limits
    while_indexed(monkeypatch, BinaryFormat, lambda path: write_records(path, range(65, 70), 2000))
    look(storage)
    assert storage.client.dataset("numbers").next_key == 0
    assert storage.reasons() == {}
    look(storage)
    assert storage.client.samples_by_key("numbers", np.arange(5)).labels.tolist() == [5, 6, 7, 8, 9]
    assert storage.data_of(range(5)) == list(range(65, 70))
    write_records(data / "b.bin", range(5), 1000)
    while_indexed(monkeypatch, BinaryFormat, lambda path: write_records(path, range(75, 80), 2000))
    assert storage.ingest().samples_indexed == 5
    assert storage.data_of(range(5, 10)) == list(range(75, 80))


@pytest.mark.parametrize("large", [False, True])
def test_what_is_appended_while_a_large_file_is_indexed_does_not_put_it_off(
    storage: RunningStorage, data: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    write_records(data / "a.bin", range(5), 1000)
    storage.client.register_dataset(binary_dataset(data))
    if large:
        storage.store.dataset("numbers").limits = IngestLimits(growing_bytes=1)
    while_indexed(monkeypatch, BinaryFormat, lambda path: write_records(path, range(5, 7), 2000, mode="ab"))
    look(storage)
    assert storage.client.dataset("numbers").next_key == (5 if large else 0)
    look(storage)
    assert storage.data_of(range(7)) == list(range(7))


def test_a_large_file_is_indexed_up_to_the_size_it_was_seen_with(
    storage: RunningStorage, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a row that stands after it by then would have the wrong label for good."""
    path = data / "a.csv"
    path.write_bytes(b"1,a\n2,b\n3,c")
    os.utime(path, (1000, 1000))
    storage.client.register_dataset(files_dataset(data, name="rows"))
    storage.store.dataset("rows").limits = IngestLimits(growing_bytes=1)
    index = CsvFormat.index

    def appended_first(self: CsvFormat, file: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        if resume is None:
            path.write_bytes(b"1,a\n2,b\n3,c3\n12")
            os.utime(path, (2000, 2000))
        return index(self, file, resume)

    monkeypatch.setattr(CsvFormat, "index", appended_first)
    look(storage, "rows")
    assert storage.client.samples_by_key("rows", np.arange(2)).labels.tolist() == [1, 2]
    assert storage.client.dataset("rows").next_key == 2
    path.write_bytes(b"1,a\n2,b\n3,c3\n123,d\n")
    os.utime(path, (3000, 3000))
    look(storage, "rows")
    batch = next(storage.payloads.fetch("rows", np.arange(4)))
    assert [bytes(batch.payload(i)) for i in range(4)] == [b"1,a", b"2,b", b"3,c3", b"123,d"]
    assert batch.labels.tolist() == [1, 2, 3, 123]


@pytest.mark.parametrize("num_bytes", range(15))
def test_the_beginning_of_a_chunk_is_the_rows_that_are_in_it(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"1,a\n\n22,b\n3,c\n")
    rows = CsvFormat(CsvFormat.Config(label_index=0))
    (chunk,) = rows.index(str(path))
    part = beginning(rows, chunk, num_bytes)
    expected = [label for label, end in ((1, 3), (22, 9), (3, 13)) if end <= num_bytes]
    assert (part.labels.tolist() if part else []) == expected
    if part is not None:
        assert part.end == {1: min(num_bytes, 5), 2: min(num_bytes, 10), 3: min(num_bytes, 14)}[len(expected)]


def test_a_format_that_does_not_tell_where_rows_begin_waits_for_the_end_of_growing(
    storage: RunningStorage, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BinaryFormat, "row_begin", lambda self, offset: None)
    write_records(data / "a.bin", range(5), 1000)
    storage.client.register_dataset(binary_dataset(data))
    storage.store.dataset("numbers").limits = IngestLimits(growing_bytes=1)
    watching = file_indexer.watching

    @contextmanager
    def grown(*arguments: Any) -> Iterator[None]:
        with watching(*arguments):
            if os.path.getsize(data / "a.bin") == 5 * 16:
                write_records(data / "a.bin", [5], 2000, mode="ab")
            yield

    monkeypatch.setattr(file_indexer, "watching", grown)
    look(storage)
    assert storage.client.dataset("numbers").next_key == 0
    look(storage)
    assert storage.data_of(range(6)) == list(range(6))


def test_an_image_that_is_replaced_between_listing_and_indexing_waits(
    storage: RunningStorage, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        write_image(data, str(i), b"first", i, 1000 + i)
    storage.client.register_dataset(image_dataset(data))
    kind = type(storage.store.dataset("images").format)
    index_files = kind.index_files  # type: ignore[attr-defined]

    def replaced(self: FileFormat, paths: list[str]) -> object:
        monkeypatch.setattr(kind, "index_files", index_files)
        write_image(data, "1", b"other", 7, 2000)
        return index_files(self, paths)

    monkeypatch.setattr(kind, "index_files", replaced)
    assert storage.ingest("images").samples_indexed == 3
    assert storage.client.samples_by_key("images", np.arange(3)).timestamps.tolist() == [1000, 1002, 2000]
    assert bytes(next(storage.payloads.fetch("images", np.asarray([2]))).payload(0)) == b"other"
    assert storage.client.problems("images") == []


class Fails(FileFormat):
    """Fails with an error of its own."""

    Config = FormatConfig
    isolated = False
    error: Exception | None = None

    def holds_samples(self, path: str) -> bool:
        return True

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        if isinstance(Fails.error, OSError):
            raise LocalFiles("").read_error(path, Fails.error)
        if Fails.error:
            raise Fails.error
        yield IndexedSamples(np.zeros(1, np.int64), 1, np.zeros(1, np.int64), 5, 1)


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), MemoryError("none left"), KeyError("a bug")])
def test_what_says_nothing_of_the_content_is_tried_again_though_the_file_stays_the_same(
    storage: RunningStorage, data: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    (data / "a").write_bytes(b"x")
    os.utime(data / "a", (1000, 1000))
    storage.client.register_dataset(binary_dataset(data))
    storage.store.dataset("numbers").format = Fails(FormatConfig())
    monkeypatch.setattr(Fails, "error", error)
    look(storage)
    assert list(storage.reasons()) == ["a"]
    monkeypatch.setattr(Fails, "error", None)
    retries = storage.store.dataset("numbers").retries
    monkeypatch.setattr(retries, "is_due", lambda path, tick: False)
    look(storage)
    assert list(storage.reasons()) == ["a"], "not with each look"
    monkeypatch.setattr(retries, "is_due", lambda path, tick: True)
    look(storage)
    assert (storage.reasons(), storage.client.dataset("numbers").num_samples) == ({}, 1)


def test_an_ingestion_on_request_tries_all_that_was_set_aside(storage: RunningStorage, data: Path) -> None:
    (data / "a.csv").write_bytes(b"1,a\n")
    os.utime(data / "a.csv", (1000, 1000))
    assert storage.index(files_dataset(data, {"label_index": 1}, name="rows")).problems == 1
    assert storage.ingest("rows").problems == 0, "told once"
    storage.store.dataset("rows").format = CsvFormat(CsvFormat.Config(label_index=0))
    look(storage, "rows")
    assert storage.client.dataset("rows").num_samples == 0
    assert storage.ingest("rows").samples_indexed == 1
    assert storage.client.problems("rows") == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_for_now(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", range(3), 1000)
    (data / "a.bin").chmod(0)
    assert storage.index(binary_dataset(data)).problems == 1
    (data / "a.bin").chmod(0o600)
    assert storage.ingest().samples_indexed == 3


def test_pauses_between_tries_grow(storage: RunningStorage, data: Path) -> None:
    storage.client.register_dataset(binary_dataset(data))
    retries = storage.store.dataset("numbers").retries
    assert retries.is_due("a", 0.0)
    retries.note_failure("a", 0.0)
    assert (retries.is_due("a", 0.9), retries.is_due("a", 1.0)) == (False, True)
    retries.note_failure("a", 1.0)
    assert (retries.is_due("a", 2.9), retries.is_due("a", 3.0)) == (False, True)
    for _ in range(20):
        retries.note_failure("a", 3.0)
    assert retries.is_due("a", 303.0)
    assert not retries.is_due("a", 302.0)
    retries.keep_only({"b": ""})
    assert retries.is_due("a", 3.0)


class RemovedOnceOpened(LocalFiles):
    """The file `a.bin` is gone once it has been opened."""

    def open(self, path: str, *args: Any) -> pa.NativeFile:
        file = super().open(path, *args)
        if path.endswith("a.bin"):
            os.unlink(path)
        return file


def test_an_indexed_file_that_vanishes_during_a_look_holds_up_no_other(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", range(3), 1000)
    assert storage.index(binary_dataset(data)).samples_indexed == 3
    os.utime(data / "a.bin", (2000, 2000))
    write_records(data / "b.bin", range(3, 5), 1000)
    dataset = storage.store.dataset("numbers")
    dataset.filesystem = RemovedOnceOpened(str(data))
    look(storage)
    assert storage.client.dataset("numbers").num_samples == 5
    row = dataset.catalogue.file(dataset.row.id, 0)
    assert (row.mtime_ns, row.altered) == (1000 * 10**9, False), "nothing is stored of a file that is not as it was listed"
    look(storage)
    assert list(storage.reasons()) == ["a.bin"]


def test_a_file_that_held_nothing_is_indexed_when_it_holds_something(storage: RunningStorage, data: Path) -> None:
    schema = pa.schema([("data", pa.binary()), ("label", pa.int64())])
    pq.write_table(schema.empty_table(), data / "a.parquet")
    options = {"payload_columns": ["data"], "label_column": "label"}
    assert storage.index(files_dataset(data, options, "ParquetFileWrapper", name="rows")).problems == 0
    assert storage.client.dataset("rows").num_files == 1
    pq.write_table(pa.table({"data": [b"x", b"y"], "label": [1, 2]}, schema), data / "a.parquet")
    assert storage.ingest("rows").samples_indexed == 2
    assert (storage.client.problems("rows"), storage.client.dataset("rows").num_files) == ([], 1)
    assert bytes(next(storage.payloads.fetch("rows", np.arange(2))).payload(1)) == b"y"


@pytest.mark.parametrize(
    ("content", "source", "reason"),
    [
        (b"1,5\nnan,5\n", "", "a.csv, line 2 at byte 4: the label nan is not a finite number"),
        (b"-inf,5\n", "", "the label -inf is not a finite number"),
        (b"1,9223372036854775807\n", "column:1", "is most likely not a time in seconds since 1970"),
    ],
)
def test_labels_are_finite_and_times_are_in_intervals(
    storage: RunningStorage, data: Path, content: bytes, source: str, reason: str
) -> None:
    (data / "a.csv").write_bytes(content)
    config = files_dataset(data, {"label_index": 0, "label_type": "float"}, source=source, name="rows")
    assert storage.index(config).samples_indexed == 0
    assert reason in storage.reasons("rows")["a.csv"]


@pytest.mark.parametrize("kind", ["rows", "images"])
def test_a_time_beyond_the_calendar_of_the_index_is_a_problem(storage: RunningStorage, data: Path, kind: str) -> None:
    """The year 2446 fits into a file system, but not into int64 nanoseconds."""
    late = 15_000_000_000
    if kind == "rows":
        (data / "a.csv").write_bytes(b"1,5\n")
        os.utime(data / "a.csv", (late, late))
        storage.client.register_dataset(files_dataset(data, name="rows"))
    else:
        write_image(data, "a", b"image", 1, late)
        storage.client.register_dataset(image_dataset(data))
    assert storage.ingest(kind).samples_indexed == 0
    (reason,) = storage.reasons(kind).values()
    assert "is beyond the years 1677 to 2262; correct it with `touch`" in reason


def test_a_label_file_without_a_finite_number(storage: RunningStorage, data: Path) -> None:
    for i in range(3):
        write_image(data, str(i), b"image", i, 1000 + i)
    (data / "1.label").write_text("nan")
    config = image_dataset(data)
    config = config.model_copy(update={"file_wrapper_config": {**config.file_wrapper_config, "label_type": "float"}})
    assert storage.index(config).samples_indexed == 2
    assert "the label nan is not a finite number" in storage.reasons("images")["1.png"]


def test_a_folder_that_is_not_mounted_is_one_problem(storage: RunningStorage, data: Path, tmp_path: Path) -> None:
    for i in range(5):
        write_records(data / f"{i}.bin", [i], 1000 + i)
    storage.index(binary_dataset(data))
    data.rename(tmp_path / "elsewhere")
    data.mkdir()
    assert storage.ingest().problems == 1
    assert storage.ingest().problems == 0, "told once"
    assert "none of the 5 files that are indexed is there; mount the folder" in storage.reasons()["data"]
    data.rmdir()
    (tmp_path / "elsewhere").rename(data)
    storage.ingest()
    assert storage.client.problems("numbers") == []
    (data / "3.bin").unlink()
    storage.ingest()
    assert list(storage.reasons()) == ["3.bin"]


def test_files_below_a_folder_that_may_not_be_read_are_not_gone(
    storage: RunningStorage, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(5):
        write_records(data / "sub" / "deep" / f"{i}.bin", [i], 1000 + i)
    write_records(data / "own.bin", [5], 2000)
    storage.index(binary_dataset(data))
    dataset = storage.store.dataset("numbers")
    files = dataset.filesystem
    listed = files.list_files

    def refused(*arguments: object, **options: object) -> object:
        listing = listed(*arguments, **options)  # type: ignore[arg-type]
        below = [dataset.files.id_of(f"sub/deep/{i}.bin") for i in range(5)]
        return type(listing)(listing.files, {"sub": "it cannot be looked at"}, np.sort(np.array(below, np.int64)))

    with monkeypatch.context() as patch:
        patch.setattr(files, "list_files", refused)
        for _ in range(2):
            storage.ingest()
            assert storage.reasons() == {"sub": "it cannot be looked at"}
    storage.ingest()
    assert storage.client.problems("numbers") == []


def test_waiting_for_an_ingestion_of_the_same_service_has_an_end(storage: RunningStorage, data: Path) -> None:
    storage.client.register_dataset(binary_dataset(data))
    dataset = storage.store.dataset("numbers")
    dataset.limits = IngestLimits(lock_wait_s=0.05)
    with dataset.writing:
        with pytest.raises(UnavailableError, match="ask again later"):
            storage.ingest()
        assert ingest(dataset, storage.store._roots, 1, patient=False).finished


def test_a_file_keeps_its_path_when_another_link_to_its_folder_is_added(
    storage: RunningStorage, data: Path, tmp_path: Path
) -> None:
    write_records(tmp_path / "shared" / "x.bin", [1], 1000)
    (data / "m").symlink_to(tmp_path / "shared")
    storage.index(binary_dataset(data))
    for name in ("a", "z"):
        (data / name).symlink_to(tmp_path / "shared")
    assert storage.ingest().samples_indexed == 0
    assert storage.client.problems("numbers") == []
