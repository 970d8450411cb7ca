"""Faults while a dataset is published or read are repaired, or reported with their cause."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modyn import _core
from modyn.errors import CorruptStateError, NotFoundError, UnavailableError
from modyn.storage.catalogue.catalogue import DatasetRow
from modyn.storage.ingest.format_runner import FormatRunner
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.publisher import Publisher
from modyn.storage.model.file_table import FileRow, FileTable
from modyn.storage.read.publication import TOMBSTONES, Publication
from modyn.storage.read.published_datasets import PublishedNames
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.snapshot import PublishedDataset
from modyn.testing.waiting import eventually
from tests.support.running_storage import RunningStorage, binary_dataset, row_of, write_records


def table(stamps: dict[str, int]) -> FileTable:
    """Files of one byte with their times."""
    return FileTable(FileRow(i, path, 1, mtime, 1, 1, "", altered=False) for i, (path, mtime) in enumerate(stamps.items()))


def fill(storage: RunningStorage, folder: Path, name: str, first: int) -> None:
    """Ten more samples: the data of each is its key."""
    write_records(folder / name, range(first, first + 10), 1000 + first)
    storage.ingest()


@pytest.mark.parametrize("fails", ["names", "deletions"])
def test_a_look_that_failed_is_repeated_as_a_whole(
    storage: RunningStorage, tmp_path: Path, sources: RecordReaders, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.client.register_dataset(binary_dataset(tmp_path / "d"))
    fill(storage, tmp_path / "d", "0.bin", 0)
    dataset = storage.store.dataset("numbers")
    reader = PublishedDataset(dataset.folder, sources)
    assert reader.snapshot().index.num_samples == 10
    fill(storage, tmp_path / "d", "1.bin", 10)

    def unreadable(path: Path, *_: object) -> None:
        raise UnavailableError(f"cannot read {path}: too many open files")

    broken = "modyn.storage.read.snapshot.map_names" if fails == "names" else "modyn.storage.read.snapshot.Tombstones.open"
    with monkeypatch.context() as patch, pytest.raises(UnavailableError, match="too many open files"):
        patch.setattr(broken, unreadable)
        reader.snapshot()
    view = reader.snapshot()
    assert view.index.num_samples == 20
    assert not view.missing(np.arange(20)).any()


@pytest.mark.parametrize("ending", ["names", "stamps"])
def test_a_damaged_file_is_written_again_by_the_next_start(tmp_path: Path, sources: RecordReaders, ending: str) -> None:
    config, publisher = binary_dataset(tmp_path / "data"), Publisher(tmp_path)
    publisher.publish(row_of(config, 1), [], table({"a": 1, "b": 2}))
    publisher.publish(row_of(config, 2), [], table({"a": 1, "b": 7}), changed=[1])
    old = PublishedDataset(tmp_path, sources)
    assert old.snapshot().paths.stamp(1) == (1, 7)
    (damaged,) = tmp_path.glob(f"*.{ending}")
    replaced = tmp_path / "replaced"
    replaced.write_bytes(b"short")
    replaced.rename(damaged)  # Who has mapped the old one keeps it.
    with pytest.raises(CorruptStateError, match="restart storage, which writes it again"):
        PublishedDataset(tmp_path, sources).snapshot()
    Publisher(tmp_path).publish(row_of(config, 2), [], table({"a": 3, "b": 2}))
    for reader in (old, PublishedDataset(tmp_path, sources)):
        paths = reader.snapshot().paths
        assert [paths[i] for i in range(2)] == [str(tmp_path / "data" / name) for name in "ab"]
        assert [paths.stamp(i) for i in range(2)] == [(1, 3), (1, 2)]


def test_all_stamps_are_looked_at_until_the_first_publication_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = binary_dataset(tmp_path / "data")
    Publisher(tmp_path).publish(row_of(config, 1), [], table({"a": 1}))
    publisher = Publisher(tmp_path)

    def full(path: Path, parts: object) -> None:
        raise UnavailableError(f"cannot write {path}: no space left")

    with monkeypatch.context() as patch, pytest.raises(UnavailableError, match="no space left"):
        patch.setattr("modyn.storage.ingest.publisher.write_atomically", full)
        publisher.publish(row_of(config, 1), [], table({"a": 5}))
    publisher.publish(row_of(config, 1), [], table({"a": 5}))
    assert PublishedDataset(tmp_path, RecordReaders(1)).snapshot().paths.stamp(0) == (1, 5)


def test_what_cannot_be_read_now_is_neither_damaged_nor_gone(
    tmp_path: Path, sources: RecordReaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    Publisher(tmp_path).publish(row_of(binary_dataset(tmp_path / "data"), 1), [], table({"a": 1}))

    def no_descriptors(path: Path) -> None:
        raise _core.FileAccessError(f"{path} cannot be opened: too many open files")

    with monkeypatch.context() as patch, pytest.raises(UnavailableError, match="too many open files"):
        patch.setattr("modyn._core.map_file", no_descriptors)
        PublishedDataset(tmp_path, sources).snapshot()
    names = PublishedNames(tmp_path / "names")
    names.add("numbers", tmp_path)

    def stale(path: Path) -> str:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch, pytest.raises(UnavailableError, match="names/numbers: Stale"):
        patch.setattr("os.readlink", stale)
        names.target("numbers")
    assert os.path.samefile(names.target("numbers"), tmp_path)
    (tmp_path / "names" / "file").touch()
    for name in ("file", "none", "../names"):
        with pytest.raises(NotFoundError, match="there is no dataset"):
            names.target(name)


def test_a_registration_is_told_from_the_one_before_it(storage: RunningStorage, tmp_path: Path) -> None:
    def identity() -> str:
        storage.client.register_dataset(binary_dataset(tmp_path / "d"))
        return storage.store.snapshot("numbers").identity

    first = identity()
    assert identity() == first
    assert Publication.read(storage.store.dataset("numbers").folder)
    assert (storage.store.dataset("numbers").folder / TOMBSTONES).parent.name == first
    storage.client.delete_dataset("numbers")
    assert identity() != first


@pytest.mark.parametrize("fails", ["ingest.open_dataset.Publisher.publish", "ingest.open_dataset.Publisher"])
def test_what_another_process_committed_is_taken_over_as_a_whole(
    storage: RunningStorage, tmp_path: Path, sources: RecordReaders, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a publication that failed at first, which the row of the dataset alone does not tell."""
    storage.client.register_dataset(binary_dataset(tmp_path / "d"))
    committed = storage.store.dataset("numbers")
    contents = committed.catalogue.contents("numbers")
    assert contents is not None
    dataset = OpenDataset(committed.catalogue, committed.folder, contents, 0.05, sources, FormatRunner())
    dataset.refresh()
    new = dataset.new_samples(0, 100, lambda: True)
    fill(storage, tmp_path / "d", "0.bin", 0)
    published: list[int] = []
    publish = Publisher.publish

    def noted(publisher: Publisher, row: DatasetRow, *others: Any) -> None:
        publish(publisher, row, *others)
        published.append(row.version)

    def full(*_: object) -> None:
        raise UnavailableError("no space left")

    monkeypatch.setattr(Publisher, "publish", noted)
    with monkeypatch.context() as patch, pytest.raises(UnavailableError, match="no space left"):
        patch.setattr(f"modyn.storage.{fails}", full)
        dataset.refresh()
    assert not published
    dataset.refresh()
    dataset.refresh()
    assert published == [committed.row.version]
    assert dataset.snapshot().index.num_samples == 10
    assert len(next(new)) == 10


def open_files(folder: Path) -> set[str]:
    """Names of the files in `folder` that this process holds open, those of removed files with what the kernel adds."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return {os.path.basename(target) for target in targets if target.startswith(str(folder))}


def test_removed_files_are_let_go_of_although_a_thread_could_not_be_started(
    sources: RecordReaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("0.bin", "1.bin"):
        (tmp_path / name).write_bytes(bytes(4))
    paths, reader = sources.open(binary_dataset(tmp_path), tmp_path / "index")
    paths.append(["0.bin", "1.bin"])
    reader.gather(np.arange(2, dtype=np.uint32), np.zeros(2, np.int64), 4)
    (tmp_path / "1.bin").unlink()

    def no_threads(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_threads)
        sources.forget_removed()
    assert open_files(tmp_path) == {"0.bin", "1.bin (deleted)"}
    sources.forget_removed()
    eventually(lambda: open_files(tmp_path) == {"0.bin"})


def test_space_of_removed_files_is_free_once_the_dataset_is_looked_at_again(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    storage.client.register_dataset(binary_dataset(folder))
    for number in range(3):
        fill(storage, folder, f"{number}.bin", 10 * number)
    assert storage.data_of(range(30)) == list(range(30))
    assert len(open_files(folder)) == 3
    (folder / "1.bin").unlink()
    fill(storage, folder, "3.bin", 30)
    assert storage.data_of([30]) == [30]
    eventually(lambda: not any("1.bin" in name for name in open_files(folder)))
    assert storage.data_of([0, 20, 30]) == [0, 20, 30]
