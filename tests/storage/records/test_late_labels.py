"""Records without a label, and labels that come later by key: durable, once each, seen by every reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.config.system import SystemConfig
from modyn.errors import CorruptStateError, InvalidArgumentError, NotFoundError
from modyn.records import NO_LABEL, Interval, has_label
from modyn.storage.client import AppendedRecord, NewRecord, StorageClient
from modyn.storage.index.late_labels import LATE_LABELS, LateLabels, append_late_labels, read_late_labels
from modyn.storage.read.record_readers import RecordReaders
from modyn.testing.fake_storage import FakeStorage
from tests.support.running_storage import RunningStorage, published_by, records_dataset, start_storage


def record(number: int, label: float | None = None) -> NewRecord:
    return NewRecord(f"key-{number}", b"payload of %d" % number, label, 1_000 + number)


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """What is stopped to start storage again."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def storage(config: SystemConfig, running: ExitStack) -> RunningStorage:
    storage = start_storage(config, running)
    for label_type in ("int", "float"):
        storage.client.register_dataset(records_dataset(label_type, label_type))
    return storage


@pytest.fixture
def fake() -> StorageClient:
    storage = FakeStorage()
    storage.add_dataset("int", records=True)
    storage.add_dataset("float", float_labels=True, records=True)
    return storage.client()


def labels_of(client: StorageClient, name: str, **bounds: Any) -> list[Any]:
    """The labels of a replay; None: there is none."""
    batches = client.samples_in_interval(name, Interval(), 3, **bounds)
    return [label if has else None for b in batches for label, has in zip(b.labels.tolist(), has_label(b.labels), strict=True)]


def pushed(client: StorageClient, name: str, first: int, number: int) -> list[tuple[int, int, float]]:
    """Return `number` labels from number `first` on: keys, timestamps and labels."""
    stream, found = client.new_labels(name, first, 2), list[tuple[int, int, float]]()
    for batch in stream:
        assert batch.first == first + len(found)
        found += zip(
            *(column.tolist() for column in (batch.samples.keys, batch.samples.timestamps, batch.samples.labels)), strict=True
        )
        if len(found) >= number:
            break
    stream.cancel()
    return found


def check(client: StorageClient, name: str) -> None:
    """Check the guarantees of storage for late labels."""
    half = 0.5 if name == "float" else 0
    client.append_records(name, [record(0, 7), record(1), record(2), record(3, 8), record(4)])
    (done,) = client.set_labels(name, {"key-4": 1 + half})
    assert done == AppendedRecord(4)
    # Of what was set before the one that came first counts; a label that a record came with stays.
    answers = client.set_labels(name, {"key-4": 1 + half, "key-1": 2, "key-0": 7, "key-3": 9})
    assert answers == [AppendedRecord(4, True), AppendedRecord(1), AppendedRecord(0, True), AppendedRecord(3, True, True)]
    assert client.set_labels(name, {"key-1": 5}) == [AppendedRecord(1, True, True)]
    with pytest.raises(NotFoundError, match="no record with the key 'other'"):
        client.set_labels(name, {"key-2": 3, "other": 1})
    assert labels_of(client, name) == [7, 2, None, 8, 1 + half], "nothing of a call that is refused is set"
    assert labels_of(client, name, end_label=1) == [7, None, None, 8, 1 + half]
    assert pushed(client, name, 0, 2) == [(4, 1004, 1 + half), (1, 1001, 2)]
    assert pushed(client, name, 1, 1) == [(1, 1001, 2)]
    info = client.dataset(name)
    assert (info.num_samples, info.num_labels, info.num_unlabelled) == (5, 2, 1)
    # The stream of new samples has them as they came: what comes later comes as a label.
    (batch,) = islice(client.new_samples(name, 0, 100), 1)
    assert has_label(batch.labels).tolist() == [True, False, False, True, False]
    found = client.samples_by_key(name, np.array([4, 2, 1]))
    assert has_label(found.labels).tolist() == [True, False, True]
    assert found.labels[[0, 2]].tolist() == [1 + half, 2]
    # Whole numbers are rounded in no dataset.
    for label in (2**53 + 1, -(2**53) - 1, 2**62 + 1) if name == "float" else ():
        with pytest.raises(InvalidArgumentError, match=f"label {label} has no exact float64, so it would be rounded"):
            client.append_records(name, [record(9, label)])
        with pytest.raises(InvalidArgumentError, match=f"label {label} has no exact float64, so it would be rounded"):
            client.set_labels(name, {"key-2": label})
    # A record that is sent again without its label is the same one.
    assert client.append_records(name, [record(4)]) == [AppendedRecord(4, True)]


@pytest.mark.parametrize("name", ["int", "float"])
def test_labels_come_later_by_key_in_the_fake(fake: StorageClient, name: str) -> None:
    check(fake, name)


def test_labels_come_later_by_key(storage: RunningStorage, config: SystemConfig, running: ExitStack, stack: ExitStack) -> None:
    client = storage.client
    for name in ("int", "float"):
        client.append_records(name, [])
        check(client, name)
    for wrong, words in ((float("nan"), "finite"), (1e39, "finite")):
        with pytest.raises(InvalidArgumentError, match=words):
            client.set_labels("float", {"key-2": wrong})
    for label in (0.5, NO_LABEL):
        with pytest.raises(InvalidArgumentError, match="whole numbers"):
            client.set_labels("int", {"key-2": label})
        with pytest.raises(InvalidArgumentError, match="whole numbers"):
            client.append_records("int", [record(9, label)])

    # Payloads by Flight, read locally, and by a replica, which has seen the dataset before a label came.
    keys = np.array([1, 2, 4], np.int64)
    readers = RecordReaders(1)
    running.callback(readers.close)
    replica = published_by(config, readers=readers)
    assert replica.snapshot("int").samples_by_key(keys).labels.tolist() == [2, NO_LABEL, 1]
    with storage.short_cut("int") as local:
        client.set_labels("int", {"key-2": 6})
        assert local.locate("int", keys).take(slice(None)).labels.tolist() == [2, 6, 1]
    (payloads,) = storage.payloads.fetch("int", keys)
    assert payloads.labels.tolist() == [2, 6, 1]
    assert replica.snapshot("int").samples_by_key(keys).labels.tolist() == [2, 6, 1]

    running.close()
    again = start_storage(config, stack)
    assert labels_of(again.client, "int") == [7, 2, 6, 8, 1]
    assert again.client.set_labels("int", {"key-2": 6, "key-4": 2}) == [AppendedRecord(2, True), AppendedRecord(4, True, True)]
    assert pushed(again.client, "int", 0, 3) == [(4, 1004, 1), (1, 1001, 2), (2, 1002, 6)]


def test_a_lost_file_of_late_labels_is_noticed(
    storage: RunningStorage, config: SystemConfig, running: ExitStack, stack: ExitStack
) -> None:
    """Readers, scrubs and the next start of storage notice it: labels do not vanish in silence."""
    client = storage.client
    client.append_records("int", [record(0, 7), record(1), record(2)])
    client.set_labels("int", {"key-1": 5})
    path = storage.store.dataset("int").folder / LATE_LABELS
    whole = path.read_bytes()
    path.unlink()
    lost = f"file of labels that came late {path} is damaged: it is missing, but 1 or more came late; restore it from a backup"
    for read in (
        lambda: labels_of(client, "int"),
        lambda: client.set_labels("int", {"key-2": 1}),
        lambda: pushed(client, "int", 0, 1),
    ):
        with pytest.raises(CorruptStateError, match=lost):
            read()
    assert [problem.path for problem in storage.store.dataset("int").scrub()] == [str(path)]
    path.write_bytes(whole)
    assert labels_of(client, "int") == [7, 5, None]
    path.unlink()
    running.close()
    with pytest.raises(CorruptStateError, match=lost), start_storage(config, stack).short_cut("int") as local:
        local.locate("int", np.arange(3))


def test_who_has_received_more_labels_than_there_are_is_told(storage: RunningStorage, fake: StorageClient) -> None:
    """A run that is resumed after an older backup was restored does not wait for ever."""
    for client in (storage.client, fake):
        client.append_records("int", [record(0), record(1)])
        client.set_labels("int", {"key-1": 5})
        with pytest.raises(
            CorruptStateError, match="dataset 'int' has 1 labels that came after their samples, and 2 were received of it"
        ):
            pushed(client, "int", 2, 1)


def test_labels_of_deleted_samples_are_marked(storage: RunningStorage, fake: StorageClient) -> None:
    """A run that has not received them gets them no more."""
    for client in (storage.client, fake):
        client.append_records("int", [record(0), record(1), record(2)])
        client.set_labels("int", {"key-2": 5, "key-0": 6})
        client.delete_samples("int", np.array([0, 1]))
        stream = client.new_labels("int", 0, 10)
        batch = next(stream)
        stream.cancel()
        assert (batch.samples.keys.tolist(), batch.deleted.tolist()) == ([2, 0], [False, True])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=12), st.integers(0, 150))
def test_labels_are_found_however_they_came(parts: list[list[int]], end: int) -> None:
    """They come in any parts, and keys repeat: the first label of a sample counts, if it is one of the first `end`."""
    labels, came = LateLabels(), list[tuple[int, int]]()
    for part in parts:
        rows = np.zeros(len(part), labels.rows(0, 0).dtype)
        rows["key"], rows["label"] = part, np.arange(len(part)) + len(came)
        came += zip(part, rows["label"].tolist(), strict=True)
        labels = labels.with_rows(rows, labels.log)
        sizes = [len(run.rows) for run in labels.runs]
        assert sum(sizes) == len(came)
        assert all(before > 2 * after for before, after in pairwise(sizes)), "of few runs each is short enough"
    assert labels.rows(end // 2, end)[["key", "label"]].tolist() == came[end // 2 : end]
    expected = dict(reversed(came[:end]))
    known = np.where(np.arange(42) == 7, 99, NO_LABEL)
    filled = labels.filled(np.arange(42), known, end)
    assert filled.tolist() == [99 if key == 7 else expected.get(key, NO_LABEL) for key in range(42)]
    assert known[8] == NO_LABEL, "it is copied"


def test_labels_are_read_on_from_where_a_reader_was(tmp_path: Path) -> None:
    path, labels = tmp_path / LATE_LABELS, LateLabels()
    assert len(read_late_labels(path)) == 0
    rng, expected, seen = np.random.default_rng(1), dict[int, int](), LateLabels()
    for keys in np.split(rng.permutation(60), [1, 20, 21, 50]):
        labels = append_late_labels(path, labels, keys.astype(np.int64), keys % 7, at=5)
        expected |= {int(key): int(key) % 7 for key in keys}
        seen = read_late_labels(path, seen)
        for found in (labels, seen, read_late_labels(path)):
            filled = found.filled(np.arange(61), np.full(61, NO_LABEL))
            assert filled.tolist() == [expected.get(key, NO_LABEL) for key in range(61)]
            assert found.rows(0, 60)["key"].tolist() == list(expected)
    # What a process left after the rows that count is overwritten.
    with path.open("ab") as file:
        file.write(b"left behind" * 30)
    labels = append_late_labels(path, read_late_labels(path), np.array([60]), np.array([3]), at=6)
    assert len(read_late_labels(path)) == 61
