"""Limits on the total time of calls to Redis, with a clock that the test sets."""

from __future__ import annotations

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from modyn.cache.tiers.breaker import CircuitBreaker
from modyn.cache.tiers.call_costs import MOST_FACTOR, CallCosts
from modyn.cache.tiers.redis_deadline import LEAST_BYTES_PER_S, Deadline
from tests.cache.tiers.test_breaker import Clock

TIMEOUT_S = 0.1


def idle(clock: Clock) -> CircuitBreaker:
    """Return a circuit breaker on an idle machine."""
    return CircuitBreaker(clock, costs=CallCosts(load=lambda: 0.0))


def call(breaker: CircuitBreaker, clock: Clock, took_s: float) -> bool:
    """Make a call with one answer. Returns whether the call was completed."""
    deadline, is_done = Deadline(breaker, TIMEOUT_S, "get"), False
    clock.now += took_s
    try:
        if deadline.has_time:
            deadline.check()
            is_done = True
    except RedisTimeoutError:
        pass
    deadline.end(is_done=is_done)
    return is_done


def test_a_large_batch_over_a_network_of_1_gbit_is_not_cut_off() -> None:
    """48 MB take 0.4 s on this network, which is not slow: decoding the samples would take longer."""
    clock = Clock()
    breaker = idle(clock)
    deadline = Deadline(breaker, TIMEOUT_S)
    for _ in range(24):
        clock.now += 2e6 / 125e6
        deadline.check(2_000_000)
    deadline.end()
    assert breaker.slow.seconds() == 0


def test_slow_answers_are_cut_off_one_after_their_time() -> None:
    clock = Clock()
    breaker = idle(clock)
    deadline = Deadline(breaker, TIMEOUT_S)
    clock.now += 0.09
    deadline.check()
    clock.now += 0.09
    with pytest.raises(RedisTimeoutError, match="took too long"):
        deadline.check()
    deadline.end()
    assert breaker.slow.seconds() == pytest.approx(0.18 - 0.024), "what it took more than a call that is not slow"
    assert not Deadline(breaker, TIMEOUT_S).has_time
    clock.now += 20 * 0.18
    assert Deadline(breaker, TIMEOUT_S).has_time, "the twentieth part of the time is forgiven"


def test_bytes_count_by_the_least_rate_of_a_call_that_is_not_slow() -> None:
    clock = Clock()
    breaker = idle(clock)
    deadline = Deadline(breaker, TIMEOUT_S)
    clock.now += 2.5
    with pytest.raises(RedisTimeoutError):
        deadline.check(LEAST_BYTES_PER_S)


def test_calls_that_all_take_long_are_not_cut_off() -> None:
    """On a busy machine with a batch per second and calls of 0.15 s, all batches except the first are served from the cache."""
    clock = Clock()
    breaker, done = idle(clock), list[bool]()
    for _ in range(60):
        done.append(call(breaker, clock, 0.15))
        clock.now += 0.85
    assert sum(done) >= 0.8 * len(done)
    assert all(done[12:])


def test_one_that_becomes_slow_is_cut_off() -> None:
    """By what its calls have cost, and however long it stays so, calls beyond MOST_FACTOR times the limit of an idle machine."""
    clock = Clock()
    breaker = idle(clock)
    assert all(call(breaker, clock, 0.005) for _ in range(50))
    assert not call(breaker, clock, 0.11)
    assert not any(call(breaker, clock, MOST_FACTOR * 0.022 + 1.0) for _ in range(50))


def test_a_busy_machine_is_known_before_the_first_call() -> None:
    clock = Clock()
    assert call(CircuitBreaker(clock, costs=CallCosts(load=lambda: 8.0)), clock, 0.15)
    assert not call(idle(clock), clock, 0.15)
