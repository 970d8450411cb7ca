"""Sets of keys are read back as they were, and take about a bit for each sample of the dataset."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.cache.sharing.key_sets import held, pack, unpack


@given(st.sets(st.one_of(st.integers(0, 300), st.integers(0, 10**6), st.integers(0, 2**62)), min_size=1))
def test_round_trip(keys: set[int]) -> None:
    array = np.array(sorted(keys))
    key_set, packed = pack(array)
    assert key_set.num_bytes == len(packed)
    assert unpack(key_set, packed).tolist() == array.tolist()
    with pytest.raises(ValueError, match="not the set"):
        unpack(key_set, packed[:-1])


@given(st.sets(st.integers(0, 50), min_size=1), st.sets(st.integers(0, 50), min_size=1))
def test_common_keys(keys: set[int], others: set[int]) -> None:
    found = held(np.array(sorted(keys)), np.array(sorted(others)))
    assert np.array(sorted(keys))[found].tolist() == sorted(keys & others)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.01, 0.001])
def test_size(share: float) -> None:
    num_samples = 200_000
    keys = np.sort(np.random.default_rng(0).permutation(num_samples)[: int(share * num_samples)])
    assert len(pack(keys)[1]) <= num_samples / 8 + 200
