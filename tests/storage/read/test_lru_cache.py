"""The cache keeps the right values, and makes each value once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.storage.read.row_groups import LRUCache
from modyn.testing.waiting import PATIENCE_S


@given(asked=st.lists(st.integers(0, 6), max_size=40), limit=st.integers(0, 20))
def test_the_last_that_fit_are_kept(asked: list[int], limit: int) -> None:
    kept, model = LRUCache[int](limit, lambda size: size), list[int]()  # what is kept, oldest first; thing n has size n
    for number in asked:
        made: list[int] = []
        assert kept.get(number, lambda number=number, made=made: made.append(number) or number) == number  # type: ignore[misc]
        assert (made == []) == (number in model)
        model = [*(other for other in model if other != number), number]
        while sum(model) > limit:
            model.pop(0)


def test_many_threads_that_want_one_thing_make_it_once() -> None:
    kept, started, go = LRUCache[int](10, lambda _: 1), list[int](), threading.Event()

    def make() -> int:
        started.append(1)
        go.wait(PATIENCE_S)
        return 7

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(kept.get, "a", make) for _ in range(8)]
        go.set()
        assert [future.result() for future in futures] == [7] * 8
    assert started == [1]


def test_what_failed_or_was_forgotten_is_made_again() -> None:
    kept = LRUCache[int](10, lambda _: 1)

    def fail() -> int:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        kept.get("a", fail)
    assert kept.get("a", lambda: 1) == 1
    kept.forget("a")
    kept.forget("b")
    assert kept.get("a", lambda: 2) == 2
