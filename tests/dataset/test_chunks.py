"""Keys and weights of a partition by row, in each form that keeps them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.dataset.chunks import PartitionKeys
from modyn.records import KeysAndWeights

RUNS = st.lists(st.tuples(st.integers(0, 2**60), st.integers(0, 5), st.integers(1, 8)), max_size=100)


@given(RUNS, st.booleans(), st.data())
def test_looking_up_is_indexing(runs: list[tuple[int, int, int]], equal: bool, data: st.DataObject) -> None:
    keys = np.array([first + i * step for first, step, count in runs for i in range(count)], np.int64)
    weights = np.full(len(keys), 0.25, np.float32) if equal else np.arange(len(keys), dtype=np.float32)
    keys.setflags(write=False)
    weights.setflags(write=False)
    rows = np.array(data.draw(st.lists(st.integers(0, len(keys) - 1), max_size=50)) if len(keys) else [], np.int64)
    found = PartitionKeys(KeysAndWeights(keys, weights)).look_up(rows)
    assert np.array_equal(found.keys, keys[rows])
    assert np.array_equal(found.weights, weights[rows])
    assert found.weights.dtype == np.float32


def test_keys_that_follow_one_another_are_not_kept() -> None:
    whole = KeysAndWeights(np.arange(1_000_000, dtype=np.int64), np.ones(1_000_000, np.float32))
    kept = PartitionKeys(whole)
    assert not any(isinstance(part, np.ndarray) for part in (kept._keys, kept._weights))


@pytest.mark.parametrize("weight", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_kept(weight: float) -> None:
    found = PartitionKeys(KeysAndWeights(np.arange(3), np.array([1, weight, weight], np.float32))).look_up(np.array([2, 0]))
    assert found.weights.tolist() == pytest.approx([weight, 1], nan_ok=True)
