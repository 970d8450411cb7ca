"""Batches by a clock of the test: order, limits, deadline, groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import OverloadedError
from modyn.serving.batch_queue import BatchedRequest, BatchLimits, BatchQueue


def waiting(number: int, rows: int, group: str, arrived: float) -> BatchedRequest:
    """Return a request whose deadline is its number."""
    return BatchedRequest({}, rows, group, arrived, float(number), lambda _: None)


def numbers(batch: list[BatchedRequest]) -> list[int]:
    return [int(request.deadline) for request in batch]


def queue_of(limits: BatchLimits, *requests: BatchedRequest) -> BatchQueue:
    queue = BatchQueue(limits)
    for request in requests:
        queue.add(request)
    return queue


def test_a_lone_request_goes_at_once() -> None:
    queue = queue_of(BatchLimits(max_delay_s=5.0), waiting(0, 1, "a", 10.0))
    assert queue.due(10.0) == 0.0
    assert numbers(queue.take(10.0)) == [0]
    assert queue.due(10.0) is None


def test_several_wait_for_a_fuller_batch_until_the_first_has_waited_long_enough() -> None:
    queue = queue_of(BatchLimits(max_batch_size=4, max_delay_s=5.0), waiting(0, 1, "a", 10.0), waiting(1, 1, "a", 12.0))
    assert queue.due(12.0) == 3.0
    assert queue.take(14.9) == []
    assert numbers(queue.take(15.0)) == [0, 1]


def test_a_full_batch_goes_at_once_even_if_another_group_is_older() -> None:
    requests = [waiting(0, 1, "old", 0.0), *(waiting(number, 2, "full", 1.0) for number in (1, 2, 3))]
    queue = queue_of(BatchLimits(max_batch_size=4, max_delay_s=5.0), *requests)
    assert numbers(queue.take(1.0)) == [1, 2]
    assert queue.due(1.0) == 4.0


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
    queue = BatchQueue(limits)
    line: list[BatchedRequest] = []
    taken: list[BatchedRequest] = []
    now, discarded, number = 0.0, list[BatchedRequest](), 0

    def take() -> None:
        due = queue.due(now)
        batch = queue.take(now)
        assert bool(batch) == (due == 0.0)
        if not batch:
            assert not line or (len(line) > 1 and now - line[0].arrived < max_delay), "a batch that is due was not given"
            return
        assert sum(request.rows for request in batch) <= max_batch_size
        assert len({request.group for request in batch}) == 1
        group = [request for request in line if request.group == batch[0].group]
        assert batch == group[: len(batch)], "not the oldest of their group"
        for request in batch:
            line.remove(request)
        taken.extend(batch)

    for kind, amount, group in steps:
        if kind == "pass":
            now += amount
        elif kind == "take":
            take()
        elif kind == "discard" and amount < len(line):
            request = line.pop(amount)
            queue.discard(request)
            discarded.append(request)
        elif kind == "add":
            request = waiting(number, amount, group, now)
            number += 1
            if len(line) < max_queue:
                queue.add(request)
                line.append(request)
            else:
                discarded.append(request)
                with pytest.raises(OverloadedError):
                    queue.add(request)
        assert len(queue) == len(line)
    while line:
        now += max_delay
        take()
    assert sorted(numbers(taken + discarded)) == list(range(number))
