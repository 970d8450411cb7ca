"""Times at which a circuit breaker allows calls, with a clock that the test sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.cache.tiers.breaker import FORGIVEN_PART, BreakerState, CircuitBreaker, SlowTime


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def state_of(breaker: CircuitBreaker) -> BreakerState:
    """Return the current state. The type checker would otherwise assume that the state has not changed since the last check."""
    return breaker.state


def test_pauses_double_up_to_the_longest_and_restart_after_a_success() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock, first_pause_s=1, longest_pause_s=4)
    assert breaker.allows()
    assert breaker.failed()
    for pause_s in (1, 2, 4, 4):
        assert state_of(breaker) is BreakerState.OPEN
        clock.now += pause_s - 0.5
        assert not breaker.allows()
        clock.now += 0.5
        assert state_of(breaker) is BreakerState.HALF_OPEN
        assert breaker.allows()
        assert not breaker.allows()
        assert not breaker.failed()
    clock.now += 4
    assert breaker.allows()
    assert breaker.succeeded()
    assert state_of(breaker) is BreakerState.CLOSED
    assert breaker.failed()
    clock.now += 1
    assert breaker.allows()


def test_calls_that_were_under_way_when_it_opened_change_nothing() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock, first_pause_s=1)
    assert all(breaker.allows() for _ in range(3))
    assert breaker.failed()
    assert not breaker.failed()
    assert not breaker.succeeded()
    assert state_of(breaker) is BreakerState.OPEN
    clock.now += 1
    assert breaker.allows()


def test_a_try_that_never_reports_is_followed_by_another() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock, first_pause_s=1)
    breaker.failed()
    clock.now += 1
    assert breaker.allows()
    clock.now += 0.5
    assert not breaker.allows()
    clock.now += 0.5
    assert breaker.allows()


@given(st.lists(st.tuples(st.floats(0, 40), st.booleans()), max_size=40))
def test_a_call_is_let_through_at_most_once_a_pause_and_again_after_the_longest(
    steps: list[tuple[float, bool]],
) -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock, first_pause_s=1, longest_pause_s=16)
    failed_at: float | None = None
    for wait_s, works in steps:
        clock.now += wait_s
        allowed = breaker.allows()
        if failed_at is None or clock.now >= failed_at + 16:
            assert allowed
        elif clock.now < failed_at + 1:
            assert not allowed
        if allowed:
            _ = breaker.succeeded() if works else breaker.failed()
            failed_at = None if works else clock.now


@given(st.lists(st.tuples(st.floats(0, 40), st.floats(0, 1)), max_size=40))
def test_what_slow_calls_took_is_forgiven_as_time_passes(calls: list[tuple[float, float]]) -> None:
    clock = Clock()
    slow, expected = SlowTime(clock), 0.0
    for wait_s, took_s in calls:
        clock.now += wait_s
        expected = max(0.0, expected - FORGIVEN_PART * wait_s)
        assert slow.seconds() == pytest.approx(expected)
        slow.add(took_s)
        expected += took_s
        assert slow.seconds() == pytest.approx(expected)
