"""Where a run stands in its stream, and the split of a batch by the trigger policy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import UserCodeError
from modyn.records import SampleBatch
from modyn.supervisor.cursor import Cursor, split


@given(st.integers(0, 30), st.data())
def test_parts_cover_the_batch(num_samples: int, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, num_samples))))
    parts = list(split(num_samples, cuts, "T"))
    assert [stop for _, stop, fires in parts if fires] == cuts
    assert [position for start, stop, _ in parts for position in range(start, stop)] == list(range(num_samples))
    assert [fires for _, _, fires in parts] == [True] * len(cuts) + [False]


@pytest.mark.parametrize("cuts", [[-1], [4], [2, 2], [3, 1]])
def test_positions_must_ascend(cuts: list[int]) -> None:
    with pytest.raises(UserCodeError, match="positions must ascend"):
        list(split(3, cuts, "T"))


def test_the_policy_is_asked_lazily() -> None:
    asked = []

    def cuts() -> Iterator[int]:
        for cut in (1, 2):
            asked.append(cut)
            yield cut

    parts = split(3, cuts(), "T")
    next(parts)
    assert asked == [1]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.data())
def test_a_cursor_does_not_depend_on_how_the_stream_is_cut(times: list[int], data: st.DataObject) -> None:
    keys = np.arange(len(times))
    whole = SampleBatch(keys, np.array(times, np.int64), keys)
    at = data.draw(st.integers(0, len(times)))
    parts = Cursor().plus(whole.slice(0, at)).plus(whole.slice(at, len(times)))
    assert parts == Cursor().plus(whole)
    if times:
        assert parts.last == (times[-1], len(times) - 1)
        assert (parts.num_pending, parts.first_pending, parts.last_pending) == (len(times), min(times), max(times))
        assert parts.max_timestamp == max(times)
        after = parts.after_trigger()
        assert (after.num_pending, after.first_pending, after.last_pending, after.num_triggers) == (0, None, None, 1)
