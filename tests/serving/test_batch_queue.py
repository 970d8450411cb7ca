"""Batches by a clock of the test: order, limits, deadline, groups."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import OverloadedError
from modyn.serving.batch_queue import BatchLimits, BatchQueue


@dataclass(eq=False)
class Waiting:
    number: int
    rows: int
    group: str
    arrived: float


def queue_of(limits: BatchLimits, *requests: Waiting) -> BatchQueue[Waiting]:
    queue: BatchQueue[Waiting] = BatchQueue(limits)
    for request in requests:
        queue.add(request)
    return queue


def test_a_lone_request_goes_at_once() -> None:
    queue = queue_of(BatchLimits(max_delay_s=5.0), Waiting(0, 1, "a", 10.0))
    assert queue.due(10.0) == 0.0
    assert [request.number for request in queue.take(10.0)] == [0]
    assert queue.due(10.0) is None


def test_several_wait_for_a_fuller_batch_until_the_first_has_waited_long_enough() -> None:
    queue = queue_of(BatchLimits(max_batch_size=4, max_delay_s=5.0), Waiting(0, 1, "a", 10.0), Waiting(1, 1, "a", 12.0))
    assert queue.due(12.0) == 3.0
    assert queue.take(14.9) == []
    assert [request.number for request in queue.take(15.0)] == [0, 1]


def test_a_full_batch_goes_at_once_even_if_another_group_is_older() -> None:
    requests = [Waiting(0, 1, "old", 0.0), *(Waiting(number, 2, "full", 1.0) for number in (1, 2, 3))]
    queue = queue_of(BatchLimits(max_batch_size=4, max_delay_s=5.0), *requests)
    assert [request.number for request in queue.take(1.0)] == [1, 2]
    assert queue.due(1.0) == 4.0


def test_a_full_queue_refuses() -> None:
    queue = queue_of(BatchLimits(max_queue=1), Waiting(0, 1, "a", 0.0))
    with pytest.raises(OverloadedError, match="1 requests wait already, as many as serving.max_queue allows"):
        queue.add(Waiting(1, 1, "a", 0.0))
    assert len(queue) == 1


def test_a_discarded_request_is_gone() -> None:
    request = Waiting(0, 1, "a", 0.0)
    queue = queue_of(BatchLimits(), request)
    queue.discard(request)
    queue.discard(request)
    assert (len(queue), queue.due(0.0)) == (0, None)


STEP = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 5), st.sampled_from("ab")),
    st.tuples(st.just("take"), st.just(0), st.just("")),
    st.tuples(st.just("pass"), st.integers(1, 4), st.just("")),
    st.tuples(st.just("discard"), st.integers(0, 20), st.just("")),
)


@given(st.lists(STEP, max_size=60), st.integers(5, 8), st.integers(0, 5), st.integers(1, 12))
def test_each_request_leaves_once_in_order_and_within_the_limits(
    steps: list[tuple[str, int, str]], max_batch_size: int, max_delay: int, max_queue: int
) -> None:
    limits = BatchLimits(max_batch_size=max_batch_size, max_delay_s=float(max_delay), max_queue=max_queue)
    queue: BatchQueue[Waiting] = BatchQueue(limits)
    waiting: list[Waiting] = []
    taken: list[Waiting] = []
    now, discarded, number = 0.0, Counter[int](), 0

    def take() -> None:
        due = queue.due(now)
        batch = queue.take(now)
        assert bool(batch) == (due == 0.0)
        if not batch:
            assert not waiting or (len(waiting) > 1 and now - waiting[0].arrived < max_delay), "a batch that is due was not given"
            return
        assert sum(request.rows for request in batch) <= max_batch_size
        assert len({request.group for request in batch}) == 1
        line = [request for request in waiting if request.group == batch[0].group]
        assert batch == line[: len(batch)], "not the oldest of their group"
        for request in batch:
            waiting.remove(request)
        taken.extend(batch)

    for kind, amount, group in steps:
        if kind == "pass":
            now += amount
        elif kind == "take":
            take()
        elif kind == "discard" and amount < len(waiting):
            request = waiting.pop(amount)
            queue.discard(request)
            discarded[request.number] += 1
        elif kind == "add":
            request = Waiting(number, amount, group, now)
            number += 1
            if len(waiting) < max_queue:
                queue.add(request)
                waiting.append(request)
            else:
                discarded[request.number] += 1
                with pytest.raises(OverloadedError):
                    queue.add(request)
        assert len(queue) == len(waiting)
    while waiting:
        now += max_delay
        take()
    assert sorted([*(request.number for request in taken), *discarded]) == list(range(number))
