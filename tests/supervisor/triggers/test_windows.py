"""Windows hold the newest n samples, or those of the newest t seconds, whatever the batches."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, SampleBatch, StreamWindow
from modyn.supervisor.triggers.windows import AmountWindowingStrategy, TimeIndex, TimeWindowingStrategy

TIMES = st.lists(st.integers(-3000, 3000), min_size=1, max_size=60) | st.lists(
    st.sampled_from([MIN_TIMESTAMP, -1, 0, 1, MAX_TIMESTAMP - 1]), min_size=1, max_size=10
)


def _batch(times: list[int]) -> SampleBatch:
    column = np.array(times, np.int64)
    return SampleBatch(np.arange(len(column)), column, np.zeros(len(column), np.int64))


def _held(window: StreamWindow, times: list[int]) -> list[int]:
    return [at for at in range(window.start, window.stop) if times[at] in window.times]


@given(times=TIMES, horizon=st.integers(1, 7000), cuts=st.lists(st.integers(0, 60), max_size=5), data=st.data())
def test_a_window_of_time_holds_what_is_newer(times: list[int], horizon: int, cuts: list[int], data: st.DataObject) -> None:
    index, seconds, position = TimeIndex(horizon), data.draw(st.integers(1, horizon)), 0
    for cut in [*sorted(cut for cut in cuts if cut <= len(times)), len(times)]:
        index.observe(_batch(times[position:cut]))
        position = cut
        if position:
            newest = max(times[:position])
            expected = [at for at in range(position) if times[at] > newest - seconds]
            assert _held(index.newest_for(seconds), times) == expected
    whole = TimeIndex(horizon)
    whole.observe(_batch(times))
    assert whole.newest_for(seconds) == index.newest_for(seconds), "batches make no difference, to the range itself"
    again = TimeIndex(horizon)
    again.load_state(json.loads(json.dumps(index.state())))
    assert again.newest_for(seconds) == index.newest_for(seconds)


def test_a_long_stream_takes_little_memory_and_windows_begin_near_their_first_sample() -> None:
    index = TimeIndex(1000)
    for first in range(0, 10**6, 50_000):
        index.observe(_batch(list(range(first, first + 50_000))))
    assert len(json.dumps(index.state())) < 10_000
    window = index.newest_for(1000)
    assert 10**6 - 1000 - 4 <= window.start <= 10**6 - 1000


def test_amounts() -> None:
    index = TimeIndex(0)
    index.observe(_batch([5] * 30))
    overlapping = AmountWindowingStrategy(amount_ref=20, amount_cur=8, allow_overlap=True)
    assert overlapping.reference(index) == StreamWindow(10, 30)
    assert overlapping.current(index, 25) == StreamWindow(22, 30)
    assert AmountWindowingStrategy(amount_cur=8).current(index, 25) == StreamWindow(25, 30)
    assert AmountWindowingStrategy(amount_ref=100).reference(index) == StreamWindow(0, 30), "larger than the data"


def test_times() -> None:
    times = [0, 10, 20, 5, 30]
    index = TimeIndex(20)
    index.observe(_batch(times))
    strategy = TimeWindowingStrategy(limit_ref=20, limit_cur=11, allow_overlap=False)
    assert _held(strategy.reference(index), times) == [2, 4], "(10, 30], without the late one"
    assert _held(strategy.current(index, 4), times) == [4], "nothing from before the last trigger"
    assert _held(strategy.current(index, 0), times) == [2, 4]
