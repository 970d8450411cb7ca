"""A vocabulary grows up to its bound, keeps its indices, and counts the rest."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import CorruptStateError
from modyn.preprocessing.columns import ColumnKind, read_columns
from modyn.preprocessing.statistics.categories import Categories
from modyn.preprocessing.statistics.vocabulary import LONGEST, Vocabularies
from tests.preprocessing.streams import CATEGORIES, parts_of


def column(values: list[Any]) -> Categories:
    found: Categories = read_columns({"c": pa.array(values, pa.string())}, {"c": ColumnKind.CATEGORY})["c"]
    return found


@given(parts=parts_of(CATEGORIES), bound=st.integers(1, 6))
def test_indices_are_given_in_order_up_to_the_bound_and_never_change(parts: list[list[Any]], bound: int) -> None:
    vocabulary, order = Vocabularies(["c"], bound), list[str]()
    missing = unseen = over = 0
    for part in parts:
        fresh = {value for value in part if value is not None} - set(order)
        order += [value for value in dict.fromkeys(part) if value in fresh]
        order = order[:bound]
        found = vocabulary.update([column(part)])[0]
        assert found.tolist() == [order.index(value) + 1 if value in order else 0 for value in part]
        assert vocabulary.lookup([column(part)])[0].tolist() == found.tolist()
        missing += part.count(None)
        unseen += sum(value in fresh for value in part)
        over += sum(value is not None and value not in order for value in part)
    summary = vocabulary.summary()["c"]
    assert (summary["missing"], summary["over_bound"], summary["categories"]) == (missing, over, len(order))
    there = sum(map(len, parts)) - missing
    assert summary["unseen_share"] == pytest.approx(unseen / max(there, 1))
    restored = Vocabularies(["c"], bound)
    restored.load_state(vocabulary.state())
    assert restored.state() == vocabulary.state()


@given(left=parts_of(CATEGORIES), right=parts_of(CATEGORIES), bound=st.integers(1, 20))
def test_a_merge_takes_the_second_one_as_if_it_had_come_later(left: list[list[Any]], right: list[list[Any]], bound: int) -> None:
    one, other, whole = Vocabularies(["c"], bound), Vocabularies(["c"], bound), Vocabularies(["c"], bound)
    for into, parts in ((one, left), (other, right), (whole, left), (whole, right)):
        for part in parts:
            into.update([column(part)])
    one.merge(other)
    assert one.summary()["c"]["rows"] == whole.summary()["c"]["rows"]
    if whole.summary()["c"]["over_bound"] == 0:
        assert one.state()["c"]["categories"] == whole.state()["c"]["categories"]
    assert one.summary()["c"]["categories"] <= bound


def test_an_explosion_stays_within_its_bound_in_memory_too() -> None:
    vocabulary = Vocabularies(["c"], 1000)
    tracemalloc.start()
    try:
        for at in range(100):
            vocabulary.update([column([f"{at}-{number}-{'x' * 100}" for number in range(1000)])])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000
    assert (vocabulary.summary()["c"]["categories"], vocabulary.summary()["c"]["over_bound"]) == (1000, 99_000)
    assert vocabulary.summary()["c"]["over_bound_share"] == 0.99


def test_a_very_long_text_is_over_the_bound() -> None:
    vocabulary = Vocabularies(["c"], 10)
    assert vocabulary.update([column(["x" * (LONGEST + 1), "x" * LONGEST])])[0].tolist() == [0, 1]
    assert vocabulary.summary()["c"]["over_bound"] == 1


@pytest.mark.parametrize("categories", [["a", "a"], ["a", "b", "c"], "ab", np.zeros(2)])
def test_a_wrong_state_is_refused(categories: Any) -> None:
    vocabulary = Vocabularies(["c"], 2)
    with pytest.raises(CorruptStateError, match="restore a state"):
        vocabulary.load_state({"c": {**vocabulary.state()["c"], "categories": categories}})
