"""What calls to a Redis may take together, by a clock that the test moves."""

from __future__ import annotations

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from modyn.cache.breaker import SlowTime
from modyn.cache.redis_deadline import LEAST_BYTES_PER_S, Deadline
from tests.cache.test_breaker import Clock

TIMEOUT_S = 0.1


def test_a_large_batch_over_a_network_of_1_gbit_is_not_cut_off() -> None:
    """48 MB take 0.4 s there, which is not slow: its samples would be longer in decoding."""
    clock = Clock()
    slow = SlowTime(clock)
    deadline = Deadline(slow, TIMEOUT_S)
    for _ in range(24):
        clock.now += 2e6 / 125e6
        deadline.check(2_000_000)
    deadline.end()
    assert slow.seconds() == 0


def test_slow_answers_are_cut_off_one_behind_their_time() -> None:
    clock = Clock()
    slow = SlowTime(clock)
    deadline = Deadline(slow, TIMEOUT_S)
    clock.now += 0.09
    deadline.check()
    clock.now += 0.09
    with pytest.raises(RedisTimeoutError, match="took too long"):
        deadline.check()
    deadline.end()
    assert slow.seconds() == pytest.approx(0.18)
    assert not Deadline(slow, TIMEOUT_S).has_time
    clock.now += 20 * 0.18
    assert Deadline(slow, TIMEOUT_S).has_time, "the twentieth part of the time is forgiven"


def test_bytes_count_by_the_least_rate_of_a_call_that_is_not_slow() -> None:
    clock = Clock()
    slow = SlowTime(clock)
    deadline = Deadline(slow, TIMEOUT_S)
    clock.now += 2.5
    with pytest.raises(RedisTimeoutError):
        deadline.check(LEAST_BYTES_PER_S)
