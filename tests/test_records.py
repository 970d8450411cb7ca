"""Records keep their columns together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.records import Interval, RunId, SampleBatch, TriggerSetInfo


def batch(num: int, first: int = 0) -> SampleBatch:
    keys = np.arange(first, first + num, dtype=np.int64)
    return SampleBatch(keys, keys * 10, keys % 3)


def test_columns_of_different_length_are_refused() -> None:
    keys = np.arange(3, dtype=np.int64)
    with pytest.raises(ValueError, match="3 keys, 3 timestamps, 2 labels"):
        SampleBatch(keys, keys, keys[:2])


@given(st.integers(0, 20), st.lists(st.integers(0, 20), max_size=4))
def test_slices_put_together_are_the_whole(num: int, cuts: list[int]) -> None:
    whole = batch(num)
    bounds = [0, *sorted(min(cut, num) for cut in cuts), num]
    again = SampleBatch.concatenate([whole.slice(a, b) for a, b in itertools.pairwise(bounds)])
    for column in ("keys", "timestamps", "labels"):
        np.testing.assert_array_equal(getattr(again, column), getattr(whole, column))
    assert len(again) == num


def test_nothing_put_together_is_empty() -> None:
    assert len(SampleBatch.concatenate([])) == len(SampleBatch.empty()) == 0


def test_float_labels_stay_float() -> None:
    keys = np.arange(2, dtype=np.int64)
    joined = SampleBatch.concatenate(
        [SampleBatch(keys, keys, np.array([0.5, 1.5])), SampleBatch(keys, keys, np.array([2.5, 3.5]))]
    )
    assert joined.labels.tolist() == [0.5, 1.5, 2.5, 3.5]


def test_an_interval_holds_its_start_and_not_its_end() -> None:
    interval = Interval(10, 20)
    assert [t in interval for t in (9, 10, 19, 20)] == [False, True, True, False]
    assert 20 in Interval(20, 30)
    assert -(2**63) in Interval()


@given(st.integers(0, 1000), st.integers(1, 50))
def test_partitions_cover_a_trigger_set(num_keys: int, size: int) -> None:
    info = TriggerSetInfo(RunId("r"), 0, num_keys, size, "")
    assert (info.num_partitions - 1) * size < num_keys <= info.num_partitions * size or num_keys == info.num_partitions == 0
