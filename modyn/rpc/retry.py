"""How a run waits: for services that are gone, for a while; and how it is told to end while it waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from modyn.errors import ModynError, NotFoundError, UnavailableError

T = TypeVar("T")
S = TypeVar("S")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
FRUITLESS_ATTEMPTS = 20
"""After so many starts of one piece of work in a row that did not get further than those before, it is given up."""


class CancellationToken:
    """Tells all threads of a run to end, and why. The first cause counts."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._cause: ModynError | None = None
        self._callbacks: list[Callable[[ModynError], None]] = []

    @property
    def cause(self) -> ModynError | None:
        return self._cause

    def end(self, cause: ModynError) -> None:
        with self._lock:
            if self._cause is not None:
                return
            self._cause = cause
            callbacks = list(self._callbacks)
        self._ended.set()
        for callback in callbacks:
            callback(cause)

    def on_end(self, callback: Callable[[ModynError], None]) -> None:
        """`callback` wakes somebody who waits elsewhere. Called at once if the end has come already."""
        with self._lock:
            self._callbacks.append(callback)
            cause = self._cause
        if cause is not None:
            callback(cause)

    def check(self) -> None:
        """Raises the cause if the run is to end."""
        if self._cause is not None:
            raise self._cause

    def wait(self, seconds: float) -> None:
        """Sleeps, but not past the end, whose cause it raises."""
        self._ended.wait(seconds)
        self.check()


class Backoff:
    """One stretch of failures. `wait` sleeps a growing while; once `limit_s` are over it raises the error instead."""

    def __init__(self, limit_s: float, signals: CancellationToken, tell: Callable[[str], None]) -> None:
        self._limit_s = limit_s
        self._signals = signals
        self._tell = tell
        self._since: float | None = None
        self._pause_s = FIRST_PAUSE_S

    def over(self) -> None:
        """The service answers again."""
        self._since, self._pause_s = None, FIRST_PAUSE_S

    def wait(self, error: UnavailableError) -> None:
        self._signals.check()
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._tell(f"{error.message} (trying again for {self._limit_s:.0f} s)")
        if now - self._since >= self._limit_s:
            raise UnavailableError(
                f"gave up after {self._limit_s:.0f} s: {error.message}; start the service again (`modyn up`), then resume the run"
            ) from error
        self._signals.wait(min(self._pause_s, max(self._limit_s - (now - self._since), 0.0)))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)


class RetryPolicy:
    """Repeats what can be repeated while a service cannot be reached. All calls made through it are idempotent."""

    def __init__(self, limit_s: float, signals: CancellationToken, tell: Callable[[str], None] = lambda _: None) -> None:
        self._limit_s = limit_s
        self._signals = signals
        self._tell = tell

    def outage(self) -> Backoff:
        return Backoff(self._limit_s, self._signals, self._tell)

    def call(self, action: Callable[[], T]) -> T:
        """What `action` returns, as soon as it does."""
        outage = self.outage()
        while True:
            self._signals.check()
            try:
                return action()
            except UnavailableError as error:
                outage.wait(error)

    def follow(
        self,
        start: Callable[[], S],
        watch: Callable[[], Iterator[S]],
        is_final: Callable[[S], bool],
        failure: Callable[[S], ModynError | None],
        progress: Callable[[S], int],
    ) -> S:
        """Starts work at another service and follows it to its end; starts it again when the service forgot it or went away.

        `progress` is told of every status and returns how far the work is. Returns the final status or raises its `failure`;
        one that is an UnavailableError is an outage like others, unless the work breaks at the same place again and again.
        """
        outage = self.outage()
        furthest, attempts = -1, 0
        while True:
            self._signals.check()
            try:
                status = start()
                attempts += 1
                self._signals.check()
                ended = is_final(status)
                for status in () if ended else _watched(watch):
                    self._signals.check()
                    outage.over()
                    if (reached := progress(status)) > furthest:
                        furthest, attempts = reached, 0
                if not is_final(status):
                    raise UnavailableError("the service ended its answer before the work was done")
                error = failure(status)
                if error is None:
                    return status
                self._signals.check()
                raise error
            except UnavailableError as error:
                if attempts >= FRUITLESS_ATTEMPTS:
                    raise UnavailableError(f"gave up after {attempts} attempts without progress: {error.message}") from error
                outage.wait(error)


def _watched(watch: Callable[[], Iterator[S]]) -> Iterator[S]:
    """What `watch` yields. A service that was restarted does not know the work any more: that is an outage."""
    try:
        yield from watch()
    except NotFoundError as error:
        raise UnavailableError(f"the service was restarted: {error.message}") from error
