"""Where a run stands in its stream."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from modyn.records import SampleBatch
from modyn.supervisor.cursor import Cursor


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
