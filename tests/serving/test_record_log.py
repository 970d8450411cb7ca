"""Observations that become records of a dataset."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from modyn.errors import ConfigError, InvalidArgumentError, NotFoundError
from modyn.models.classes import LabelClasses
from modyn.serving.observation_join import Appended, ObservationRecord, RequestFeatures
from modyn.serving.record_log import StorageObservationLog, check_readable, payload_of
from modyn.testing.fake_storage import FakeStorage


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


def test_what_storage_refuses_for_good_is_reported_and_keeps_no_other_back(storage: FakeStorage) -> None:
    client = storage.client()
    large = record("b", 0, *[1.0] * 300_000)  # 1.2 MB; storage takes 1 MiB
    found = StorageObservationLog(client, "seen").append([record("a", 1, 1.0), large, record("c", 2, 1.0)])
    assert found.known == {}
    assert list(found.refused) == ["b"]
    assert "its payload has 1,200,000 bytes" in found.refused["b"]
    assert client.dataset("seen").num_samples == 2


def test_labels_that_the_dataset_cannot_take_are_refused_with_what_to_do(storage: FakeStorage) -> None:
    log = StorageObservationLog(storage.client(), "seen")
    for label in (1, 2.0, -(2**63)):
        log.check_label(label)
    for label in (0.5, 2**63):
        with pytest.raises(InvalidArgumentError, match="dataset 'seen' takes whole numbers.*--records -o label_type=float"):
            log.check_label(label)
    storage.add_dataset("prices", records=True, float_labels=True)
    prices = StorageObservationLog(storage.client(), "prices")
    for label in (0.5, -3.4e38):
        prices.check_label(label)
    for label in (1e39, -1e39, 2**130):
        with pytest.raises(
            InvalidArgumentError, match=r"the label is .*; send a finite number of at most 3\.403e\+38, as float32 holds"
        ):
            prices.check_label(label)
    assert prices.append([record("a", 0.5, 1.0), record("b", 2**63, 1.0)]) == Appended()


def test_a_dataset_that_takes_no_records_is_refused(storage: FakeStorage) -> None:
    with pytest.raises(InvalidArgumentError, match="made of files.*--records"):
        StorageObservationLog(storage.client(), "files")
    with pytest.raises(NotFoundError):
        StorageObservationLog(storage.client(), "none")


def test_labels_that_are_no_class_of_the_model_are_refused(storage: FakeStorage) -> None:
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
