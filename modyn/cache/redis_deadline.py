"""How long the calls to a Redis may take together: its client bounds each answer, and none of them all."""

from __future__ import annotations

from typing import Final

from redis.exceptions import TimeoutError as RedisTimeoutError

from modyn.cache.breaker import CircuitBreaker
from modyn.cache.call_costs import MOST_PATIENCE

ANSWERS_PER_BATCH: Final = 1.0
"""Slow calls together, such as all of one batch, may take so many times the longest time of an answer, and one answer more: see `SlowTime`."""
SLOW_PART: Final = 0.2
"""Part of the longest time of an answer. On an idle machine a call that takes longer is slow, unless it carries many bytes."""
ANSWER_PART: Final = 0.02
"""Part of the longest time of an answer that is added for each further answer, because a call asks all parts of a Cluster."""
LEAST_BYTES_PER_S: Final = 100 << 20
"""A call that moves its bytes at least this fast is not slow, however long it takes: a batch of images may take half a second over 1 Gbit/s."""


class Deadline:
    """Bounds what one batch waits for, over several calls and answers of which each comes in time. What is too long follows from what calls of the
    same kind have cost (`CallCosts`): on a busy machine all of them take longer, and are still worth it."""

    def __init__(self, breaker: CircuitBreaker, timeout_s: float, kind: str = "") -> None:
        """Begins with a call. Args: breaker: knows what calls before took. timeout_s: for one answer, on an idle machine. kind: of the call."""
        self._slow, self._costs, self._kind = breaker.slow, breaker.costs, kind
        self._start, self._factor = self._slow.clock(), self._costs.factor(kind)
        self._idle_s, self._answer_s = SLOW_PART * timeout_s, ANSWER_PART * timeout_s
        self._left_s = ANSWERS_PER_BATCH * timeout_s * min(MOST_PATIENCE, self._factor) - self._slow.seconds()

    @property
    def has_time(self) -> bool:
        """False: what calls before took is all that slow ones may take for now."""
        return self._left_s > 0

    def check(self, num_bytes: int = 0) -> None:
        """Note an answer, and bytes that it or its question has carried. Raises RedisError: it took too long."""
        self._idle_s += self._answer_s + num_bytes / LEAST_BYTES_PER_S
        if self.is_slow and self._took_s() > self._left_s:
            raise RedisTimeoutError("the samples of one batch took too long")

    def end(self, *, is_done: bool = True) -> None:
        """Note what the call took, and if it was slow, by how much. Args: is_done: False: it was given up."""
        took_s = self._took_s()
        if is_done or took_s > self._idle_s:
            self._costs.note(self._kind, took_s / self._idle_s)
        self._slow.add(max(0.0, took_s - self._idle_s * self._factor))

    def _took_s(self) -> float:
        return self._slow.clock() - self._start

    @property
    def is_slow(self) -> bool:
        """Whether it has taken more than a call that is not slow."""
        return self._took_s() > self._idle_s * self._factor
