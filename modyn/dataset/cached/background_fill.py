"""Prepare samples for a cache on a background thread of the process that makes batches. Only workers import this module, because it imports torch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from modyn.dataset.batch import NO_WORK, CacheWork, TierReport
from modyn.dataset.prefetch import JOIN_S

T = TypeVar("T")

MOST_WAITING: Final = 2
"""Largest number of waiting tasks. The number is small, because other trainings may prepare the samples of a task that waits for long."""


class Filled(NamedTuple):
    """Samples that were prepared for the cache only."""

    work: CacheWork = NO_WORK
    report: TierReport = TierReport()

    def plus(self, other: Filled) -> Filled:
        """Return the sum of both."""
        return Filled(self.work.plus(other.work), self.report.plus(other.report))


class BackgroundFill(Generic[T]):
    """Runs tasks one after the other, on a thread that starts with the first task. After a task fails, `add` and `take` raise its error. Tasks that
    still wait when the process ends are lost, which affects only the cache.

    Args: prepare: does a task piece by piece, and yields the work of each piece. After `stop` the remaining pieces are skipped.
    """

    def __init__(self, prepare: Callable[[T], Iterator[Filled]]) -> None:
        self._prepare = prepare
        # Guards all fields below. Not held while `prepare` runs, so that a batch never waits for a sample that is being prepared.
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._filled = Filled()
        self._is_stopped = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def add(self, task: T) -> None:
        """Add a task. Wait while MOST_WAITING other tasks wait. Raises the error of a failed task."""
        with self._changed:
            if self._thread is None:
                # A daemon, so that a task does not keep the process alive at its end.
                self._thread = threading.Thread(target=self._run, name="cache-fill", daemon=True)
                self._thread.start()
            # Woken when the thread takes a task, fails, or `stop` is called.
            self._changed.wait_for(lambda: len(self._waiting) < MOST_WAITING or self._is_stopped or self._failure is not None)
            self._raise_failure()
            self._waiting.append(task)
            self._changed.notify_all()  # Wakes `_next`.

    def take(self) -> Filled:
        """Return the work done since the last call. Raises the error of a failed task."""
        with self._changed:
            self._raise_failure()
            filled, self._filled = self._filled, Filled()
            return filled

    def stop(self) -> None:
        """End the thread after its current piece. Any thread may call this, repeatedly."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()  # Wakes `_next`, and `add` if it waits for room.

    def join(self) -> None:
        """Wait for the thread to end, at most JOIN_S seconds. Call `stop` first, which wakes the thread and lets it end with its current piece."""
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while (task := self._next()) is not None:
                for filled in self._prepare(task):
                    with self._changed:
                        self._filled = self._filled.plus(filled)
                        if self._is_stopped:
                            return
        except BaseException as error:  # noqa: BLE001  (it is raised again in the thread that makes batches)
            with self._changed:
                # A read that `stop` has cancelled also raises; this error is ignored.
                self._failure = None if self._is_stopped else error
                self._changed.notify_all()

    def _next(self) -> T | None:
        """Wait for the next task and return the task; None after `stop`."""
        with self._changed:
            # Woken by `add` and `stop`.
            self._changed.wait_for(lambda: self._waiting or self._is_stopped)
            if self._is_stopped:
                return None
            self._changed.notify_all()  # `add` may wait until fewer tasks wait.
            return self._waiting.popleft()
