"""Ingestion through the service: what is indexed, in which order, exactly once, and what is set aside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from modyn.config.system import StorageConfig, SystemConfig
from modyn.errors import DataError, InvalidArgumentError, NotFoundError, SecurityError, UnavailableError
from modyn.records import Interval
from modyn.storage.catalogue.catalogue import Catalogue, Change
from modyn.storage.files.file_system import Roots
from modyn.storage.formats.base import FileFormat, FormatConfig, FormatResume
from modyn.storage.ingest.ingestion import ingest
from modyn.storage.ingest.limits import IngestLimits
from modyn.storage.model.dataset_records import IngestProgress
from modyn.storage.model.samples import IndexedSamples
from tests.support.running_storage import (
    RunningStorage,
    binary_dataset,
    files_dataset,
    image_dataset,
    running_storage,
    start_storage,
    write_image,
    write_records,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def all_data(storage: RunningStorage, name: str = "numbers") -> list[int]:
    return storage.data_of(range(storage.client.dataset(name).next_key), name)


def segment_files(storage: RunningStorage) -> list[Path]:
    return sorted(storage.config.service_dir("storage").rglob("*.segment*"))


def test_keys_follow_file_time_then_path(storage: RunningStorage, data: Path) -> None:
    write_records(data / "z.bin", [0, 1], 1000)
    write_records(data / "b" / "x.bin", [4, 5], 2000)
    write_records(data / "a.bin", [2, 3], 2000)
    progress = storage.index(binary_dataset(data))
    assert (progress.files_seen, progress.files_indexed, progress.samples_indexed, progress.problems) == (3, 3, 6, 0)
    assert all_data(storage) == [0, 1, 2, 3, 4, 5]
    samples = storage.client.samples_by_key("numbers", np.arange(6))
    assert samples.timestamps.tolist() == [1000, 1000, 2000, 2000, 2000, 2000]
    assert samples.labels.tolist() == [0, 1, 2, 3, 4, 5]
    info = storage.client.dataset("numbers")
    assert (info.num_samples, info.num_files, info.next_key, info.min_timestamp, info.max_timestamp) == (6, 3, 6, 1000, 2000)


def test_appended_rows_are_ingested_once(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", range(5), 1000)
    write_records(data / "b.bin", range(100, 103), 1000)
    storage.index(binary_dataset(data))
    write_records(data / "a.bin", range(5, 8), 2000, mode="ab")
    assert storage.ingest().samples_indexed == 3
    assert storage.ingest().samples_indexed == 0
    assert all_data(storage) == [0, 1, 2, 3, 4, 100, 101, 102, 5, 6, 7]
    assert storage.client.problems("numbers") == []
    assert storage.client.dataset("numbers").num_files == 2


def test_half_a_record_at_the_end_is_reported_and_later_completed(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", range(5), 1000)
    storage.index(binary_dataset(data))
    whole = (data / "a.bin").read_bytes()
    (data / "a.bin").write_bytes(whole + whole[:7])
    assert storage.ingest().samples_indexed == 0
    assert "a.bin" in storage.reasons()
    assert all_data(storage) == list(range(5)), "what was indexed before stays readable"
    (data / "a.bin").write_bytes(whole + whole[:16])
    assert storage.ingest().samples_indexed == 1
    assert storage.client.problems("numbers") == []


def test_a_rewritten_file_is_reported_and_not_read(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", range(5), 1000)
    write_records(data / "b.bin", range(5, 8), 1001)
    storage.index(binary_dataset(data))
    write_records(data / "a.bin", range(50, 55), 2000)
    assert storage.ingest().samples_indexed == 0
    assert "rewritten" in storage.reasons()["a.bin"]
    assert storage.ingest().problems == 0, "told once"
    with pytest.raises(DataError, match=r"a\.bin.*key 2"):
        storage.data_of([6, 2])
    assert storage.data_of([5, 6, 7]) == [5, 6, 7]
    write_records(data / "a.bin", range(5), 3000)
    storage.ingest()
    assert storage.client.problems("numbers") == []
    assert storage.data_of(range(8)) == list(range(8))


def test_a_rewritten_file_stays_refused_after_a_restart(quick_config: SystemConfig, data: Path) -> None:
    write_records(data / "a.bin", range(5), 1000)
    with running_storage(quick_config) as storage:
        storage.index(binary_dataset(data))
        write_records(data / "a.bin", range(50, 55), 2000)
        storage.ingest()
    with running_storage(quick_config) as storage:
        with pytest.raises(DataError, match=r"a\.bin"):
            storage.data_of([0])
        assert len(storage.client.problems("numbers")) == 1


def test_touching_a_file_changes_nothing(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", range(5), 1000)
    storage.index(binary_dataset(data))
    os.utime(data / "a.bin", (5000, 5000))
    assert storage.ingest().samples_indexed == 0
    assert storage.client.problems("numbers") == []
    assert all_data(storage) == list(range(5))


def test_a_cut_file_is_reported_and_named_with_its_offset(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", range(5), 1000)
    storage.index(binary_dataset(data))
    os.truncate(data / "a.bin", 20)
    with pytest.raises(DataError, match=r"a\.bin.* 72"):
        storage.data_of([4])
    storage.ingest()
    assert "was cut: 80 bytes of it are indexed, it has 20 now" in storage.reasons()["a.bin"]


def test_a_bad_file_is_set_aside_and_tried_again_when_it_changes(storage: RunningStorage, data: Path) -> None:
    write_records(data / "good.bin", [1], 1000)
    (data / "bad.bin").write_bytes(b"x" * 17)
    os.utime(data / "bad.bin", (900, 900))
    progress = storage.index(binary_dataset(data))
    assert (progress.samples_indexed, progress.problems) == (1, 1)
    assert list(storage.reasons()) == ["bad.bin"]
    assert storage.client.dataset("numbers").num_problems == 1
    assert storage.ingest().problems == 0
    write_records(data / "bad.bin", [2], 1000)
    assert storage.ingest().samples_indexed == 1
    assert storage.client.problems("numbers") == []
    assert all_data(storage) == [1, 2]
    (data / "gone.bin").write_bytes(b"x")
    storage.ingest()
    assert list(storage.reasons()) == ["gone.bin"]
    (data / "gone.bin").unlink()
    storage.ingest()
    assert storage.client.dataset("numbers").num_problems == 0, "the problem of a file goes with it"


def test_an_indexed_file_that_vanishes_is_reported_until_it_is_back(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", range(3), 1000)
    storage.index(binary_dataset(data))
    (data / "a.bin").rename(data / "a.hidden")
    storage.ingest()
    assert "gone" in storage.reasons()["a.bin"]
    with pytest.raises(DataError, match=r"a\.bin"):
        storage.data_of([0])
    (data / "a.hidden").rename(data / "a.bin")
    storage.ingest()
    assert storage.client.problems("numbers") == []
    assert all_data(storage) == [0, 1, 2]


def test_an_empty_file_holds_nothing_until_it_grows(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", [], 1000)
    assert storage.index(binary_dataset(data)).problems == 0
    info = storage.client.dataset("numbers")
    assert (info.num_samples, info.min_timestamp, info.next_key) == (0, None, 0)
    write_records(data / "a.bin", [7], 2000, mode="ab")
    storage.ingest()
    assert all_data(storage) == [7]


def test_strange_names(storage: RunningStorage, data: Path) -> None:
    names = [
        "it's",
        'a "b"',
        "tab\there",
        "line\nbreak",
        "back\\slash",
        "ünï-漢字",
        "%s\\x41",
        "x" * 200,
        "-rf",
        os.fsdecode(b"\xff\xfe"),
    ]
    deep = data.joinpath(*["d" * 200] * 12)
    for i, name in enumerate(names):
        write_records(data / name / f"{name}.bin", [i], 1000 + i)
    write_records(deep / "deep.bin", [len(names)], 5000)
    assert len(str(deep)) > 2400
    (data / os.fsdecode(b"bad\xff.bin")).write_bytes(b"1")
    storage.index(binary_dataset(data))
    assert all_data(storage) == list(range(len(names) + 1))
    assert storage.ingest().samples_indexed == 0
    assert [os.path.basename(p.path) for p in storage.client.problems("numbers")] == ["bad\\udcff.bin"]


def test_links_are_followed_under_the_roots_only(quick_config: SystemConfig, stack: ExitStack, tmp_path: Path) -> None:
    data, outside = tmp_path / "root" / "data", tmp_path / "outside"
    write_records(tmp_path / "root" / "shared" / "in.bin", [1], 1000)
    write_records(outside / "secret.bin", [666], 1000)
    write_records(data / "own.bin", [0], 900)
    (data / "in").symlink_to(tmp_path / "root" / "shared")
    (data / "out").symlink_to(outside)
    (data / "out.bin").symlink_to(outside / "secret.bin")
    (data / "nowhere.bin").symlink_to(tmp_path / "root" / "nothing")
    (data / "loop").symlink_to(data)
    os.mkfifo(data / "pipe.bin")
    storage_config = StorageConfig.model_validate({"settle_s": 0, "dataset_roots": [tmp_path / "root"]})
    storage = start_storage(quick_config.model_copy(update={"storage": storage_config}), stack)
    storage.index(binary_dataset(data))
    assert all_data(storage) == [0, 1]
    assert sorted(storage.reasons()) == ["out", "out.bin"]
    for reason in storage.reasons().values():
        assert "dataset_roots" in reason
    with pytest.raises(SecurityError, match="outside"):
        storage.client.register_dataset(binary_dataset(outside, "other"))
    # A file that is indexed becomes a link that leads out, to one with more records: nothing of it may be served.
    write_records(outside / "more.bin", [667, 668], 1100)
    (data / "own.bin").unlink()
    (data / "own.bin").symlink_to(outside / "more.bin")
    storage.ingest()
    assert "dataset_roots" in storage.reasons()["own.bin"]
    with pytest.raises(DataError, match=r"own\.bin was changed"):
        storage.data_of([0])
    (data / "own.bin").unlink()
    write_records(data / "own.bin", [0], 900)
    storage.ingest()
    assert all_data(storage) == [0, 1]


def test_a_folder_that_is_not_there(storage: RunningStorage, data: Path, tmp_path: Path) -> None:
    config = binary_dataset(data)
    data.rmdir()
    with pytest.raises(NotFoundError, match="data"):
        storage.client.register_dataset(config)
    data.mkdir()
    storage.client.register_dataset(config)
    data.rmdir()
    with pytest.raises(NotFoundError, match="data"):
        storage.ingest()
    assert len(storage.client.problems("numbers")) == 1
    data.mkdir()
    storage.ingest()
    assert storage.client.problems("numbers") == []
    (tmp_path / "file").touch()
    with pytest.raises(NotFoundError, match="not a folder"):
        storage.client.register_dataset(config.model_copy(update={"name": "x", "base_path": tmp_path / "file"}))
    with pytest.raises(InvalidArgumentError, match="absolute"):
        storage.client.register_dataset(config.model_copy(update={"name": "x", "base_path": Path("data")}))


def test_files_of_one_sample_share_segments(storage: RunningStorage, data: Path) -> None:
    for i in range(300):
        write_image(data, f"{i:03}", f"payload {i}".encode(), i % 7, 1000 + i)
    assert storage.index(image_dataset(data)).samples_indexed == 300
    assert len(segment_files(storage)) == 1
    keys = np.asarray([299, 0, 150, 0])
    batch = next(storage.payloads.fetch("images", keys))
    assert [bytes(batch.payload(i)) for i in range(4)] == [f"payload {k}".encode() for k in keys]
    assert batch.labels.tolist() == [299 % 7, 0, 150 % 7, 0]


def test_a_changed_image_is_reported(storage: RunningStorage, data: Path) -> None:
    write_image(data, "a", b"first", 1, 1000)
    write_image(data, "b", b"second", 2, 1001)
    storage.index(image_dataset(data))
    write_image(data, "a", b"longer than before", 1, 2000)
    write_image(data, "b", b"SECOND", 2, 2001)
    storage.ingest("images")
    assert "rewritten" in storage.reasons("images")["a.png"]
    assert "written again" in storage.reasons("images")["b.png"]
    for key in (0, 1):
        with pytest.raises(DataError, match=rf"changed after it was indexed.* key {key} "):
            list(storage.payloads.fetch("images", np.asarray([key])))
    write_image(data, "b", b"second", 2, 1001)
    storage.ingest("images")
    assert "b.png" not in storage.reasons("images")
    assert bytes(next(storage.payloads.fetch("images", np.asarray([1]))).payload(0)) == b"second"
    with pytest.raises(DataError, match=r"a\.png"):
        list(storage.payloads.fetch("images", np.asarray([0])))
    assert storage.client.dataset("images").next_key == 2


def test_an_image_waits_for_its_label(storage: RunningStorage, data: Path) -> None:
    data.mkdir()
    (data / "a.png").write_bytes(b"image")
    os.utime(data / "a.png", (1000, 1000))
    assert storage.index(image_dataset(data)).samples_indexed == 0
    assert "a.label is missing" in storage.reasons("images")["a.png"]
    (data / "a.label").write_text("3")
    assert storage.ingest("images").samples_indexed == 1
    assert storage.client.problems("images") == []
    assert storage.client.samples_by_key("images", np.asarray([0])).labels.tolist() == [3]


def test_a_bad_label_is_tried_again_when_the_label_file_changes(storage: RunningStorage, data: Path) -> None:
    write_image(data, "a", b"image", 1, 1000)
    (data / "a.label").write_text("cat")
    storage.index(image_dataset(data))
    assert "a.png" in storage.reasons("images")
    (data / "a.label").write_text("4")
    assert storage.ingest("images").samples_indexed == 1


def test_a_file_that_is_being_written_is_waited_for(quick_config: SystemConfig, stack: ExitStack, data: Path) -> None:
    """It is written on whenever the ingestion waits. The time that it has to rest is far away until it is complete, and over then."""
    config = quick_config.model_copy(update={"storage": StorageConfig(settle_s=3600)})
    storage = start_storage(config, stack)
    storage.client.register_dataset(binary_dataset(data))
    dataset = storage.store.dataset("numbers")
    beginnings = [i.to_bytes(12, "little") for i in range(12)]

    def write_on(_: float) -> None:
        with (data / "a.bin").open("ab") as file:
            if beginnings:
                file.write(bytes(4) + beginnings.pop())
            elif dataset.stability.settle_s:
                file.write(bytes(4))
                dataset.stability.settle_s = 0.0

    (data / "a.bin").write_bytes(beginnings.pop())
    progress = ingest(dataset, Roots(), 2, sleep=write_on)
    assert (progress.samples_indexed, progress.problems) == (12, 0)


def test_many_small_ingestions_do_not_leave_many_segments(storage: RunningStorage, data: Path) -> None:
    storage.client.register_dataset(binary_dataset(data))
    for i in range(35):
        write_records(data / f"{i:02}.bin", [2 * i, 2 * i + 1], 1000 + i)
        storage.store._scan(storage.store.dataset("numbers"))
        if i == 20:
            storage.client.delete_samples("numbers", np.asarray([3]))
    assert len(segment_files(storage)) < 20
    assert storage.client.dataset("numbers").num_files == 35
    keys = [key for key in range(70) if key != 3]
    assert storage.data_of(keys) == keys
    assert storage.client.count_samples("numbers", Interval(1000, 1002)) == 3


def test_a_large_file_that_is_bad_at_its_end_leaves_nothing(storage: RunningStorage, data: Path) -> None:
    config = files_dataset(data, name="rows")
    (data / "good.csv").write_text("".join(f"{i},text\n" for i in range(10)))
    (data / "torn.csv").write_text("".join(f"{i},text\n" for i in range(300_000)) + "cat,text\n")
    os.utime(data / "torn.csv", (1000, 1000))
    storage.client.register_dataset(config)
    storage.store.dataset("rows").limits = IngestLimits(held_samples=1, segment_rows=100_000)
    progress = storage.ingest("rows")
    assert (progress.samples_indexed, progress.problems) == (10, 1)
    assert "torn.csv" in storage.reasons("rows")
    assert len(segment_files(storage)) == 1
    assert storage.client.samples_by_key("rows", np.arange(10)).labels.tolist() == list(range(10))


def test_a_large_file_becomes_visible_at_once(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", range(600_000), 1000)
    write_records(data / "b.bin", [600_000], 1000)
    storage.client.register_dataset(binary_dataset(data))
    storage.store.dataset("numbers").limits = IngestLimits(held_samples=1, segment_rows=200_000)
    assert storage.ingest().samples_indexed == 600_001
    assert len(segment_files(storage)) == 4
    keys = np.random.default_rng(0).permutation(600_001)[:1000]
    assert storage.data_of(keys.tolist()) == keys.tolist()


def test_progress_is_told_within_a_large_file(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", range(35), 1000)
    (data / "b.csv").touch()
    storage.client.register_dataset(binary_dataset(data))
    dataset = storage.store.dataset("numbers")
    dataset.limits, dataset.format.chunk_rows = IngestLimits(held_samples=1), 10
    told: list[IngestProgress] = []
    ingest(dataset, Roots(), 2, on_progress=told.append)
    assert [p.samples_indexed for p in told if p.files_seen and not p.files_indexed] == [0, 0, 10, 20, 30, 35]
    assert (told[-1].samples_indexed, told[-1].files_indexed, told[-1].files_seen, told[-1].finished) == (35, 1, 1, True)


def test_many_files_of_one_sample_are_committed_in_parts(storage: RunningStorage, data: Path) -> None:
    for i in range(100):
        write_image(data / str(i % 3), f"{i:03}", f"payload {i}".encode(), i, 1000 + i)
    (data / "1" / "022.label").write_text("cat")
    os.utime(data / "1" / "022.label", (1000, 1000))
    storage.client.register_dataset(image_dataset(data))
    storage.store.dataset("images").limits = IngestLimits(files_at_once=7, flush_files=10)
    told: list[IngestProgress] = []
    ingest(storage.store.dataset("images"), Roots(), 2, on_progress=told.append)
    assert {14, 27} <= {p.samples_indexed for p in told}
    assert (told[-1].samples_indexed, told[-1].problems) == (99, 1)
    labels = [i for i in range(100) if i != 22]
    assert storage.client.samples_by_key("images", np.arange(99)).labels.tolist() == labels
    batch = next(storage.payloads.fetch("images", np.arange(99)))
    assert [bytes(batch.payload(i)) for i in range(99)] == [f"payload {i}".encode() for i in labels]


class MixedLabels(FileFormat):
    """Says that labels are whole numbers, and gives others."""

    Config = FormatConfig
    isolated = False

    def holds_samples(self, path: str) -> bool:
        return True

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        if path.endswith("raises"):
            raise KeyError("a bug in the user's format")
        labels = np.zeros(1, np.float64) if path.endswith("mixed") else np.zeros(1, np.int64)
        yield IndexedSamples(np.zeros(1, np.int64), 1, np.zeros(1, np.int64), 5, 1)
        yield IndexedSamples(np.zeros(1, np.int64), 1, labels, 5, 1)


def test_mixed_labels_and_failing_formats_are_problems_of_their_files(storage: RunningStorage, data: Path) -> None:
    storage.client.register_dataset(binary_dataset(data))
    storage.store.dataset("numbers").format = MixedLabels(FormatConfig())
    for name in ("a.mixed", "b.raises", "c.whole"):
        (data / name).write_bytes(b"xyz")
    assert storage.ingest().samples_indexed == 2
    found = storage.reasons()
    assert "float64" in found["a.mixed"]
    assert "KeyError" in found["b.raises"]
    assert "c.whole" not in found


def test_deleted_samples_stay_deleted_and_their_keys_are_not_used_again(quick_config: SystemConfig, data: Path) -> None:
    write_records(data / "a.bin", range(10), 1000)
    with running_storage(quick_config) as storage:
        storage.index(binary_dataset(data))
        assert storage.client.delete_samples("numbers", np.asarray([9, 3, 3, 77, -1])) == 2
        assert storage.client.delete_samples("numbers", np.asarray([3])) == 1
        write_records(data / "b.bin", [10], 2000)
        storage.ingest()
    with running_storage(quick_config) as storage:
        storage.ingest()
        kept = [0, 1, 2, 4, 5, 6, 7, 8, 10]
        batches = list(storage.client.samples_in_interval("numbers", Interval(), 4))
        assert [key for batch in batches for key in batch.keys.tolist()] == kept
        assert storage.data_of(kept) == kept
        info = storage.client.dataset("numbers")
        assert (info.num_samples, info.num_deleted, info.next_key) == (9, 2, 11)
        with pytest.raises(NotFoundError, match="9"):
            storage.data_of([8, 9])
        with pytest.raises(NotFoundError, match="3"):
            storage.client.samples_by_key("numbers", np.asarray([3]))


def test_deleting_a_dataset_keeps_the_users_files(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", range(10), 1000)
    storage.index(binary_dataset(data))
    before = (data / "a.bin").read_bytes()
    storage.client.delete_dataset("numbers")
    assert (data / "a.bin").read_bytes() == before
    assert segment_files(storage) == []
    assert storage.client.list_datasets() == []
    with pytest.raises(NotFoundError, match="numbers"):
        storage.data_of([0])
    assert storage.index(binary_dataset(data)).samples_indexed == 10


def test_a_deletion_that_was_cut_off_is_ended_at_the_next_start(quick_config: SystemConfig, data: Path) -> None:
    write_records(data / "a.bin", range(10), 1000)
    with running_storage(quick_config) as storage:
        storage.index(binary_dataset(data))
        storage.store._catalogue.begin_delete(storage.store.dataset("numbers").row.id)
    with running_storage(quick_config) as storage:
        assert storage.client.list_datasets() == []
        assert segment_files(storage) == []
        storage.client.register_dataset(binary_dataset(data))


def test_a_deletion_that_failed_halfway_may_be_repeated(storage: RunningStorage, data: Path) -> None:
    write_records(data / "a.bin", range(10), 1000)
    storage.index(binary_dataset(data))
    storage.client.change_dataset(binary_dataset(data, watch=True))
    dataset, watcher = storage.store.dataset("numbers"), storage.store._watchers["numbers"]
    link = storage.config.service_dir("storage") / "names" / "numbers"
    link.unlink()
    link.mkdir()  # which `unlink` does not remove
    for _ in range(2):
        with pytest.raises(UnavailableError, match=f"cannot remove {link}: "):
            storage.store.delete("numbers")
    assert isinstance(dataset.closed, NotFoundError)
    assert not watcher._thread.is_alive()
    assert storage.client.list_datasets() == []
    link.rmdir()
    storage.store.delete("numbers")
    assert segment_files(storage) == []
    with pytest.raises(NotFoundError):
        storage.store.delete("numbers")
    assert storage.index(binary_dataset(data)).samples_indexed == 10


def test_a_commit_of_unknown_outcome_is_neither_lost_nor_doubled(
    storage: RunningStorage, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection may break after PostgreSQL has committed and before it could say so."""
    write_records(data / "a.bin", range(10), 1000)
    storage.client.register_dataset(binary_dataset(data))
    commit = Catalogue.commit

    def broken(self: Catalogue, dataset_id: int, version: int, change: Change) -> int:
        commit(self, dataset_id, version, change)
        raise UnavailableError("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(Catalogue, "commit", broken)
        with pytest.raises(UnavailableError, match="broke"):
            storage.ingest()
    assert storage.ingest().samples_indexed == 0
    assert all_data(storage) == list(range(10))


def test_an_empty_dataset_and_an_unknown_one(storage: RunningStorage, data: Path) -> None:
    assert storage.index(binary_dataset(data)).finished
    assert list(storage.client.samples_in_interval("numbers", Interval(), 10)) == []
    for call in (storage.client.dataset, storage.client.delete_dataset, storage.client.problems, storage.ingest):
        with pytest.raises(NotFoundError, match="nothing-like-it"):
            call("nothing-like-it")
