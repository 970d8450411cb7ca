"""Counts are exact within the capacity, and within the error beyond it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import CorruptStateError
from modyn.preprocessing.statistics.frequent_items import FrequentItems

STREAMS = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=30), min_size=1, max_size=5)


def counted(values: list[str], into: FrequentItems[str]) -> None:
    found = Counter(values)
    into.update(found.keys(), found.values())


@given(stream=STREAMS, capacity=st.integers(1, 9), merging=st.booleans())
def test_counts_are_within_the_error(stream: list[list[str]], capacity: int, merging: bool) -> None:
    items, exact = FrequentItems[str](capacity), Counter("".join(map("".join, stream)))
    for part in stream:
        if merging:
            other = FrequentItems[str](capacity)
            counted(part, other)
            items.merge(other)
        else:
            counted(part, items)
    state = items.state()
    kept = dict(zip(state["values"], state["counts"].tolist(), strict=True))
    assert len(kept) <= capacity
    assert items.error * (capacity + 1) <= exact.total()
    assert all(0 <= exact[value] - kept.get(value, 0) <= items.error for value in "abcdefgh")
    if len(exact) <= capacity:
        assert items.error == 0
        assert items.most_frequent() == min((v for v in exact if exact[v] == max(exact.values())), default=None)


def test_a_restored_state_is_the_same_and_a_wrong_one_is_refused() -> None:
    items, restored = FrequentItems[float](3), FrequentItems[float](3)
    items.update([1.0, 2.5], [4, 4])
    restored.load_state(items.state())
    assert restored.most_frequent() == 1.0
    with pytest.raises(CorruptStateError, match="have no counts"):
        restored.load_state({**items.state(), "values": ["one"]})
