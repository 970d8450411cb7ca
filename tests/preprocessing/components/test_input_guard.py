"""Unusual inputs are counted like in a brute-force comparison of every row of the stream."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.preprocessing.components.input_guard import InputGuard, InputGuardConfig, InputShares, input_shares, unusual_inputs
from tests.preprocessing.streams import CATEGORIES, NUMBERS, batch, parts_of, pipeline


def guard_of(section: Any) -> InputGuard:
    found = section._components[0]
    assert isinstance(found, InputGuard)
    return found


@given(parts=parts_of(st.tuples(NUMBERS, CATEGORIES)), warm_up=st.integers(0, 10), bound=st.integers(1, 4))
def test_counts_are_those_of_a_look_at_every_row(parts: list[list[Any]], warm_up: int, bound: int) -> None:
    made = pipeline(
        {"id": "InputGuard", "warm_up_rows": warm_up, "max_categories": bound},
        {"id": "Imputer", "strategy": "constant", "fill_value": 0},
        {"id": "OneHotEncoder"},
        columns="n c",
    )
    seen, numbers, categories = 0, list[float](), list[str]()
    expected = {"n": [0, 0, 0], "c": [0, 0, 0]}
    for rows in parts:
        made.update(batch(n=[row[0] for row in rows], c=[row[1] for row in rows]))
        there = [value for value, _ in rows if value is not None]
        texts = [text for _, text in rows if text is not None]
        if seen >= warm_up:
            outside = [value for value in there if not numbers or not min(numbers) <= value <= max(numbers)]
            new = [text for text in texts if text not in categories]
            for name, found, unlike in (("n", there, outside), ("c", texts, new)):
                counted = (len(rows), len(rows) - len(found), len(unlike))
                expected[name] = [before + count for before, count in zip(expected[name], counted, strict=True)]
        seen += len(rows)
        numbers += there
        categories += [text for text in dict.fromkeys(texts) if text not in categories][: bound - len(categories)]
    assert {name: counts.tolist() for name, counts in guard_of(made).counts().items()} == expected


@given(parts=parts_of(st.tuples(NUMBERS, CATEGORIES)), warm_up=st.integers(0, 10), bound=st.integers(1, 4))
def test_a_look_finds_what_the_update_would_count_and_changes_nothing(parts: list[list[Any]], warm_up: int, bound: int) -> None:
    guard = {"id": "InputGuard", "warm_up_rows": warm_up, "max_categories": bound}
    fill = {"id": "Imputer", "strategy": "constant", "fill_value": 0}
    made = pipeline(guard, fill, {"id": "OneHotEncoder"}, columns="n c")
    for rows in parts:
        columns = batch(n=[row[0] for row in rows], c=[row[1] for row in rows])
        before, state = guard_of(made).counts(), made.to_bytes()
        features, found = made.transform_and_look(columns)
        assert made.to_bytes() == state
        assert features.dense.tobytes() == made.transform(columns).dense.tobytes()
        made.update(columns)
        counted = {name: (counts - before[name]).tolist() for name, counts in guard_of(made).counts().items()}
        if any(num_rows for num_rows, *_ in counted.values()):
            looked = {name: [len(rows), counts.missing, counts.out_of_range + counts.unseen] for name, counts in found.items()}
            assert looked == counted
            assert (found["n"].unseen, found["c"].out_of_range) == (0, 0)


@given(
    before=st.lists(NUMBERS, min_size=1, max_size=20), now=st.lists(NUMBERS, min_size=1, max_size=5), warm_up=st.integers(0, 10)
)
def test_a_number_is_extreme_beyond_twice_the_range(before: list[Any], now: list[Any], warm_up: int) -> None:
    made = pipeline({"id": "InputGuard", "warm_up_rows": warm_up}, {"id": "Imputer"}, columns="n")
    made.update(batch(n=before))
    content, known = made.to_bytes(), [value for value in before if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    beyond = [max(low - value, value - high) for value in now if value is not None]
    is_extreme = max(beyond, default=0.0) > high - low > 0 and len(before) >= warm_up
    assert made.extremes(batch(n=now)) == ({"n": pytest.approx(max(beyond) / (high - low))} if is_extreme else {})
    assert made.to_bytes() == content, "it is only asked"


def test_limits_say_what_is_unusual() -> None:
    config = InputGuardConfig(max_missing_share=0.2, max_unlike_share=0)
    found = {"age": InputShares(100, 0.2, 0.0), "site": InputShares(100, 0.21, 0.5)}
    assert unusual_inputs(found, config) == [
        "21 % of 'site' are missing (limit 20 %)",
        "50 % of 'site' are unlike all before (limit 0 %)",
    ]
    narrowly = {"site": InputShares(1000, 0.0, 0.104)}
    assert unusual_inputs(narrowly, InputGuardConfig()) == ["10.4 % of 'site' are unlike all before (limit 10 %)"]


def test_a_step_batch_without_rows_is_not_unusual() -> None:
    made = pipeline({"id": "InputGuard"}, {"id": "Imputer"})
    found = {name: input_shares(counts) for name, counts in guard_of(made).counts().items()}
    assert found == {"n": InputShares(0, 0.0, 0.0)}
    assert unusual_inputs(found, InputGuardConfig()) == []


def test_a_few_rows_are_not_judged() -> None:
    found = {"site": InputShares(99, 0.0, 1 / 3)}
    assert unusual_inputs(found, InputGuardConfig()) == []
    assert len(unusual_inputs(found, InputGuardConfig(min_rows=99))) == 1


def test_columns_pass_unchanged() -> None:
    made = pipeline({"id": "InputGuard"})
    assert made.update_and_transform(batch(n=[1.0, 7.5])).dense.tolist() == [[1.0], [7.5]]
    assert made.summary()["components"]["0 InputGuard"] == {"n": pytest.approx({"rows": 0, "missing": 0.0, "unlike": 0.0})}
