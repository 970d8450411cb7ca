"""Deleted samples have no place in windows, and storage is asked for their keys only when there are more of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn._core import KeySet
from modyn.errors import NotFoundError
from modyn.records import SampleBatch
from modyn.selector.deletions import StorageDeletions
from modyn.selector.window import BLOCK, LiveReader, window_of_trigger
from modyn.testing.fake_storage import FakeStorage, FakeStorageClient
from modyn.testing.memory_reader import MemoryReader


@given(
    size=st.sampled_from([0, 1, 50, BLOCK, BLOCK + 3, 2 * BLOCK + 100]),
    start_share=st.sampled_from([0.0, 0.3, 1.0]),
    deleted_share=st.sampled_from([0.0, 0.001, 0.5, 0.999, 1.0]),
    seed=st.integers(0, 99),
)
def test_samples_that_exist_are_numbered_without_the_others(
    size: int, start_share: float, deleted_share: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.permutation(size)
    samples = SampleBatch(keys, np.arange(size), keys % 7)
    deleted = np.flatnonzero(rng.random(size) < deleted_share)
    start = int(start_share * size)
    live = LiveReader(MemoryReader(samples), start, size, KeySet(deleted))
    expected = start + np.flatnonzero(~np.isin(keys[start:], deleted))
    assert len(live) == len(expected)
    for first in {0, len(expected) // 3, len(expected)}:
        for last in {first, min(first + 5, len(expected)), len(expected)}:
            assert np.array_equal(live.read_keys(first, last), keys[expected[first:last]])
            assert np.array_equal(live.read_labels(first, last), keys[expected[first:last]] % 7)
            assert np.array_equal(live.positions(first, last), expected[first:last])
            found = live.read(first, last)
            assert np.array_equal(found.keys, keys[expected[first:last]])
            assert np.array_equal(found.timestamps, expected[first:last])
            assert np.array_equal(found.labels, keys[expected[first:last]] % 7)


def test_a_window_counts_what_exists() -> None:
    keys = np.arange(100)
    reader = MemoryReader(SampleBatch(keys, keys, keys))
    window = window_of_trigger(reader, 10, 80, 1, KeySet(np.array([5, 15, 25, 26, 99])))
    assert len(window) == 70 - 3
    assert next(window.last(3).all_keys()).tolist() == [77, 78, 79]
    untouched = window_of_trigger(reader, 50, 80, 1, KeySet(np.array([5, 15, 25, 26, 99])))
    assert (untouched.start, untouched.end, untouched.reader) == (50, 80, reader)


class Counting(FakeStorageClient):
    """Counts the requests for keys."""

    def __init__(self, storage: FakeStorage) -> None:
        super().__init__(storage)
        self.fetched = 0

    def deleted_keys(self, name: str, identity: str = "") -> KeySet:
        self.fetched += 1
        return super().deleted_keys(name, identity)


class RegisteredAnewMeanwhile(FakeStorageClient):
    """Another dataset takes the name between the two calls."""

    def __init__(self, storage: FakeStorage) -> None:
        super().__init__(storage)
        self._fake = storage

    def deleted_keys(self, name: str, identity: str = "") -> KeySet:
        self._fake.add_dataset(name)
        self._fake.add_samples(name, timestamps=range(10))
        return super().deleted_keys(name, identity)


def test_the_deletions_of_another_dataset_of_that_name_are_never_taken() -> None:
    storage = FakeStorage()
    storage.add_dataset("d")
    storage.add_samples("d", timestamps=range(10))
    client = RegisteredAnewMeanwhile(storage)
    identity = client.dataset("d").identity
    client.delete_samples("d", np.array([3, 4]))
    with pytest.raises(NotFoundError, match="another was registered under its name"):
        StorageDeletions(client)("d", identity)


def test_storage_is_asked_for_keys_only_when_there_are_more_of_them() -> None:
    storage = FakeStorage()
    for number in range(20):
        storage.add_dataset(f"d{number}")
        storage.add_samples(f"d{number}", timestamps=range(10))
    client = Counting(storage)
    deletions = StorageDeletions(client)
    assert len(deletions("d0", "")) == client.fetched == 0
    client.delete_samples("d0", np.array([3, 4]))
    for _ in range(3):
        assert deletions("d0", "").contains(np.array([2, 3, 4])).tolist() == [False, True, True]
    assert client.fetched == 1
    client.delete_samples("d0", np.array([2]))
    assert len(deletions("d0", "")) == 3
    assert client.fetched == 2
    for number in range(1, 20):
        client.delete_samples(f"d{number}", np.array([number % 10]))
        assert deletions(f"d{number}", "").between(0, 10).tolist() == [number % 10]
    assert len(deletions("d0", "")) == 3
    storage.add_dataset("d0")  # another one of that name
    storage.add_samples("d0", timestamps=range(10))
    client.delete_samples("d0", np.array([7, 8, 9]))
    assert deletions("d0", client.dataset("d0").identity).between(0, 10).tolist() == [7, 8, 9]
    with pytest.raises(NotFoundError, match="another was registered under its name"):
        deletions("d0", "of the first")
    with pytest.raises(NotFoundError, match="no dataset 'other'"):
        deletions("other", "")
