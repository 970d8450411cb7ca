"""Requests are cut into chunks of bounded size. Serving them is tested in `test_serving.py`, fetching them in `test_client.py`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.storage.flight.server import cut


def check(ranges: list[tuple[int, int]], lengths: list[int], max_bytes: int, max_rows: int) -> None:
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(len(lengths)))
    for number, (start, stop) in enumerate(ranges):
        assert stop - start <= max_rows
        assert stop - start <= 1 or sum(lengths[start:stop]) <= max_bytes
        if number and stop - start < max_rows and stop < len(lengths):  # none is smaller than it must be
            assert sum(lengths[start : stop + 1]) > max_bytes


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 100), st.integers(1, 20))
def test_cut_covers_all_in_chunks_of_bounded_size(lengths: list[int], max_bytes: int, max_rows: int) -> None:
    check(cut(np.asarray(lengths, np.int64), len(lengths), max_bytes, max_rows), lengths, max_bytes, max_rows)


@given(st.integers(0, 50), st.integers(0, 60), st.integers(1, 100), st.integers(1, 20))
def test_samples_of_one_length_are_cut_alike(length: int, num_samples: int, max_bytes: int, max_rows: int) -> None:
    check(cut(length, num_samples, max_bytes, max_rows), [length] * num_samples, max_bytes, max_rows)


@pytest.mark.parametrize("lengths", [7, np.empty(0, np.int64)])
def test_no_samples_are_one_empty_chunk(lengths: int) -> None:
    assert cut(lengths, 0, 10, 10) == [(0, 0)]
