"""Prepare samples for a cache beside batches, on a thread of the process that makes these. In workers only: imports torch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from modyn.dataset.batch import NO_WORK, CacheWork
from modyn.dataset.prefetch import JOIN_S

T = TypeVar("T")

MOST_WAITING: Final = 2
"""Tasks that may wait: what is prepared late finds that others have prepared it meanwhile."""


class BackgroundFill(Generic[T]):
    """Runs tasks in turn, on a thread that begins with the first of them. What a task raises is raised by all calls that follow. What has not been
    done when the process ends is lost: it is for a cache only.

    Args: prepare: does a task piece by piece; yields what each piece has taken. After `stop` the rest is left out.
    """

    def __init__(self, prepare: Callable[[T], Iterator[CacheWork]]) -> None:
        self._prepare = prepare
        # Guards all fields below, and is notified after each change of them. Never held while `prepare` runs.
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._work = NO_WORK
        self._is_busy = self._is_stopped = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def add(self, task: T) -> None:
        """Leave a task to the thread; waits while MOST_WAITING others wait."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cache-fill", daemon=True)
                self._thread.start()
            self._wait_for(lambda: len(self._waiting) < MOST_WAITING)
            self._waiting.append(task)
            self._changed.notify_all()

    def take_work(self) -> CacheWork:
        """What was done since the last call."""
        with self._changed:
            self._wait_for(lambda: True)
            work, self._work = self._work, NO_WORK
            return work

    def stop(self) -> None:
        """End the thread after its piece. From any thread, and repeatedly."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the thread, once stopped, at most `JOIN_S` seconds."""
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait, inside the lock, until it is so or never will be. Raises what a task has raised."""
        self._changed.wait_for(lambda: is_so() or self._is_stopped or self._failure is not None)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while (task := self._next()) is not None:
                for work in self._prepare(task):
                    with self._changed:
                        self._work = self._work.plus(work)
                        if self._is_stopped:
                            return
        except BaseException as error:  # noqa: BLE001  (it is raised again in the thread that makes batches)
            with self._changed:
                # A read that is called off raises too.
                self._failure = None if self._is_stopped else error
                self._changed.notify_all()

    def _next(self) -> T | None:
        """The next task, once there is one; None after `stop`."""
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._is_stopped)
            if self._is_stopped:
                return None
            self._is_busy = True
            self._changed.notify_all()
            return self._waiting.popleft()
