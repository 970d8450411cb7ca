"""The table finds what was added, and nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from modyn.preprocessing.statistics.hash_index import HashIndex

# Hashes that share their lower bits collide at every size of the table.
HASHES = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 300).map(lambda number: number << 40 | 63))


@given(parts=st.lists(st.lists(HASHES, max_size=60), max_size=5), others=st.lists(HASHES, max_size=20))
def test_all_that_was_added_is_found(parts: list[list[int]], others: list[int]) -> None:
    index, expected = HashIndex(), dict[int, int]()
    for part in parts:
        fresh = [key for key in dict.fromkeys(part) if key not in expected]
        numbers = [len(expected) + at for at in range(1, len(fresh) + 1)]
        index.add(np.array(fresh, np.uint64), np.array(numbers, np.int64))
        expected.update(zip(fresh, numbers, strict=True))
        asked = [*expected, *others]
        assert index.find(np.array(asked, np.uint64)).tolist() == [expected.get(key, 0) for key in asked]
    assert index.find(np.empty(0, np.uint64)).tolist() == []
