"""Values of samples in a worker's memory: they are found unchanged, within a memory limit; the least recently used values are evicted first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import DataError
from modyn.evaluator.kept_values import KeptValues, ValueTable
from modyn.records import Float32Array, Int64Array

KEYS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 40), max_size=30, unique=True)
WIDTH = 3


def rows(keys: Int64Array) -> Float32Array:
    return np.repeat((keys % 1000).astype(np.float32)[:, None], WIDTH, 1)


def ask(kept: KeptValues, name: str, keys: list[int]) -> int:
    """Act like a question: compute the missing values in two batches and read all values. Returns the number of computed values."""
    table, array = kept.table(name), np.array(keys, np.int64)
    missing = table.missing(array)
    for part in np.array_split(missing, 2):
        table.add(part, rows(part))
    table.index()
    assert table.found(array, kept.tick()).all()
    assert np.array_equal(table.take(array), rows(array))
    return len(missing)


@given(questions=st.lists(st.tuples(st.sampled_from("ab"), KEYS), max_size=8), limit=st.integers(0, 40))
def test_values_come_back_and_stay_within_the_limit(questions: list[tuple[str, list[int]]], limit: int) -> None:
    kept, made = KeptValues(), set[tuple[str, int]]()
    for name, keys in questions:
        new = {(name, key) for key in keys} - made
        since = kept.clock + 1
        assert ask(kept, name, keys) >= len(new)
        made |= new
        kept.trim(limit * 4 * WIDTH, since)
        assert kept.num_bytes <= limit * 4 * WIDTH
        if len(keys) <= limit:
            assert not len(kept.table(name).missing(np.array(keys, np.int64))), "what the last question used stays, if it fits"


def test_nothing_is_made_twice_within_the_limit() -> None:
    kept = KeptValues()
    assert [ask(kept, name, keys) for name, keys in (("a", [5, 1]), ("b", [1]), ("a", [1, 7, 5]), ("b", [1]))] == [2, 1, 1, 0]


def test_what_was_used_least_recently_is_given_up_first() -> None:
    kept = KeptValues()
    row_bytes = 4 * WIDTH
    for keys in ([1, 2, 3, 4], [3, 4, 5], [1, 6]):
        ask(kept, "a", keys)
    kept.trim(4 * row_bytes, kept.clock)
    assert kept.table("a").missing(np.arange(1, 7)).tolist() == [2, 3, 4]
    ask(kept, "b", [1])
    kept.trim(2 * row_bytes, kept.clock)
    assert (len(kept.table("b")), len(kept.table("a"))) == (1, 0)


def test_rows_of_another_width_are_refused() -> None:
    table = ValueTable()
    table.add(np.array([1]), np.zeros((1, 2), np.float32))
    with pytest.raises(DataError, match="sample 7 has 3 values, and others have 2"):
        table.add(np.array([7]), np.zeros((1, 3), np.float32))


def test_a_long_stream_leaves_as_many_rows_as_its_windows_and_some() -> None:
    kept, made = KeptValues(recent=20), 0
    for last in range(100, 60_000, 100):
        made += ask(kept, "a", list(range(max(0, last - 300), last)))
        kept.trim(2**30, kept.clock)
        assert len(kept.table("a")) < 2 * (300 + 20 * 100) + 5000
    assert made == 59_900, "each once"
