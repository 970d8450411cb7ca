"""Waiting in tests: for what happens in the end, and for what stands still, which is not what has not begun."""

from __future__ import annotations

import threading

import pytest

from modyn.testing.waiting import at_rest, eventually


def test_what_holds_in_the_end_is_returned() -> None:
    answers = iter([0, "", None, [7]])
    assert eventually(lambda: next(answers)) == [7]


def test_what_never_holds_is_told() -> None:
    with pytest.raises(AssertionError, match=r"timed out after 0\.05 s: still 3 left"):
        eventually(lambda: False, lambda: f"still {3} left", timeout_s=0.05)
    with pytest.raises(AssertionError, match=r"0 s$"):
        eventually(lambda: None, timeout_s=0)


def test_what_has_not_begun_is_not_at_rest() -> None:
    numbers = [0]
    begins = threading.Timer(0.3, numbers.append, [5])
    begins.start()
    assert at_rest(lambda: numbers[-1], at_least=5, rest_s=0.05) == 5


def test_what_moves_is_not_at_rest() -> None:
    looks: list[int] = []

    def number() -> int:
        looks.append(1)
        return min(len(looks), 10)

    assert at_rest(number, at_least=1, rest_s=0.15) == 10
