"""Observations that become records of a dataset."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from structlog.testing import capture_logs

from modyn.errors import ConfigError, ConflictError, InvalidArgumentError, NotFoundError
from modyn.models.classes import LabelClasses
from modyn.serving.messages.infer import InferAnswer, InferRequest
from modyn.serving.observations.intake import ObservationIntake, PostedLabel
from modyn.serving.observations.join import Appended, ObservationRecord, RequestFeatures
from modyn.serving.observations.storage_log import StorageObservationLog, check_readable, payload_of
from modyn.storage.client import MOST_RECORDS, AppendedRecord, DatasetInfo, NewRecord
from modyn.testing.fake_storage import FakeStorage, FakeStorageClient


def record(key: str, label: float, *row: float) -> ObservationRecord:
    return ObservationRecord(key, RequestFeatures({"x": np.array([row], np.float32)}), label, 100.9)


@pytest.fixture
def storage() -> FakeStorage:
    found = FakeStorage()
    found.add_dataset("seen", records=True)
    found.add_dataset("files")
    return found


def test_each_observation_is_a_sample_once(storage: FakeStorage) -> None:
    client = storage.client()
    log = StorageObservationLog(client, "seen")
    log.append([record("a", 1, 1.0, 2.0), record("b", 0, 3.0, 4.0)])
    log.append([record("b", 0, 3.0, 4.0), record("c", 2, 5.0, 6.0)])
    assert client.dataset("seen").num_samples == 3


def test_another_label_of_a_stored_key_is_reported_and_another_time_is_not(storage: FakeStorage) -> None:
    log = StorageObservationLog(storage.client(), "seen")
    assert log.append([record("a", 1, 1.0), record("b", 0, 3.0)]) == Appended()
    later = ObservationRecord("a", RequestFeatures({"x": np.array([[1.0]], np.float32)}), 1, 500.0)
    assert log.append([later, record("b", 2, 3.0), record("c", 2, 5.0)]) == Appended({"a": 1, "b": 0})


def test_other_inputs_of_a_stored_key_are_distinguished_from_the_same_ones(storage: FakeStorage) -> None:
    """Label and time do not matter. A record of another client may have had no time."""
    client = storage.client()
    log = StorageObservationLog(client, "seen")
    log.append([record("a", 1, 1.0), record("b", 0, 2.0), record("c", 1, 3.0)])
    client.append_records("seen", [NewRecord("d", payload_of(record("d", 0, 4.0).features.inputs), 2)])
    again = [record("a", 1, 9.0), record("b", 5, 9.0), record("c", 5, 3.0), record("d", 2, 4.0), record("e", 1, 1.0)]
    later = [replace(each, observed_at=500.0) for each in again]
    assert log.append(later) == Appended({"c": 1, "d": 2}, reused=frozenset("ab"))
    assert client.dataset("seen").num_samples == 5


def test_what_cannot_be_compared_yet_is_decided_later(storage: FakeStorage) -> None:
    """Storage makes samples of records a moment later, or after storage.records.seal_s."""
    client = UnsealedClient(storage)
    StorageObservationLog(client, "seen").append([record("a", 1, 1.0), record("b", 1, 1.0)])
    intake = ObservationIntake("m", StorageObservationLog(client, "seen", sealed_s=0.0), clock=lambda: 500.0)
    client.is_sealed = False
    same, other = (PostedLabel(key, 1, record(key, 1, number).features) for key, number in (("a", 1.0), ("b", 2.0)))
    for _ in range(2):
        assert intake.post([same, other]) == {"stored": 0, "waiting": 2, "repeated": 0}
    client.is_sealed = True
    assert intake.post([same]) == {"stored": 0, "waiting": 0, "repeated": 1}
    with pytest.raises(ConflictError):
        intake.post([other])
    client.delete_samples("seen", np.array([0]))
    again = StorageObservationLog(client, "seen").append([record("a", 0, 9.0), record("b", 0, 1.0)])
    assert again == Appended({"a": 0, "b": 1}), "of what was deleted, no more is known than that it was a sample"


def test_an_id_that_two_runs_use_for_one_dataset_loses_no_label_silently(storage: FakeStorage) -> None:
    """The same observation is one sample, as if it were sent again; another one is a conflict, also once it was joined later."""
    first, second = (ObservationIntake(name, StorageObservationLog(storage.client(), "seen")) for name in ("old", "new"))

    def predict(intake: ObservationIntake, key: str, number: float) -> None:
        inputs = {"x": np.array([[number]], np.float32)}
        intake.add_prediction(InferRequest("m", inputs), InferAnswer("m", "1", key, {}))

    for key in "abc":
        predict(first, key, 1.0)
    assert first.post([PostedLabel(key, 1, None) for key in "abc"])["stored"] == 3
    predict(second, "a", 1.0)
    assert second.post([PostedLabel("a", 1, None)]) == {"stored": 0, "waiting": 0, "repeated": 1}
    predict(second, "b", 2.0)
    with pytest.raises(ConflictError, match="observation 'b' is stored with other inputs, of .* another run .*a key of its own"):
        second.post([PostedLabel("b", 1, None)])
    assert second.post([PostedLabel("c", 1, None)])["waiting"] == 1
    predict(second, "c", 2.0)
    with capture_logs() as lines:
        second.flush()
    assert [line["key"] for line in lines if line["event"] == "observation_refused"] == ["c"]
    for key in "bc":
        with pytest.raises(ConflictError):
            second.post([PostedLabel(key, 1, None)])
    assert second.post([PostedLabel("own", 1, RequestFeatures({"x": np.array([[2.0]], np.float32)}))])["stored"] == 1
    assert storage.client().dataset("seen").num_samples == 4


def test_what_storage_refuses_for_good_is_reported_and_keeps_no_other_back(storage: FakeStorage) -> None:
    client = storage.client()
    large = record("b", 0, *[1.0] * 300_000)  # 1.2 MB; storage takes 1 MiB
    found = StorageObservationLog(client, "seen").append([record("a", 1, 1.0), large, record("c", 2, 1.0)])
    assert found.known == {}
    assert list(found.refused) == ["b"]
    assert "its payload has 1,200,000 bytes" in found.refused["b"]
    assert client.dataset("seen").num_samples == 2


class CountingClient(FakeStorageClient):
    """Counts the calls that append, and makes several of many records, as the real one does."""

    num_calls = 0

    def append_records(self, name: str, records: Sequence[NewRecord], identity: str = "") -> list[AppendedRecord]:
        answers = list[AppendedRecord]()
        for first in range(0, len(records), MOST_RECORDS):
            self.num_calls += 1
            answers += super().append_records(name, records[first : first + MOST_RECORDS], identity)
        return answers


class UnsealedClient(FakeStorageClient):
    """Records do not become samples while `is_sealed` is False."""

    is_sealed = True

    def dataset(self, name: str) -> DatasetInfo:
        found = super().dataset(name)
        return found if self.is_sealed else replace(found, next_key=0)


@pytest.mark.parametrize("wrong", [0, 700, 1023])
def test_one_refused_record_of_many_costs_few_calls(storage: FakeStorage, wrong: int) -> None:
    client = CountingClient(storage)
    log = StorageObservationLog(client, "seen")
    found = log.append([record(str(number), -(2**63) - 1 if number == wrong else 1, 1.0) for number in range(1024)])
    assert list(found.refused) == [str(wrong)]
    assert client.dataset("seen").num_samples == 1023
    assert client.num_calls <= 2 * 10 + 2


def test_what_was_appended_before_a_refused_record_is_new(storage: FakeStorage) -> None:
    sent = [record(str(number), 1, 1.0) for number in range(MOST_RECORDS + 1)]
    found = StorageObservationLog(CountingClient(storage), "seen").append([*sent, record("wrong", 2**63, 1.0)])
    assert (found.known, list(found.refused)) == ({}, ["wrong"])


def test_labels_of_a_clock_that_is_ahead_are_kept_with_the_time_of_storage(storage: FakeStorage) -> None:
    """Storage refuses such times, which its data cannot have."""
    before, ahead = int(time.time()), time.time() + 400 * 86_400
    client = CountingClient(storage)
    log = StorageObservationLog(client, "seen")
    sent = [record("now", 1, 1.0), *(replace(record(f"{number}", 1, 1.0), observed_at=ahead) for number in range(500))]
    with capture_logs() as lines:
        assert log.append(sent) == Appended()
        assert client.num_calls <= 2 * 9 + 2
        assert log.append(sent) == Appended({each.key: 1 for each in sent}), "each of them counts once"
    assert client.samples_by_key("seen", np.array([0])).timestamps.tolist() == [100]
    times = client.samples_by_key("seen", np.arange(1, 501)).timestamps
    assert (before <= times).all()
    assert (times <= time.time()).all()
    (line,) = lines
    assert line["event"] == "observed_in_the_future"
    assert "storage.future_tolerance_s" in line["advice"]


def test_labels_that_the_dataset_cannot_take_are_refused_with_what_to_do(storage: FakeStorage) -> None:
    log = StorageObservationLog(storage.client(), "seen")
    for label in (1, 2.0, 1 - 2**63):
        log.check_label(label)
    for label in (0.5, 2**63, -(2**63)):
        with pytest.raises(InvalidArgumentError, match="labels of this dataset are whole numbers.*--records -o label_type=float"):
            log.check_label(label)
    storage.add_dataset("prices", records=True, float_labels=True)
    prices = StorageObservationLog(storage.client(), "prices")
    for label in (0.5, -3.4e38):
        prices.check_label(label)
    for label in (1e39, -1e39, 2**130):
        with pytest.raises(
            InvalidArgumentError,
            match=r"the label is .*; send a finite number of at most 3\.403e\+38, because trainings use float32",
        ):
            prices.check_label(label)
    with pytest.raises(InvalidArgumentError, match="has no exact float64, so it would be rounded"):
        prices.check_label(2**53 + 1)
    assert prices.append([record("a", 0.5, 1.0), record("b", 2**63, 1.0)]) == Appended()


def test_a_dataset_that_takes_no_records_is_refused(storage: FakeStorage) -> None:
    with pytest.raises(InvalidArgumentError, match="made of files.*--records"):
        StorageObservationLog(storage.client(), "files")
    with pytest.raises(NotFoundError):
        StorageObservationLog(storage.client(), "none")


def test_labels_that_are_not_a_class_of_the_model_are_refused(storage: FakeStorage) -> None:
    log = StorageObservationLog(storage.client(), "seen", classes=LabelClasses(2, ignored=-100))
    for label in (0, 1, -100):
        log.check_label(label)
    with pytest.raises(InvalidArgumentError, match=r"the label is 99, and the model has 2 classes \(0 to 1\); send one of these"):
        log.check_label(99)


@given(row=hnp.arrays(st.sampled_from([">f4", "<f8", "<i2", ">u4", "|b1"]), hnp.array_shapes(min_dims=1, max_dims=3)))
def test_numbers_are_the_bytes_that_a_record_layout_reads(row: np.ndarray) -> None:
    payload = payload_of({"x": row[None]})
    np.testing.assert_array_equal(np.frombuffer(payload, row.dtype.newbyteorder("<")).reshape(row.shape), row)


def test_several_inputs_are_an_object() -> None:
    inputs = {
        "x": np.array([[1.5, 2.0]], np.float32),
        "n": np.array([3]),
        "site": np.array([b"a.org"], object),
        "raw": np.array([[b"\xff", b"b"]], object),
    }
    assert json.loads(payload_of(inputs)) == {"x": [1.5, 2.0], "n": 3, "site": "a.org", "raw": ["/w==", "b"]}


def test_observations_are_not_added_to_a_dataset_that_is_read_as_csv() -> None:
    pipeline = {"data": {"dataset_id": "clicks"}, "preprocessing": {"format": "csv"}}
    with pytest.raises(ConfigError, match="the run reads dataset 'clicks' as CSV"):
        check_readable(pipeline, "clicks")
    check_readable(pipeline, "seen")
    check_readable(pipeline, None)
    check_readable({**pipeline, "preprocessing": {"format": "json"}}, "clicks")
    check_readable({"data": {"dataset_id": "clicks"}}, "clicks")
