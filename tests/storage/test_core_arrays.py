"""Orders and picks of the C++ core, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn import _core
from modyn.errors import InvalidArgumentError


@given(st.integers(0, 70_000), st.integers(1, 2**64 - 1), st.integers(0, 3))
def test_a_permutation_holds_every_number_once(count: int, seed: int, threads: int) -> None:
    order = _core.permutation((seed, 0, 1, 2), count, threads)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(count))


def test_permutations_that_cannot_be_made() -> None:
    with pytest.raises(InvalidArgumentError, match="zeros"):
        _core.permutation((0, 0, 0, 0), 3, 1)
    with pytest.raises(InvalidArgumentError, match="-1 numbers"):
        _core.permutation((1, 0, 0, 0), -1, 1)


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=50), st.data())
def test_picking_is_indexing(values: list[int], data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), max_size=80)), np.int64)
    integers = np.array(values, np.int64)
    floats = integers.astype(np.float32)
    integers.setflags(write=False)
    assert np.array_equal(_core.pick(integers, rows), integers[rows])
    assert np.array_equal(_core.pick(floats, rows), floats[rows])


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_that_does_not_exist_is_refused(row: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"row {row} does not exist: there are 3"):
        _core.pick(np.arange(3), np.array([0, row, 1]))
