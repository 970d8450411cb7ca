"""Datasets of records in a real storage service: appended records become samples, once each, and are read like any others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptStateError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
)
from modyn.records import Interval
from modyn.storage.client import AppendedRecord, NewRecord, StorageClient
from modyn.storage.files.file_system import Roots
from modyn.storage.read.record_readers import RecordReaders
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.running_storage import (
    RunningStorage,
    binary_dataset,
    flip,
    payloads_in,
    published_by,
    records_dataset,
    running_storage,
    start_storage,
)

NAME = "clicks"


def numbered(number: int) -> NewRecord:
    return NewRecord(f"key-{number}", b"payload of %d" % number, number % 10, 1_000 + number)


@pytest.fixture
def clicks(config: SystemConfig, stack: ExitStack) -> RunningStorage:
    storage = start_storage(config, stack)
    storage.client.register_dataset(records_dataset())
    return storage


def wait_for(storage: RunningStorage, num_samples: int, name: str = NAME) -> None:
    eventually(lambda: storage.client.dataset(name).next_key == num_samples)


def test_records_become_samples(clicks: RunningStorage) -> None:
    answers = clicks.client.append_records(NAME, [numbered(i) for i in range(5)])
    assert answers == [AppendedRecord(i) for i in range(5)]
    wait_for(clicks, 5)
    again = clicks.client.append_records(NAME, [numbered(4), NewRecord("key-0", b"other", 0), numbered(5), numbered(5)])
    assert again == [AppendedRecord(4, True), AppendedRecord(0, True, True), AppendedRecord(5), AppendedRecord(5, True)]
    wait_for(clicks, 6)
    assert clicks.payloads_both_ways(range(6), NAME) == [numbered(i).payload for i in range(6)]
    found = clicks.client.samples_by_key(NAME, np.arange(6))
    assert found.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.timestamps.tolist() == [1_000 + i for i in range(6)]
    info = clicks.client.dataset(NAME)
    assert (info.num_samples, info.num_files, info.num_problems, info.config) == (6, 1, 0, records_dataset())
    assert clicks.client.count_samples(NAME, Interval(1_002, 1_004)) == 2
    assert clicks.client.locate(NAME, np.array([5]))[0].path.endswith("records/00000000.records")


def test_a_reader_keeps_reading_while_records_come(clicks: RunningStorage) -> None:
    stopped = threading.Event()
    clicks.client.append_records(NAME, [numbered(i) for i in range(10)])
    wait_for(clicks, 10)
    wrong: list[BaseException] = []

    def read() -> None:
        try:
            with clicks.short_cut(NAME) as local:
                while not stopped.is_set():
                    there = local.locate(NAME, np.arange(10)).take(slice(None))
                    assert [bytes(there.payload(i)) for i in range(10)] == [numbered(i).payload for i in range(10)]
        except BaseException as error:  # noqa: BLE001  (shown below)
            wrong.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(10, 300):
        clicks.client.append_records(NAME, [numbered(i)])
    stopped.set()
    reader.join(PATIENCE_S)
    assert wrong == []


def test_the_stream_of_new_samples_has_each_once(clicks: RunningStorage) -> None:
    stream = clicks.client.new_samples(NAME, 0, 100)
    seen: list[int] = []
    keys: list[int] = []

    def follow() -> None:
        for batch in stream:
            keys.extend(batch.keys.tolist())
            seen.extend(batch.timestamps.tolist())
            if len(keys) >= 200:
                stream.cancel()

    follower = threading.Thread(target=follow)
    follower.start()
    for first in range(0, 200, 10):
        clicks.client.append_records(NAME, [numbered(i) for i in range(first, first + 10)] + [numbered(first // 2)])
    follower.join(PATIENCE_S)
    assert keys == list(range(200))
    assert seen == [1_000 + i for i in range(200)]


def test_records_survive_restarts(config: SystemConfig) -> None:
    for round_ in range(3):
        with running_storage(config) as storage:
            storage.client.register_dataset(records_dataset())
            answers = storage.client.append_records(NAME, [numbered(i) for i in range(5 * (round_ + 1))])
            assert [answer.is_duplicate for answer in answers] == [True] * (5 * round_) + [False] * 5
            if round_ == 2:
                wait_for(storage, 15)
                assert storage.payloads_both_ways(range(15), NAME) == [numbered(i).payload for i in range(15)]


def test_samples_and_datasets_are_deleted(clicks: RunningStorage) -> None:
    clicks.client.append_records(NAME, [numbered(i) for i in range(5)])
    wait_for(clicks, 5)
    assert clicks.client.delete_samples(NAME, np.array([1, 3])) == 2
    assert clicks.client.dataset(NAME).num_samples == 3
    # That there was such a record is not forgotten.
    assert clicks.client.append_records(NAME, [numbered(1)]) == [AppendedRecord(1, True)]
    folder = clicks.store.dataset(NAME).folder
    clicks.client.delete_dataset(NAME)
    assert not folder.exists()
    with pytest.raises(NotFoundError):
        clicks.client.append_records(NAME, [numbered(1)])
    clicks.client.register_dataset(records_dataset())
    assert clicks.client.append_records(NAME, [numbered(1)]) == [AppendedRecord(0)]


def test_labels_may_be_fractions(clicks: RunningStorage) -> None:
    clicks.client.register_dataset(records_dataset("fractions", "float"))
    clicks.client.append_records("fractions", [NewRecord("a", b"x", 0.25), NewRecord("b", b"y", 2)])
    wait_for(clicks, 2, "fractions")
    assert clicks.client.samples_by_key("fractions", np.arange(2)).labels.tolist() == [0.25, 2.0]
    for label in (1e39, -1e39, float("nan"), float("inf")):
        with pytest.raises(
            InvalidArgumentError,
            match=r"its label is .*; send a finite number of at most 3\.403e\+38, because trainings use float32",
        ):
            clicks.client.append_records("fractions", [NewRecord("c", b"x", label)])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (NewRecord("", b"x", 1), "record 1 of the call.*no idempotency key.*None of the records of this call was appended"),
        (NewRecord("k" * 129, b"x", 1), "has 129 characters; at most 128"),
        (NewRecord("k", b"x" * 1_001, 1), "has 1,001 bytes; allowed are 1,000, which storage.records.max_bytes sets"),
        (NewRecord("k", b"x", 0.5), "its label is 0.5; the labels of this dataset are whole numbers"),
        (NewRecord("k", b"x", float("nan")), "its label is nan"),
        (NewRecord("k", b"x", 2**63), "cannot be sent"),
        (NewRecord("k", b"x", 1, 10**11), "its time is 100000000000; in ms that is 1973-03-03"),
        (NewRecord("k", b"x", 1, 1_764_115_200_000), "its time is 1764115200000; in ms that is 2025-11-26"),
        (NewRecord("k", b"x", 1, 20130131), "its time is 20130131; as a date that is 2013-01-31 .*: send seconds since 1970"),
        (NewRecord("k", b"x", 1, 20130230), "its time is 20130230; it has the digits of a date: send seconds since 1970"),
        (NewRecord("k", b"x", 1, 20130131235959), "as a date that is 2013-01-31 23:59:59: send seconds since 1970"),
        (NewRecord("k", b"x", 1, 10**10), "its time is 10000000000; send seconds.*future_tolerance_s"),
        (NewRecord("\ud800", b"x", 1), "cannot be sent"),
    ],
)
def test_a_record_that_cannot_be_taken_is_named(clicks: RunningStorage, record: NewRecord, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        clicks.client.append_records(NAME, [numbered(0), record])
    assert clicks.client.append_records(NAME, [numbered(0)]) == [AppendedRecord(0)]


def test_calls_that_do_not_fit_a_dataset_of_records_are_refused(clicks: RunningStorage, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no dataset 'nothing'"):
        clicks.client.append_records("nothing", [])
    clicks.client.register_dataset(binary_dataset(tmp_path / "data"))
    with pytest.raises(InvalidArgumentError, match=r"is made of the files in .*data.*`modyn data register NAME --records`"):
        clicks.client.append_records("numbers", [numbered(0)])
    with pytest.raises(NotFoundError, match="was deleted"):
        clicks.client.append_records(NAME, [numbered(0)], identity="another")
    with pytest.raises(AlreadyExistsError, match="label_type"):
        clicks.client.register_dataset(records_dataset(label_type="float"))
    with pytest.raises(ConfigError, match="leave timestamp_source"):
        clicks.client.register_dataset(records_dataset("timed").model_copy(update={"timestamp_source": "field:t"}))
    for fields in (
        {"base_path": "/data", "file_wrapper": "RecordLogWrapper"},
        {"base_path": "records://", "file_wrapper": "CsvFileWrapper"},
    ):
        with pytest.raises(ValueError, match="belong together"):
            DatasetConfig.model_validate({"name": "a", **fields})


def test_many_records_are_sent_in_parts(clicks: RunningStorage) -> None:
    records = [NewRecord(str(i), b"x", i) for i in range(25_000)]
    assert [answer.sample_key for answer in clicks.client.append_records(NAME, records)] == list(range(25_000))
    wait_for(clicks, 25_000)
    assert (clicks.client.samples_by_key(NAME, np.arange(25_000)).labels == np.arange(25_000)).all()
    with pytest.raises(InvalidArgumentError, match="a message to storage at most"):
        clicks.client.append_records(NAME, [NewRecord("large", bytes(40 << 20), 0)])


def test_several_clients_append_at_once(clicks: RunningStorage) -> None:
    appended: list[AppendedRecord] = []

    def work(worker: int) -> None:
        with StorageClient(clicks.config.endpoint("storage")) as client:
            for first in range(0, 200, 5):
                appended.extend(client.append_records(NAME, [numbered(i) for i in range(first, first + 5 + worker % 2)]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert sum(not answer.is_duplicate for answer in appended) == 201
    wait_for(clicks, 201)
    times = clicks.client.samples_by_key(NAME, np.arange(201)).timestamps.tolist()
    assert sorted(times) == [1_000 + i for i in range(201)]


def test_ingest_makes_samples_at_once(make_config: Callable[..., SystemConfig], stack: ExitStack) -> None:
    storage = start_storage(make_config(storage={"records": {"seal_s": 3_600}}), stack)
    storage.client.register_dataset(records_dataset())
    eventually(lambda: not storage.store.dataset(NAME).in_doubt)
    storage.client.append_records(NAME, [numbered(i) for i in range(7)])
    assert storage.ingest(NAME).finished
    assert storage.client.dataset(NAME).num_samples == 7


def test_damage_is_found_by_a_scrub_and_stops_appends(config: SystemConfig) -> None:
    with running_storage(config) as storage:
        storage.client.register_dataset(records_dataset())
        storage.client.append_records(NAME, [numbered(i) for i in range(5)])
        wait_for(storage, 5)
        assert storage.client.scrub_dataset(NAME) == []
        (path,) = storage.store.dataset(NAME).folder.glob("records/*.records")
        flip(path, -3)
        (problem,) = storage.client.scrub_dataset(NAME)
        assert problem.path == str(path)
        assert "is not what was written; restore it from a backup" in problem.reason
        assert storage.client.dataset(NAME).num_problems == 1
    with running_storage(config) as storage:
        with pytest.raises(CorruptStateError, match="restore it from a backup"):
            storage.client.append_records(NAME, [numbered(9)])
        assert storage.payloads_both_ways(range(2), NAME) == [numbered(0).payload, numbered(1).payload]


def test_roots_of_users_files_do_not_concern_records(
    make_config: Callable[..., SystemConfig], stack: ExitStack, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    storage = start_storage(make_config(storage={"records": {"seal_s": 0.05}, "dataset_roots": [str(tmp_path / "data")]}), stack)
    storage.client.register_dataset(records_dataset())
    storage.client.append_records(NAME, [numbered(0)])
    wait_for(storage, 1)
    assert storage.payloads_both_ways(range(1), NAME) == [numbered(0).payload]
    # A folder of storage is none of a user, still.
    with pytest.raises(ModynError, match="outside"):
        storage.client.register_dataset(binary_dataset(storage.store.dataset(NAME).folder / "records", "stolen"))


def test_a_record_that_is_damaged_before_it_is_a_sample(make_config: Callable[..., SystemConfig], stack: ExitStack) -> None:
    storage = start_storage(make_config(storage={"records": {"seal_s": 3_600}}), stack)
    storage.index(records_dataset())  # what registering began may make samples of what comes meanwhile
    storage.client.append_records(NAME, [numbered(i) for i in range(5)])
    (path,) = storage.store.dataset(NAME).folder.glob("records/*.records")
    flip(path, -3)
    with pytest.raises(CorruptStateError, match=r"00000000\.records is damaged.*restore it from a backup and restart storage"):
        storage.ingest(NAME)
    assert storage.client.dataset(NAME).next_key == 0
    assert [problem.path for problem in storage.client.problems(NAME)] == [str(path)]
    with pytest.raises(CorruptStateError, match="restore it from a backup"):
        storage.client.append_records(NAME, [numbered(9)])


def test_a_dataset_of_the_system_file_and_a_replica(
    make_config: Callable[..., SystemConfig], stack: ExitStack, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    datasets = [{"name": NAME, "base_path": "records://"}]
    storage = start_storage(make_config(storage={"datasets": datasets, "dataset_roots": [str(tmp_path / "data")]}), stack)
    storage.client.append_records(NAME, [numbered(i) for i in range(3)])
    wait_for(storage, 3)
    readers = RecordReaders(1, roots=Roots.of([tmp_path / "data"]))
    stack.callback(readers.close)
    snapshot = published_by(storage.config, readers=readers).snapshot(NAME)
    assert payloads_in(snapshot, range(3)) == [numbered(i).payload for i in range(3)]


def test_the_fake_answers_alike(clicks: RunningStorage) -> None:
    fake = FakeStorage()
    fake.add_dataset(NAME, records=True)
    fake.add_dataset("files")
    calls = [[numbered(0), numbered(1), numbered(0)], [], [NewRecord("key-1", b"other", 1), numbered(2)]]
    for client in (fake.client(), clicks.client):
        assert [client.append_records(NAME, records) for records in calls] == [
            [AppendedRecord(0), AppendedRecord(1), AppendedRecord(0, True)],
            [],
            [AppendedRecord(1, True, True), AppendedRecord(2)],
        ]
    assert fake.client().samples_by_key(NAME, np.arange(3)).timestamps.tolist() == [1_000, 1_001, 1_002]
    fake.add_dataset("others", records=True)
    clicks.client.register_dataset(records_dataset("others"))
    for client in (fake.client(), clicks.client):
        with pytest.raises(InvalidArgumentError, match="dataset 'others': the times here, 2013, are most likely years"):
            client.append_records("others", [NewRecord("a", b"x", 1, 2013), NewRecord("b", b"x", 1)])
    with pytest.raises(InvalidArgumentError, match="takes no records"):
        fake.client().append_records("files", [])
