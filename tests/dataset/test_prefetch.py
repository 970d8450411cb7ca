from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.dataset.prefetch import Prefetcher
from modyn.errors import DataError
from modyn.testing.waiting import PATIENCE_S, eventually


@given(lengths=st.lists(st.integers(0, 4), max_size=12), ahead=st.integers(0, 5), threads=st.integers(1, 4))
def test_all_results_of_all_tasks_come_in_order(lengths: list[int], ahead: int, threads: int) -> None:
    expected = [(task, [(task, k) for k in range(length)]) for task, length in enumerate(lengths)]
    prefetcher = Prefetcher(iter(expected), lambda task: iter(task[1]), ahead=ahead, threads=threads)
    assert [(task, list(results)) for (task, _), results in prefetcher] == expected
    prefetcher.stop()
    prefetcher.join()


@given(ahead=st.integers(0, 4), threads=st.integers(1, 4))
def test_no_more_tasks_are_loaded_than_it_may_be_ahead(ahead: int, threads: int) -> None:
    pulled = 0

    def tasks() -> Iterator[int]:
        nonlocal pulled
        for task in range(10):
            pulled += 1
            yield task

    prefetcher = Prefetcher(tasks(), lambda task: iter((task,)), ahead=ahead, threads=threads)
    for used, results in prefetcher:
        assert list(results) == [used]
        assert pulled <= used + 1 + ahead
    prefetcher.join()


def test_an_error_of_a_load_is_raised_although_its_turn_has_not_come() -> None:
    def load(task: int) -> Iterator[int]:
        if task == 2:
            raise DataError("task 2 is broken")
        return iter((task,))

    prefetcher = Prefetcher(iter(range(5)), load, ahead=3, threads=2)
    with pytest.raises(DataError, match="task 2"):
        for _ in prefetcher:
            eventually(lambda: prefetcher._failure is not None)
    prefetcher.join()


def test_tasks_that_fail_are_never_taken_for_tasks_that_end() -> None:
    """A generator that has failed looks to the next thread that pulls as if it were at its end; here the threads meet as often as they can."""

    def tasks() -> Iterator[int]:
        yield from range(2)
        raise DataError("no more tasks can be had")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(1000):
            prefetcher = Prefetcher(tasks(), lambda task: iter((task,)), ahead=3, threads=4)
            with pytest.raises(DataError):
                for _, results in prefetcher:
                    list(results)
            prefetcher.join()
    finally:
        sys.setswitchinterval(before)


def test_stopping_ends_the_wait_for_results() -> None:
    go_on = threading.Event()

    def load(task: int) -> Iterator[int]:
        yield task
        go_on.wait(PATIENCE_S)
        yield task

    prefetcher = Prefetcher(iter(range(3)), load, ahead=0, threads=1)
    for task, results in prefetcher:
        assert (task, next(results)) == (0, 0)
        stopping = threading.Thread(target=prefetcher.stop)
        stopping.start()
        assert list(results) == []
        stopping.join()
    go_on.set()
    prefetcher.join()
    assert not any(thread.is_alive() for thread in prefetcher._threads)
