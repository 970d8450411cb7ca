"""A run notices that everything that arrives is late, whatever its trigger policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.records import MIN_TIMESTAMP, SampleBatch
from modyn.supervisor.late_samples import LateSamples


def batch(timestamps: Sequence[int]) -> SampleBatch:
    times = np.array(timestamps, dtype=np.int64)
    return SampleBatch(times, times, times)


@pytest.mark.parametrize(
    ("timestamps", "warns"),
    [
        pytest.param([0, 1000, 11, 15], False, id="late samples within the span"),
        pytest.param([0, 1000, 11, 15, 21], True, id="late samples over the whole span"),
        pytest.param([0, 1000, 11, 15, 21, 1005], False, id="a new sample ends it"),
        pytest.param([0, 1000, 11, 1005, 21], False, id="a new sample between them"),
        pytest.param([0, 5, 10, 20, 30, 40], False, id="in order"),
    ],
)
def test_a_stream_whose_samples_are_all_late_is_noticed(timestamps: list[int], warns: bool) -> None:
    late = LateSamples(None)
    late.observe(batch(timestamps))
    assert bool(late.warning(10)) == warns
    if warns:
        assert "1970-01-01 00:16:40" in late.warning(10)


def test_a_resumed_run_knows_the_newest_timestamp() -> None:
    late = LateSamples(1000)
    late.observe(batch([11, 15, 21]))
    assert late.warning(10)


@given(st.lists(st.integers(-50, 200), max_size=40), st.integers(1, 9), st.integers(1, 30))
def test_warnings_are_as_the_rule_says_in_any_batches(timestamps: list[int], size: int, span_s: int) -> None:
    stretch, newest = list[int](), MIN_TIMESTAMP
    for time in timestamps:
        newest = max(newest, time)
        stretch = [] if time == newest else [*stretch, time]
    late = LateSamples(None)
    for start in range(0, len(timestamps), size):
        late.observe(batch(timestamps[start : start + size]))
    assert bool(late.warning(span_s)) == (bool(stretch) and max(stretch) - min(stretch) >= span_s)
