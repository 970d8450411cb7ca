"""Work ahead of use on threads, in order, with bounds. No polling: threads wait on one condition and are woken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

JOIN_S = 10.0
"""How long `join` waits for a thread that is still inside a call; it is a daemon and ends with its call."""


@dataclass(slots=True, eq=False)
class _Slot(Generic[T, R]):
    """A task that has been taken from the stream, and the results of it that are not used yet."""

    task: T
    results: deque[R] = field(default_factory=deque)
    done: bool = False


class Prefetcher(Generic[T, R]):
    """Runs `load` for each of `tasks` on threads, ahead of use, and yields each task with its results, in order.

    Results can be used as soon as they arrive. What `tasks` or `load` raise is raised at once where results are used, also if its turn has
    not come. After `stop` nothing more is yielded, and the threads end. The tasks may come from another prefetcher, which is
    then stopped first: otherwise `join` would wait for a thread that waits for it.

    Args: ahead: tasks that are loaded beyond the one in use. threads: at most this many, and no more than tasks that may be loaded at once.
    name: of the threads.
    """

    def __init__(
        self, tasks: Iterator[T], load: Callable[[T], Iterator[R]], *, ahead: int, threads: int, name: str = "prefetch"
    ) -> None:
        self._tasks = tasks
        self._load = load
        self._ahead = max(ahead, 0)
        # Held by the thread that takes the next task: one generator, whose tasks keep their order. Taken before `_changed`, never inside it.
        self._pull = threading.Lock()
        # Guards all fields below, and is notified after each change of them. Never held while `tasks` or `load` run.
        self._changed = threading.Condition()
        self._slots: deque[_Slot[T, R]] = deque()
        self._num_pulled = 0
        self._num_used = 0
        self._exhausted = False
        self._stopped = False
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True)
            for i in range(max(1, min(threads, self._ahead + 1)))
        ]

    def __iter__(self) -> Iterator[tuple[T, Iterator[R]]]:
        for thread in self._threads:
            thread.start()
        while True:
            with self._changed:
                # Until there is a task, or there will be none any more.
                self._changed.wait_for(lambda: self._slots or self._is_over())
                if self._failure is not None:
                    raise self._failure
                if self._stopped or not self._slots:
                    return
                slot = self._slots.popleft()
            yield slot.task, self._results(slot)
            with self._changed:
                self._num_used += 1
                self._changed.notify_all()

    def stop(self) -> None:
        """End the threads, and the iteration wherever it waits. From any thread, and repeatedly."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the threads, once stopped; each at most `JOIN_S` seconds."""
        for thread in self._threads:
            # A thread cannot wait for itself: a generator may be closed in a thread that it has started.
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(JOIN_S)

    def _results(self, slot: _Slot[T, R]) -> Iterator[R]:
        while True:
            with self._changed:
                # Until there is a result, or there will be none any more.
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
        """Keep the first failure; after `stop` none, since a load that is cancelled raises too."""
        with self._changed:
            if not self._stopped:
                self._failure = self._failure or error
            self._changed.notify_all()

    def _next(self) -> _Slot[T, R] | None:
        """The next task, once it may be loaded; None at the end. `tasks` may be slow: other threads wait at `_pull` meanwhile."""
        with self._pull:
            with self._changed:
                # Until a task more may be loaded, or none is to be any more.
                self._changed.wait_for(lambda: self._is_over() or self._num_pulled <= self._num_used + self._ahead)
                if self._is_over():
                    return None
            try:
                task = next(self._tasks, None)
            except BaseException as error:  # noqa: BLE001  (raised again, as above)
                # While `_pull` is held: to another thread a generator that has failed looks as if it were at its end.
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
