"""Bytes of a state give the state back, equal states equal bytes, and damage is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from modyn.errors import CorruptStateError
from modyn.preprocessing.statistics.state_bytes import decode_state, encode_state

ARRAYS = st.one_of(arrays(np.int64, st.integers(0, 4)), arrays(np.float64, st.tuples(st.integers(0, 3), st.integers(0, 3))))
TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=5)
VALUES = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), TEXT, st.lists(TEXT, max_size=4), ARRAYS)
STATES = st.recursive(VALUES, lambda inner: st.dictionaries(TEXT, inner, max_size=4), max_leaves=8)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool(one.tobytes() == other.tobytes())
    return type(one) is type(other) and bool(one == other)


@given(state=st.dictionaries(TEXT, STATES, max_size=4))
def test_a_state_comes_back_and_its_order_does_not_matter(state: dict[str, Any]) -> None:
    content = encode_state(state)
    assert same(decode_state(content), state)
    assert encode_state(dict(reversed(state.items()))) == content


def test_any_damage_is_found() -> None:
    content = encode_state({"one": np.arange(3), "texts": ["a", "ä"], "inner": {"x": 1.5}})
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(CorruptStateError, match="take another version|use the Modyn that wrote them"):
            decode_state(bytes(damaged))
    for cut in (content[:-1], content[:10], b"", content + b"\0"):
        with pytest.raises(CorruptStateError, match="damaged"):
            decode_state(cut)


@pytest.mark.parametrize("value", [np.zeros(2, np.float32), object(), {"x": (1, 2)}])
def test_other_values_are_not_statistics(value: Any) -> None:
    with pytest.raises(TypeError, match="is not a statistic"):
        encode_state({"value": value})
