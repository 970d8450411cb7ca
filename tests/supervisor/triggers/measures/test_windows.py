"""Windows hold the newest n samples, or those of the newest t seconds, for any batches."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from modyn.evaluator.client import WindowPair
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, SampleBatch, StreamWindow
from modyn.supervisor.triggers.measures.windows import AmountWindowingStrategy, TimeIndex, TimeWindowingStrategy, TriggerPoint

TIMES = st.lists(st.integers(-3000, 3000), min_size=1, max_size=60) | st.lists(
    st.sampled_from([MIN_TIMESTAMP, -1, 0, 1, MAX_TIMESTAMP - 1]), min_size=1, max_size=10
)


def _batch(times: list[int]) -> SampleBatch:
    column = np.array(times, np.int64)
    return SampleBatch(np.arange(len(column)), column, np.zeros(len(column), np.int64))


def _compared(strategy: AmountWindowingStrategy | TimeWindowingStrategy, index: TimeIndex, last: int) -> WindowPair:
    pair = strategy.compared(index, strategy.reference_at(index), TriggerPoint(last, None))
    assert pair is not None
    return pair


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


@given(times=TIMES, horizon=st.integers(1, 7000), cuts=st.lists(st.integers(0, 60), max_size=5), data=st.data())
def test_a_window_that_ended_holds_what_came_in_time(
    times: list[int], horizon: int, cuts: list[int], data: st.DataObject
) -> None:
    """Late samples, from before the window, are never in it; of late ones of its own time, those that came while it was near its end may be."""
    back, length = data.draw(
        st.tuples(st.integers(0, horizon), st.integers(1, horizon)).filter(lambda pair: sum(pair) <= horizon)
    )
    index, position = TimeIndex(horizon), 0
    for cut in [*sorted(cut for cut in cuts if cut <= len(times)), len(times)]:
        index.observe(_batch(times[position:cut]))
        position = cut
    end = max(times) - back + 1
    found = index.between(end - length, end)
    inside = [at for at, time in enumerate(times) if end - length <= time < end]
    in_time = [at for at in inside if max(times[: at + 1]) < end]
    assert set(in_time) <= set(_held(found, times)) <= set(inside)
    whole = TimeIndex(horizon)
    whole.observe(_batch(times))
    assert whole.between(end - length, end) == found, "batches make no difference"
    assert whole.spans(max(times) - times[0] + 1)
    assert not whole.spans(max(times) - times[0] + 2)


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
    assert overlapping.reference_at(index) == StreamWindow(10, 30)
    assert _compared(overlapping, index, 25).current == StreamWindow(22, 30)
    assert _compared(AmountWindowingStrategy(amount_cur=8), index, 25).current == StreamWindow(25, 30)
    assert AmountWindowingStrategy(amount_ref=100).reference_at(index) == StreamWindow(0, 30), "larger than the data"


def test_times() -> None:
    times = [0, 10, 20, 5, 30]
    index = TimeIndex(20)
    index.observe(_batch(times))
    strategy = TimeWindowingStrategy(limit_ref=20, limit_cur=11, allow_overlap=False)
    reference = strategy.reference_at(index)
    assert reference is not None
    assert _held(reference, times) == [2, 4], "(10, 30], without the late one"
    assert _held(_compared(strategy, index, 4).current, times) == [4], "nothing from before the last trigger"
    assert _held(_compared(strategy, index, 0).current, times) == [2, 4]
