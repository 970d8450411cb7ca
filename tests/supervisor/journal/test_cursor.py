"""The position of a run in its stream."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.records import SampleBatch
from modyn.supervisor.journal.cursor import Cursor, explain_end


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


TRIGGER = {"id": "DataDriftTrigger", "evaluation_interval_data_points": 400, "metrics": {"far": {"id": "MMDDriftMetric"}}}
RAN = Cursor(position=600, max_timestamp=86_400, first_pending=0, num_pending=200, num_triggers=1, last_check=400)
FINAL = "`modyn run --final-trigger`"


@pytest.mark.parametrize(
    ("cursor", "end_warning", "said"),
    [
        (RAN, "", "200 samples wait for the next trigger, which has not fired: no check came due since "
                  f"(evaluation_interval_data_points=400); {FINAL} trains on them too"),
        (replace(RAN, last_check=500), "", f"200 samples wait for the next trigger, which has not fired; {FINAL} trains on them too"),
        (RAN, "it warmed up", f"200 samples wait for the next trigger, which has not fired: it warmed up; {FINAL} trains on them too"),
        (replace(RAN, num_pending=0), "", ""),
        (replace(RAN, num_pending=0), "it warmed up", "the trigger policy did not work as it is meant: it warmed up"),
        (replace(RAN, num_triggers=0, last_check=0), "few samples",
         "no trigger fired in 600 samples from 1970-01-01 to 1970-01-02, so nothing was trained: few samples; let DataDriftTrigger "
         f"(evaluation_interval_data_points=400) fire earlier, replay a longer interval, or train on them with {FINAL}"),
    ],
)  # fmt: skip
def test_the_end_is_explained(cursor: Cursor, end_warning: str, said: str) -> None:
    assert explain_end(cursor, TRIGGER, end_warning) == said
