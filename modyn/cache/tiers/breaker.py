"""Stops calls to a service that does not answer, and allows a new try after a pause that doubles up to a bound. The module does no I/O, and the
caller provides the clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from modyn.cache.tiers.call_costs import CallCosts

FORGIVEN_PART: Final = 0.05
"""Share of the time that slow calls may take in the long run."""


class BreakerState(StrEnum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    """Calls go through."""
    OPEN = "open"
    """Calls are refused until the pause is over."""
    HALF_OPEN = "half_open"
    """One call tests the service; other calls are refused."""


class SlowTime:
    """Time that slow calls took, minus FORGIVEN_PART of the time that has passed since then. Thread-safe.

    >>> now = 0.0
    >>> slow = SlowTime(clock=lambda: now)
    >>> slow.add(0.2)
    >>> now = 3.0
    >>> round(slow.seconds(), 3)
    0.05
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Args: clock: returns seconds that never decrease."""
        self.clock = clock
        self._lock = threading.Lock()  # Protects both fields below, which change together.
        self._seconds, self._since = 0.0, clock()

    def seconds(self) -> float:
        """Return the remaining seconds of slow calls."""
        with self._lock:
            return self._now()

    def add(self, seconds: float) -> None:
        """Record a slow call after its end. Each of several concurrent calls counts."""
        with self._lock:
            self._seconds, self._since = self._now() + seconds, self.clock()

    def _now(self) -> float:
        return max(0.0, self._seconds - FORGIVEN_PART * (self.clock() - self._since))


class CircuitBreaker:
    """The first failure opens the breaker. After a pause, one call tests the service: its success closes the breaker, its failure doubles the
    pause. Thread-safe.

    An allowed call that never reports counts as failed after another pause.

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
        """Args: clock: returns seconds that never decrease. first_pause_s: the pause is short, because one late answer does not show that the service
        is unavailable. If the service stays unavailable, attempts of 0.1 s take a twentieth of the first 16 s, and less later. costs: costs of
        earlier calls; default: no costs are known."""
        self._clock = clock
        self._first_pause_s, self._longest_pause_s = first_pause_s, longest_pause_s
        self._lock = threading.Lock()  # Guards all fields below, so that one thread alone may test the service.
        self._pause_s = first_pause_s
        self._next_try: float | None = None
        """Time at which the next call may test the service; None: the breaker is closed."""
        self._is_trying = False
        self.slow = SlowTime(clock)
        """Time of slow calls among the allowed calls."""
        self.costs = costs or CallCosts()
        """Costs of the calls that the breaker allowed."""
        self.num_failures = 0
        """Number of failed calls since the breaker was made."""

    @property
    def state(self) -> BreakerState:
        """Current state."""
        with self._lock:
            if self._next_try is None:
                return BreakerState.CLOSED
            return BreakerState.HALF_OPEN if self._is_trying or self._clock() >= self._next_try else BreakerState.OPEN

    def allows(self) -> bool:
        """Return whether a call is allowed now. After an allowed call, the caller calls `succeeded` or `failed`."""
        with self._lock:
            if self._next_try is None:
                return True
            if (now := self._clock()) < self._next_try:
                return False
            # If this call never reports, the next call may test the service after another pause.
            self._is_trying, self._next_try = True, now + self._pause_s
            return True

    def succeeded(self) -> bool:
        """Report a successful call. Returns whether the call closed the breaker."""
        with self._lock:
            was_open = self._next_try is not None
            if was_open and not self._is_trying:
                return False  # The call started before the breaker opened; other calls have failed since.
            self._next_try, self._is_trying, self._pause_s = None, False, self._first_pause_s
            return was_open

    def failed(self) -> bool:
        """Report a failed call. Returns whether the call opened a closed breaker."""
        with self._lock:
            self.num_failures += 1
            if self._next_try is not None and not self._is_trying:
                return False  # Several concurrent calls failed: they get one pause.
            was_closed = self._next_try is None
            if not was_closed:
                self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
            self._next_try, self._is_trying = self._clock() + self._pause_s, False
            return was_closed
