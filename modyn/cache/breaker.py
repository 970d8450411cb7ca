"""Stop asking what does not answer, and try again by itself after a pause that doubles up to a bound. No I/O: the clock comes from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from modyn.cache.call_costs import CallCosts

FORGIVEN_PART: Final = 0.05
"""Of the time that passes: so much of it slow calls may take in the long run."""


class BreakerState(StrEnum):
    """Where a circuit breaker stands."""

    CLOSED = "closed"
    """Calls go through."""
    OPEN = "open"
    """Calls are refused until the pause is over."""
    HALF_OPEN = "half_open"
    """One call tries whether it works again; others are refused."""


class SlowTime:
    """What slow calls have taken, less FORGIVEN_PART of the time that has passed. For any thread.

    >>> now = 0.0
    >>> slow = SlowTime(clock=lambda: now)
    >>> slow.add(0.2)
    >>> now = 3.0
    >>> round(slow.seconds(), 3)
    0.05
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Args: clock: seconds, never backwards."""
        self.clock = clock
        self._lock = threading.Lock()  # Guards both below, which belong together.
        self._seconds, self._since = 0.0, clock()

    def seconds(self) -> float:
        """How much that is now."""
        with self._lock:
            return self._now()

    def add(self, seconds: float) -> None:
        """Note a slow call, when it has ended. Of calls at once each counts."""
        with self._lock:
            self._seconds, self._since = self._now() + seconds, self.clock()

    def _now(self) -> float:
        return max(0.0, self._seconds - FORGIVEN_PART * (self.clock() - self._since))


class CircuitBreaker:
    """The first failure opens it; when the pause is over, one call is allowed, which closes it or doubles the pause. For any thread.

    A call that is allowed and never reports counts as failed once the pause has passed again.

    >>> now = 0.0
    >>> breaker = CircuitBreaker(clock=lambda: now, first_pause_s=1, longest_pause_s=8)
    >>> breaker.allows(), breaker.failed(), breaker.allows()
    (True, True, False)
    >>> now = 1.0
    >>> breaker.allows(), breaker.allows(), breaker.succeeded(), breaker.state.value
    (True, False, True, 'closed')
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        first_pause_s: float = 0.25,
        longest_pause_s: float = 16.0,
        costs: CallCosts | None = None,
    ) -> None:
        """Args: clock: seconds, never backwards. first_pause_s: short, since one answer that comes too late says little; of what stays away, tries of
        a tenth of a second take the twentieth part of the first 16 s, and less later. costs: none: known of no call."""
        self._clock = clock
        self._first_pause_s, self._longest_pause_s = first_pause_s, longest_pause_s
        self._lock = threading.Lock()  # Guards all below, so that one thread alone is let through half open.
        self._pause_s = first_pause_s
        self._next_try: float | None = None
        """By the clock; None: closed."""
        self._is_trying = False
        self.slow = SlowTime(clock)
        """Time that slow calls have taken, among those that the breaker let through."""
        self.costs = costs or CallCosts()
        """What the calls that the breaker let through have cost."""
        self.num_failures = 0
        """Calls that were reported as failed, since it was made."""

    @property
    def state(self) -> BreakerState:
        """Where it stands now."""
        with self._lock:
            if self._next_try is None:
                return BreakerState.CLOSED
            return BreakerState.HALF_OPEN if self._is_trying or self._clock() >= self._next_try else BreakerState.OPEN

    def allows(self) -> bool:
        """Whether a call may be made now. Whoever makes it reports by `succeeded` or `failed`."""
        with self._lock:
            if self._next_try is None:
                return True
            if (now := self._clock()) < self._next_try:
                return False
            # The next try, if this one never reports.
            self._is_trying, self._next_try = True, now + self._pause_s
            return True

    def succeeded(self) -> bool:
        """Report that a call has worked. Returns whether that closed it."""
        with self._lock:
            was_open = self._next_try is not None
            if was_open and not self._is_trying:
                return False  # A call from before it opened: others have failed since.
            self._next_try, self._is_trying, self._pause_s = None, False, self._first_pause_s
            return was_open

    def failed(self) -> bool:
        """Report that a call has failed. Returns whether that opened it, and calls went through before."""
        with self._lock:
            self.num_failures += 1
            if self._next_try is not None and not self._is_trying:
                return False  # One of several calls that were under way: one pause for all of them.
            was_closed = self._next_try is None
            if not was_closed:
                self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
            self._next_try, self._is_trying = self._clock() + self._pause_s, False
            return was_closed
