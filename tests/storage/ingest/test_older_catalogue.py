"""Data unknown to one side is never destroyed: for catalogue and index, and for two processes that both believe that they may write."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import obstore
import pytest
from obstore.store import MemoryStore

from modyn.config.system import SystemConfig
from modyn.errors import ConflictError, CorruptStateError
from modyn.storage.catalogue.catalogue import Catalogue, Change, Contents, SegmentRow
from modyn.storage.files.bucket import BucketFiles, tag_of
from modyn.storage.formats import build_format
from modyn.storage.index.segment_file import SegmentColumns, write_segment
from modyn.storage.ingest.fingerprints import fingerprint
from modyn.storage.ingest.format_runner import FormatRunner
from modyn.storage.ingest.open_dataset import QUARANTINE, OpenDataset
from modyn.storage.ingest.rebuild import _UNKNOWN, _complete_row
from modyn.storage.model.file_table import UNKNOWN_TAG, FileRow
from modyn.storage.read.record_readers import RecordReaders
from tests.support.running_storage import RunningStorage, binary_dataset, running_storage, start_storage, write_records


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


Backup = tuple[Contents, list[FileRow]]


def contents_of(storage: RunningStorage) -> Backup:
    catalogue = storage.store.dataset("numbers").catalogue
    contents = catalogue.contents("numbers")
    assert contents is not None
    return contents, catalogue.files(contents.row.id)


def restore(config: SystemConfig, backup: Backup) -> None:
    """Give the database the rows of `backup`."""
    catalogue = Catalogue.open(config)
    contents, files = backup
    row = contents.row
    version = catalogue.version(row.id)
    assert version is not None
    catalogue.replace(row.id, version, row.version, files, contents.segments)
    catalogue.close()


def segments(storage: RunningStorage) -> dict[str, bytes]:
    folder = storage.store.dataset("numbers").folder
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.segment")}


@pytest.fixture
def restored(quick_config: SystemConfig, stack: ExitStack, data: Path) -> RunningStorage:
    """A storage whose database knows the first of three files only."""
    write_records(data / "0.bin", range(10), 1000)
    with running_storage(quick_config) as storage:
        storage.index(binary_dataset(data))
        backup = contents_of(storage)
        for number in (1, 2):
            write_records(data / f"{number}.bin", range(10 * number, 10 * number + 10), 1000 + number)
            storage.ingest()
    restore(quick_config, backup)
    return start_storage(quick_config, stack)


def test_an_older_catalogue_destroys_nothing_and_gives_no_key_again(restored: RunningStorage, data: Path) -> None:
    before = segments(restored)
    write_records(data / "3.bin", range(30, 40), 1003)
    for _ in range(2):
        with pytest.raises(CorruptStateError, match=r"restored from a backup.*`modyn data rebuild numbers`"):
            restored.ingest()
    assert segments(restored) == before
    assert restored.data_of(range(30)) == list(range(30))


def test_the_catalogue_is_rebuilt_from_the_index(restored: RunningStorage, data: Path) -> None:
    info = restored.client.rebuild_dataset("numbers")
    assert (info.num_samples, info.num_files, info.next_key) == (30, 3, 30)
    with (data / "2.bin").open("ab") as file:
        file.write(np.asarray([(1, 30)], [("label", "<i8"), ("data", "<i8")]).tobytes())
    write_records(data / "3.bin", range(31, 40), 1003)
    assert restored.ingest().samples_indexed == 10
    assert sorted(restored.data_of(range(40))) == list(range(40))
    assert restored.client.problems("numbers") == []
    with pytest.raises(ConflictError, match="not older than the index"):
        restored.client.rebuild_dataset("numbers")


def test_a_file_that_was_rewritten_meanwhile_is_found_after_a_rebuild(restored: RunningStorage, data: Path) -> None:
    write_records(data / "1.bin", range(500, 510), 5000)
    restored.client.rebuild_dataset("numbers")
    assert restored.ingest().samples_indexed == 0
    (problem,) = restored.client.problems("numbers")
    assert problem.path == str(data / "1.bin")
    assert "rewritten" in problem.reason


def test_an_object_of_another_version_gets_no_fingerprint_of_a_row_that_is_made_again() -> None:
    """The tag tells versions apart even if size and time are the same."""
    store = MemoryStore()
    files = BucketFiles("s3://b", make_store=lambda url, limits: store)
    obstore.put(store, "a.csv", b"1,one\n")
    status = files.status("s3://b/a.csv")
    assert status is not None
    row = FileRow(0, "a.csv", status.size, status.mtime_ns, status.size, 1, "", tail=tag_of(status.tag))
    rows = build_format("CsvFileWrapper", {"label_index": 0})
    whole = fingerprint(files, "s3://b/a.csv", 6)
    assert _complete_row(files, rows, row).fingerprint == whole
    assert _complete_row(files, rows, row._replace(tail=UNKNOWN_TAG)).fingerprint == whole
    assert _complete_row(files, rows, row._replace(tail=tag_of('"another"'))).fingerprint == _UNKNOWN
    assert _complete_row(files, rows, row._replace(size=3, tail=UNKNOWN_TAG)).fingerprint == _UNKNOWN, "an object does not grow"


def test_an_older_catalogue_is_noticed_while_storage_runs(storage: RunningStorage, data: Path) -> None:
    write_records(data / "0.bin", range(10), 1000)
    storage.client.register_dataset(binary_dataset(data))
    backup = contents_of(storage)
    storage.ingest()
    restore(storage.config, backup)
    write_records(data / "1.bin", range(10, 20), 1001)
    with pytest.raises(CorruptStateError, match="restored from a backup"):
        storage.ingest()
    assert storage.data_of(range(10)) == list(range(10))


def test_segments_that_no_row_names_are_set_aside(quick_config: SystemConfig, stack: ExitStack, data: Path) -> None:
    with running_storage(quick_config) as storage:
        storage.client.register_dataset(binary_dataset(data))
        folder = storage.store.dataset("numbers").folder
    (folder / "stray.segment").write_bytes(b"all there is")
    (folder / "stray.segment.1-2.tmp").write_bytes(b"half of it")
    storage = start_storage(quick_config, stack)
    assert segments(storage) == {f"{QUARANTINE}/stray.segment": b"all there is"}
    assert not list(folder.rglob("*.tmp"))


def segment_of(dataset: OpenDataset, name: str) -> SegmentRow:
    """A complete segment in the dataset's folder of ten samples of file 0, which no row names."""
    column = np.arange(10, dtype=np.int64)
    columns = SegmentColumns(np.zeros(10, np.uint32), 16 * column + 8, np.full(10, 8), column % 10, np.full(10, 1000))
    return SegmentRow(write_segment(dataset.folder / name, 0, columns), name)


def test_a_process_that_lost_its_lock_cannot_commit_what_was_swept(
    storage: RunningStorage, quick_config: SystemConfig, stack: ExitStack, data: Path
) -> None:
    """The first one holds the lock, and its connection breaks before it commits; the second one sweeps and ingests."""
    storage.client.register_dataset(binary_dataset(data))
    write_records(data / "0.bin", range(10), 1000)
    first = storage.store.dataset("numbers")
    others = Catalogue.open(quick_config)
    stack.callback(others.close)
    contents = others.contents("numbers")
    assert contents is not None
    with first.catalogue.database.advisory_lock(f"dataset/{first.row.id}") as held:
        assert held
        segment = segment_of(first, "uncommitted.segment")
        with others.database.raw() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        with others.database.advisory_lock(f"dataset/{first.row.id}") as taken:
            assert taken
            second = OpenDataset(others, first.folder, contents, 0.05, RecordReaders(1), FormatRunner())
            second.refresh()
        with pytest.raises(ConflictError, match="was changed"):
            first.commit(Change(10, [FileRow(0, "0.bin", 160, 1000 * 10**9, 160, 10, "")], segments=[segment]))
    assert storage.ingest().samples_indexed == 10
    assert storage.data_of(range(10)) == list(range(10))
    assert storage.client.dataset("numbers").next_key == 10
