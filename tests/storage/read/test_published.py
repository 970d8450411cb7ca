"""Published files of storage are complete at any moment, never older than a client's notification, and repaired after a crash."""

from __future__ import annotations

import json
import os
import threading
import zlib
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.errors import CorruptStateError, NotFoundError, UnavailableError
from modyn.records import Int64Array
from modyn.storage.catalogue.catalogue import Catalogue
from modyn.storage.datasets import DatasetStore
from modyn.storage.index.segment_file import SegmentColumns, write_segment
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.publisher import Publisher, withdraw
from modyn.storage.model.file_table import FileRow, FileTable
from modyn.storage.read.publication import Publication
from modyn.storage.read.published_datasets import PublishedNames
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.snapshot import PublishedDataset
from modyn.testing.waiting import PATIENCE_S
from tests.support.running_storage import (
    RunningStorage,
    binary_dataset,
    data_in,
    published_by,
    row_of,
    start_storage,
    write_records,
)


def folder_of(storage: RunningStorage, name: str = "numbers") -> Path:
    return storage.store.dataset(name).folder


def publish(
    publisher: Publisher, config: DatasetConfig, paths: list[str], version: int = 1, altered: frozenset[int] = frozenset()
) -> None:
    publisher.publish(row_of(config, version), [], table(paths, altered))


def table(paths: list[str], altered: frozenset[int] = frozenset(), stamps: dict[int, int] | None = None) -> FileTable:
    """Make a table of files of one byte, written at second 0 or at that of `stamps`."""
    seconds = stamps or {}
    return FileTable(
        FileRow(i, path, 1, seconds.get(i, 0) * 10**9, 1, 1, "", altered=i in altered) for i, path in enumerate(paths)
    )


# Names and stamps of files


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 12), st.lists(st.integers(0, 60), max_size=4), st.booleans(), st.booleans()), max_size=10
    )
)
def test_readers_that_look_now_and_then_see_every_stamp(
    tmp_path_factory: pytest.TempPathFactory, sources: RecordReaders, steps: list[tuple[int, list[int], bool, bool]]
) -> None:
    """Each step: number of new files, files that get another stamp, whether storage is restarted, whether the old reader reads."""
    folder = tmp_path_factory.mktemp("published")
    config, publisher, files = binary_dataset(folder / "data"), Publisher(folder), FileTable()
    old = PublishedDataset(folder, sources)
    for version, (num_new, touched, restarted, looks) in enumerate(steps, start=1):
        changed = sorted({i for i in touched if i < len(files)})
        files.change(FileRow(i, files.path(i), 1, version, 1, 1, "") for i in changed)
        files.add(FileRow(i, f"{i}", 1, -i, 1, 1, "") for i in range(len(files), len(files) + num_new))
        if restarted:
            publisher = Publisher(folder)
        publisher.publish(row_of(config, version), [], files, changed)
        for reader in [PublishedDataset(folder, sources), *([old] if looks else [])]:
            paths = reader.snapshot().paths
            sizes, times = files.stamps(np.arange(len(files)))
            assert [paths.stamp(i) for i in range(len(paths))] == list(zip(sizes.tolist(), times.tolist(), strict=True))


@given(
    steps=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=12),
    names=st.lists(st.binary(min_size=1, max_size=12).filter(lambda name: not set(name) & {0, 47}), min_size=1, max_size=10),
)
def test_readers_that_look_now_and_then_see_every_name(
    tmp_path_factory: pytest.TempPathFactory, sources: RecordReaders, steps: list[tuple[int, bool]], names: list[bytes]
) -> None:
    """A reader sees all names, whichever publications it misses, and however blocks were merged meanwhile."""
    folder = tmp_path_factory.mktemp("published")
    config, publisher, paths = binary_dataset(folder / "data"), Publisher(folder), list[str]()
    publish(publisher, config, paths)
    reader = PublishedDataset(folder, sources)
    for version, (num_new, looks) in enumerate(steps, start=2):
        first = len(paths)
        paths += [f"{first + i}/{os.fsdecode(names[i % len(names)])}" for i in range(num_new)]
        publish(publisher, config, paths, version)
        blocks = Publication.read(folder).names
        assert sum(block.count for block in blocks) == len(paths)
        assert all(a.count >= 2 * b.count for a, b in pairwise(blocks))
        assert {path.name for path in folder.glob("*.names")} == {block.file for block in blocks}
        if looks:
            assert [os.fsdecode(reader.snapshot().paths[i]) for i in range(len(paths))] == [
                f"{config.base_path}/{path}" for path in paths
            ]
    fresh = PublishedDataset(folder, sources).snapshot().paths
    assert [os.fsdecode(fresh[i]) for i in range(len(fresh))] == [f"{config.base_path}/{path}" for path in paths]


def test_nothing_is_written_when_nothing_changed(tmp_path: Path) -> None:
    config = binary_dataset(tmp_path / "data")
    for _ in range(2):  # also by the storage that is started next
        publisher = Publisher(tmp_path)
        for _ in range(2):
            publish(publisher, config, ["a", "b"], altered=frozenset({1}))
    assert Publication.read(tmp_path).version == 1
    before = (tmp_path / "index.json").stat().st_ino
    publish(Publisher(tmp_path), config, ["a", "b"], altered=frozenset({1}))
    assert (tmp_path / "index.json").stat().st_ino == before


def test_a_catalogue_from_a_backup_is_published_again(tmp_path: Path, sources: RecordReaders) -> None:
    config = binary_dataset(tmp_path / "data")
    publish(Publisher(tmp_path), config, ["a", "b", "c"], version=9)
    publish(Publisher(tmp_path), config, ["x", "y"], version=3)
    paths = PublishedDataset(tmp_path, sources).snapshot().paths
    assert [os.fsdecode(paths[i]).rsplit("/", 1)[1] for i in range(len(paths))] == ["x", "y"]


# What a reader finds


def test_a_view_is_the_same_until_something_changes(storage: RunningStorage, tmp_path: Path, sources: RecordReaders) -> None:
    write_records(tmp_path / "d" / "a.bin", range(100), 1000)
    storage.index(binary_dataset(tmp_path / "d"))
    reader = PublishedDataset(folder_of(storage), sources)
    first = reader.snapshot()
    assert reader.snapshot() is first
    assert (first.name, first.config.base_path, first.index.num_samples) == ("numbers", str(tmp_path / "d"), 100)
    storage.client.delete_samples("numbers", np.asarray([5]))
    second = reader.snapshot()
    assert second.index is first.index
    assert second.missing(np.asarray([4, 5, 100, -1])).tolist() == [False, True, True, True]
    assert not first.missing(np.asarray([5])).any()
    write_records(tmp_path / "d" / "b.bin", range(100, 200), 1001)
    storage.ingest()
    third = reader.snapshot()
    assert third.version > second.version
    assert third.index.num_samples == 200
    assert third.reader is first.reader
    assert data_in(third, [199, 0]) == [199, 0]
    assert data_in(first, [50]) == [50]


def test_keys_that_were_told_are_published(storage: RunningStorage, tmp_path: Path, sources: RecordReaders) -> None:
    """A reader finds new samples from the moment at which a client is notified of them."""
    storage.client.register_dataset(binary_dataset(tmp_path / "d"))
    reader = PublishedDataset(folder_of(storage), sources)
    told = storage.client.new_samples("numbers", 0, 7)

    def ingest() -> None:
        for _ in range(10):
            write_next(tmp_path / "d")
            storage.ingest()

    ingesting = threading.Thread(target=ingest, daemon=True)
    ingesting.start()
    count = 0
    for batch in told:
        assert not reader.snapshot().missing(batch.keys).any()
        assert data_in(reader.snapshot(), batch.keys.tolist()) == batch.keys.tolist()
        if (count := count + len(batch)) == 50:
            break
    told.cancel()
    ingesting.join()


def write_next(folder: Path) -> None:
    """Write the next file of five records."""
    number = len(list(folder.iterdir()))
    write_records(folder / f"{number:02}.bin", range(5 * number, 5 * number + 5), 1000 + number)


def test_a_reader_never_sees_half_a_change(storage: RunningStorage, tmp_path: Path, sources: RecordReaders) -> None:
    """Segments and blocks of names are merged and samples deleted while threads read: each snapshot can read all that it lists."""
    storage.client.register_dataset(binary_dataset(tmp_path / "d"))
    reader, ended = PublishedDataset(folder_of(storage), sources), threading.Event()
    failures: list[BaseException] = []
    looks = threading.Semaphore(0)

    def look() -> None:
        known, deleted = 0, -1
        try:
            while not ended.is_set():
                view = reader.snapshot()
                now = np.arange(view.index.num_samples)
                gone = view.missing(now)
                assert len(now) >= known
                assert gone.sum() >= deleted
                known, deleted = len(now), int(gone.sum())
                assert data_in(view, now.tolist()) == now.tolist()
                looks.release()
        except BaseException as error:  # noqa: BLE001  (raised again in the main thread)
            failures.append(error)
            looks.release()

    threads = [threading.Thread(target=look, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(20):
            write_next(tmp_path / "d")
            storage.ingest()
            storage.client.delete_samples("numbers", np.asarray([5 * number]))
            # At least one reader reads between two changes, however little CPU time the readers get.
            assert looks.acquire(timeout=PATIENCE_S)
            assert not failures
    finally:
        ended.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert not failures
    view = reader.snapshot()
    assert len(view.tombstones.keys) == 20
    assert view.index.num_samples == 100


def test_a_change_between_two_looks_is_seen_even_if_the_file_system_reuses_inodes(tmp_path: Path, sources: RecordReaders) -> None:
    """Inodes and times of files repeat; the reader keeps the file open that it compares with."""
    config, publisher = binary_dataset(tmp_path / "data"), Publisher(tmp_path)
    publish(publisher, config, [])
    reader = PublishedDataset(tmp_path, sources)
    for version in range(2, 40):
        for step in range(2):
            publish(publisher, config, [], version=2 * version + step)
            for path in (tmp_path / "index.json",):
                os.utime(path, (1, 1))
        assert reader.snapshot().version == 2 * version + 1


def test_what_is_damaged_or_unknown_is_told(tmp_path: Path, sources: RecordReaders) -> None:
    reader = PublishedDataset(tmp_path, sources)
    with pytest.raises(NotFoundError, match="no dataset is published"):
        reader.snapshot()
    publish(Publisher(tmp_path), binary_dataset(tmp_path / "data"), ["a"])
    whole = json.loads((tmp_path / "index.json").read_bytes())
    content = whole["content"]

    def with_content(**changes: object) -> str:
        changed = content | changes
        return json.dumps(whole | {"content": changed, "crc32": zlib.crc32(json.dumps(changed).encode())})

    for text, reason in (
        ("{", "damaged"),
        (json.dumps(whole | {"format": 99}), "format 99"),
        (json.dumps({"format": 1}), "format 1,"),
        (json.dumps(whole | {"content": content | {"version": 7}}), "does not match its checksum"),
        (with_content(version="x"), "damaged"),
        (with_content(segments=["none.segment"]), "missing"),
        (with_content(names=[["none.names", 1]]), "none.names is missing"),
        (with_content(stamps="none.stamps"), "none.stamps is missing"),
    ):
        (tmp_path / "index.json").unlink()
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(CorruptStateError, match=reason):
            reader.snapshot()
    (block,) = content["names"]
    (tmp_path / "index.json").write_text(json.dumps(whole))
    (tmp_path / block[0]).write_bytes(b"abc")
    with pytest.raises(CorruptStateError, match="is not a file of names"):
        PublishedDataset(tmp_path, sources).snapshot()
    Publisher(tmp_path)  # which a new publication mends
    (tmp_path / "index.json").unlink()
    publish(Publisher(tmp_path), binary_dataset(tmp_path / "data"), ["a"])
    assert len(PublishedDataset(tmp_path, sources).snapshot().paths) == 1


# Datasets by name


def test_datasets_are_found_by_name_and_only_by_name(storage: RunningStorage, tmp_path: Path, sources: RecordReaders) -> None:
    datasets = published_by(storage.config, readers=sources)
    for name in ("numbers", "", "..", ".", "../datasets", "a/b", "nul\0"):
        with pytest.raises(NotFoundError, match="no dataset"):
            datasets.snapshot(name)
    write_records(tmp_path / "d" / "a.bin", range(3), 1000)
    storage.index(binary_dataset(tmp_path / "d"))
    first = datasets.snapshot("numbers")
    assert data_in(first, [2]) == [2]
    for ask in (datasets.snapshot, storage.client.dataset):  # readers, and the service that commands such as `modyn simulate` ask
        with pytest.raises(NotFoundError, match="there is no dataset 'numbrs', did you mean 'numbers'"):
            ask("numbrs")
    storage.client.delete_dataset("numbers")
    with pytest.raises(NotFoundError, match="no dataset 'numbers'"):
        datasets.snapshot("numbers")
    write_records(tmp_path / "e" / "a.bin", range(7, 9), 1000)
    storage.index(binary_dataset(tmp_path / "e"))
    assert data_in(datasets.snapshot("numbers"), [1]) == [8]


def test_a_dataset_is_withdrawn_before_its_files_go(
    storage: RunningStorage, tmp_path: Path, sources: RecordReaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader must not find the folder without its tombstones: deleted samples would be read again."""
    write_records(tmp_path / "d" / "a.bin", range(3), 1000)
    storage.index(binary_dataset(tmp_path / "d"))
    reader, seen = PublishedDataset(folder_of(storage), sources), []
    reader.snapshot()

    def removes(folder: Path, ignore_errors: bool) -> None:
        with pytest.raises(NotFoundError):
            reader.snapshot()
        seen.append(folder)

    monkeypatch.setattr("modyn.storage.datasets.shutil.rmtree", removes)
    storage.client.delete_dataset("numbers")
    assert seen == [reader.folder]


# Crashes


def test_a_deletion_that_counted_when_its_writer_was_killed_is_seen_after_the_next_start(
    quick_config: SystemConfig, stack: ExitStack, tmp_path: Path, sources: RecordReaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader reads after the new block is written and before the head counts it; after that the size of the file stays the same."""
    write_records(tmp_path / "d" / "a.bin", range(10), 1000)
    store = DatasetStore(quick_config, Catalogue.open(quick_config))
    store.start()
    store.register(binary_dataset(tmp_path / "d"))
    list(store.ingest("numbers"))
    store.dataset("numbers").delete_samples(np.array([1]))
    reader = PublishedDataset(store.dataset("numbers").folder, sources)
    steps = iter(["look", "kill"])

    def fsync(descriptor: int) -> None:
        if next(steps) == "kill":
            raise KeyboardInterrupt("killed")
        assert reader.snapshot().missing(np.arange(10)).tolist() == [key == 1 for key in range(10)]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "fdatasync", fsync)
        store.dataset("numbers").delete_samples(np.array([2]))
    store.close()
    start_storage(quick_config, stack)
    assert reader.snapshot().missing(np.arange(10)).tolist() == [key in {1, 2} for key in range(10)]


def test_a_crash_between_commit_and_publication_is_mended_by_the_next_start(
    quick_config: SystemConfig, stack: ExitStack, tmp_path: Path, sources: RecordReaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path / "d" / "a.bin", range(10), 1000)
    store = DatasetStore(quick_config, Catalogue.open(quick_config))
    store.start()
    store.register(binary_dataset(tmp_path / "d"))
    reader = PublishedDataset(store.dataset("numbers").folder, sources)
    with monkeypatch.context() as killed:
        killed.setattr(OpenDataset, "_publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt("killed")))
        with pytest.raises(KeyboardInterrupt):
            list(store.ingest("numbers"))
    assert reader.snapshot().index.num_samples == 0
    store.close()
    start_storage(quick_config, stack)
    assert reader.snapshot().index.num_samples == 10
    assert data_in(reader.snapshot(), [9]) == [9]


def test_a_publication_that_fails_is_made_up_for_and_tells_no_one_before(
    storage: RunningStorage, tmp_path: Path, sources: RecordReaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path / "d" / "a.bin", range(10), 1000)
    storage.client.register_dataset(binary_dataset(tmp_path / "d"))
    dataset, reader = storage.store.dataset("numbers"), PublishedDataset(folder_of(storage), sources)

    def full(path: Path, parts: object) -> None:
        raise UnavailableError(f"cannot write {path}: no space left")

    with monkeypatch.context() as disk:
        disk.setattr("modyn.storage.ingest.publisher.write_atomically", full)
        with pytest.raises(UnavailableError, match="no space left"):
            storage.ingest()
    assert storage.client.dataset("numbers").num_samples == 0
    assert dataset.snapshot().missing(np.arange(10)).all()
    storage.ingest()
    assert storage.client.dataset("numbers").num_samples == 10
    assert data_in(reader.snapshot(), list(range(10))) == list(range(10))


def test_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    for name in ("0000000000-x.names", "0000000000-x.names.7-7.tmp", "index.json.7-7.tmp"):
        (tmp_path / name).write_bytes(b"rest")
    publish(publisher, binary_dataset(tmp_path / "data"), ["a"])
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".json", ".names"]
    withdraw(tmp_path)
    withdraw(tmp_path)
    names = PublishedNames(tmp_path / "names")
    names.add("kept", tmp_path / "a")
    names.add("gone", tmp_path / "b")
    (tmp_path / "names" / ".kept.7-7.tmp").symlink_to("x")
    names.keep_only({"kept"})
    assert names.target("kept") == tmp_path / "names" / "../a"
    assert [path.name for path in (tmp_path / "names").iterdir()] == ["kept"]


def test_an_index_of_segments_is_opened_once(tmp_path: Path, sources: RecordReaders) -> None:
    """A reader of a growing dataset opens only new segments."""
    config, publisher, names = binary_dataset(tmp_path / "data"), Publisher(tmp_path), list[str]()
    reader = PublishedDataset(tmp_path, sources)

    def column(values: list[int]) -> Int64Array:
        return np.asarray(values, np.int64)

    for number in range(3):
        columns = SegmentColumns(np.zeros(2, np.uint32), column([0, 8]), column([8, 8]), column([1, 2]), column([5, 5]))
        names.append(f"{number}.segment")
        write_segment(tmp_path / names[-1], 2 * number, columns)
        publisher.publish(row_of(config, number), names, table(["a"]))
        view = reader.snapshot()
        assert view.index.next_key == 2 * number + 2
        for name in names:  # what is open needs its name no more
            (tmp_path / name).unlink(missing_ok=True)
