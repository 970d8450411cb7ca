"""Bounds the total time of several calls to a Redis. The client of Redis bounds only the time of each single answer."""

from __future__ import annotations

from typing import Final

from redis.exceptions import TimeoutError as RedisTimeoutError

from modyn.cache.tiers.breaker import CircuitBreaker
from modyn.cache.tiers.call_costs import MOST_PATIENCE

ANSWERS_PER_BATCH: Final = 1.0
"""Largest total time of slow calls, such as all calls of one batch, as a multiple of the time limit of an answer. The last answer may exceed this
time. See `SlowTime`."""
SLOW_PART: Final = 0.2
"""On an idle machine, a call that takes more than this fraction of the time limit of an answer is slow, unless it carries many bytes."""
ANSWER_PART: Final = 0.02
"""Additional time that a call may take for each of its answers, as a fraction of the time limit of an answer. In a Cluster, a call asks all shards.
"""
LEAST_BYTES_PER_S: Final = 100 << 20
"""A call that moves its bytes at least this fast is not slow, however long it takes. For example, a batch of images may take half a second over 1
Gbit/s."""


class Deadline:
    """Bounds the total waiting time of one batch, even if each of its calls is answered in time. The bound depends on the cost of earlier calls of
    the same kind (`CallCosts`), because on a busy machine all calls take longer, and are still useful."""

    def __init__(self, breaker: CircuitBreaker, timeout_s: float, kind: str = "") -> None:
        """Start to measure the time of a call. Args: breaker: has the costs of earlier calls. timeout_s: seconds for one answer, on an idle machine.
        kind: kind of the call, see `CallCosts`."""
        self._slow, self._costs, self._kind = breaker.slow, breaker.costs, kind
        self._start, self._factor = self._slow.clock(), self._costs.factor(kind)
        self._idle_s, self._answer_s = SLOW_PART * timeout_s, ANSWER_PART * timeout_s
        self._left_s = ANSWERS_PER_BATCH * timeout_s * min(MOST_PATIENCE, self._factor) - self._slow.seconds()

    @property
    def has_time(self) -> bool:
        """Return whether slow calls may take more time now."""
        return self._left_s > 0

    def check(self, num_bytes: int = 0) -> None:
        """Record an answer, and the number of bytes of the call and its answer. Raises RedisError: the answer took too long."""
        self._idle_s += self._answer_s + num_bytes / LEAST_BYTES_PER_S
        if self.is_slow and self._took_s() > self._left_s:
            raise RedisTimeoutError("the samples of one batch took too long")

    def end(self, *, is_done: bool = True) -> None:
        """Record the cost of the call. If the call was slow, record its excess time, too. Args: is_done: False: the call was given up."""
        took_s = self._took_s()
        # A call that was given up early says nothing about the usual cost.
        if is_done or took_s > self._idle_s:
            self._costs.note(self._kind, took_s / self._idle_s)
        self._slow.add(max(0.0, took_s - self._idle_s * self._factor))

    def _took_s(self) -> float:
        return self._slow.clock() - self._start

    @property
    def is_slow(self) -> bool:
        """Whether the call has taken longer than a normal call."""
        return self._took_s() > self._idle_s * self._factor
