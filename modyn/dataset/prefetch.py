"""Load tasks ahead of use on threads, in order and within a bound. Threads wait on one condition. Nothing polls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

JOIN_S = 10.0
"""Longest time in seconds that `join` waits for a thread that still runs `load`. The thread is a daemon and ends after `load`."""


@dataclass(slots=True, eq=False)
class _Slot(Generic[T, R]):
    """A task taken from the stream, with its results that are not used yet."""

    task: T
    results: deque[R] = field(default_factory=deque)
    done: bool = False


class Prefetcher(Generic[T, R]):
    """Runs `load` for each of `tasks` on threads, ahead of use, and yields each task with its results, in order.

    Results can be used as soon as they arrive. An error of `tasks` or `load` is raised immediately in the thread that takes results, before earlier
    results. After `stop` nothing more is yielded, and the threads end. If the tasks come from another prefetcher, stop the other prefetcher first;
    otherwise `join` would wait for a thread that waits for it.

    Args: ahead: number of tasks that are loaded beyond the one in use. threads: largest number of threads, also bounded by the number of tasks that
    may load at once. name: name of the threads.
    """

    def __init__(
        self, tasks: Iterator[T], load: Callable[[T], Iterator[R]], *, ahead: int, threads: int, name: str = "prefetch"
    ) -> None:
        self._tasks = tasks
        self._load = load
        self._ahead = max(ahead, 0)
        # Held by the thread that takes the next task from the generator, so that tasks keep their order. Acquired before `_changed`, never inside it.
        self._pull = threading.Lock()
        # Guards all fields below, and is notified after each change of these fields. Never held while `tasks` or `load` run.
        self._changed = threading.Condition()
        self._slots: deque[_Slot[T, R]] = deque()
        self._num_pulled = 0
        self._num_used = 0
        self._exhausted = False
        self._stopped = False
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True)
            # At most `ahead` + 1 tasks are loaded at once, so more threads would only wait.
            for i in range(max(1, min(threads, self._ahead + 1)))
        ]

    def __iter__(self) -> Iterator[tuple[T, Iterator[R]]]:
        for thread in self._threads:
            thread.start()
        while True:
            with self._changed:
                # Wait until there is a task, or the tasks have ended.
                self._changed.wait_for(lambda: self._slots or self._is_over())
                if self._failure is not None:
                    raise self._failure
                if self._stopped or not self._slots:
                    return
                slot = self._slots.popleft()
            yield slot.task, self._results(slot)
            with self._changed:
                # The task is used, so a thread that waits in `_next` may load another task.
                self._num_used += 1
                self._changed.notify_all()

    def stop(self) -> None:
        """End the threads, and the iteration wherever it waits. Any thread may call this, repeatedly."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the threads, after `stop`; at most `JOIN_S` seconds for each."""
        for thread in self._threads:
            # A thread cannot wait for itself, and a generator may be closed in a thread that it has started.
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(JOIN_S)

    def _results(self, slot: _Slot[T, R]) -> Iterator[R]:
        while True:
            with self._changed:
                # Wait until there is a result, or the results have ended.
                self._changed.wait_for(lambda: slot.results or slot.done or self._failure or self._stopped)
                if self._failure is not None:
                    raise self._failure
                if self._stopped or not slot.results:
                    return
                result = slot.results.popleft()
            yield result

    def _work(self) -> None:
        try:
            while (slot := self._next()) is not None:
                for result in self._load(slot.task):
                    with self._changed:
                        if self._stopped:
                            return
                        slot.results.append(result)
                        self._changed.notify_all()
                with self._changed:
                    slot.done = True
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  (it is raised again in the thread that waits for the results)
            self._fail(error)

    def _is_over(self) -> bool:
        return self._stopped or self._exhausted or self._failure is not None

    def _fail(self, error: BaseException) -> None:
        """Keep the first failure. After `stop`, keep no failure, because a cancelled load raises too."""
        with self._changed:
            if not self._stopped:
                self._failure = self._failure or error
            self._changed.notify_all()

    def _next(self) -> _Slot[T, R] | None:
        """Wait until the next task may be loaded, and return this task; None at the end. While a slow `tasks` runs, other threads wait for
        `_pull`.
        """
        with self._pull:
            with self._changed:
                # Wait until another task may be loaded, or loading has ended.
                self._changed.wait_for(lambda: self._is_over() or self._num_pulled <= self._num_used + self._ahead)
                if self._is_over():
                    return None
            try:
                task = next(self._tasks, None)
            except BaseException as error:  # noqa: BLE001  (raised again, as above)
                # `_pull` is still held here, because to another thread a failed generator looks like an ended one.
                self._fail(error)
                return None
            with self._changed:
                self._changed.notify_all()
                if task is None:
                    self._exhausted = True
                    return None
                slot: _Slot[T, R] = _Slot(task)
                self._slots.append(slot)
                self._num_pulled += 1
                return slot
