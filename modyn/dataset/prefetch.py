"""Work ahead of use on threads, in order, with bounds. No polling: threads wait on one condition and are woken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

U = TypeVar("U")
C = TypeVar("C")

JOIN_S = 10.0
"""How long to wait for a thread that is still inside a call when it is told to stop; it is a daemon and ends with its call."""


class _Slot(Generic[U, C]):
    def __init__(self, unit: U) -> None:
        self.unit = unit
        self.chunks: deque[C] = deque()
        self.done = False


class Prefetcher(Generic[U, C]):
    """Loads `units` on `threads` threads, up to `ahead` beyond the one in use, and yields each with its chunks, in order.

    Chunks can be used as soon as they arrive. What `units` or `load` raise in a thread is raised at once where the chunks are used, also
    if its turn has not come. After `stop` nothing more is yielded, and the threads end. A prefetcher may be the units of another one, and
    is then stopped first. `name`: of the threads.
    """

    def __init__(
        self, units: Iterator[U], load: Callable[[U], Iterator[C]], *, ahead: int, threads: int, name: str = "prefetch"
    ) -> None:
        self._units = units
        self._load = load
        self._ahead = max(ahead, 0)
        self._pull = threading.Lock()
        self._changed = threading.Condition()
        self._slots: deque[_Slot[U, C]] = deque()
        self._pulled = 0
        self._used = 0
        self._exhausted = False
        self._stopped = False
        self._failure: BaseException | None = None
        # No more threads than units that may be loaded at once.
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True)
            for i in range(max(1, min(threads, self._ahead + 1)))
        ]

    def __iter__(self) -> Iterator[tuple[U, Iterator[C]]]:
        for thread in self._threads:
            thread.start()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._slots or self._exhausted or self._failure or self._stopped)
                self._raise_failure()
                if self._stopped or not self._slots:
                    return
                slot = self._slots.popleft()
            yield slot.unit, self._chunks(slot)
            with self._changed:
                self._used += 1
                self._changed.notify_all()

    def stop(self) -> None:
        """Tells the threads to end, and whoever waits for chunks. May be called by any thread, and repeatedly."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self) -> None:
        """Waits for the threads to end once they are told to."""
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(JOIN_S)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _chunks(self, slot: _Slot[U, C]) -> Iterator[C]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: slot.chunks or slot.done or self._failure or self._stopped)
                self._raise_failure()
                if self._stopped or not slot.chunks:
                    return
                chunk = slot.chunks.popleft()
            yield chunk

    def _work(self) -> None:
        try:
            while (slot := self._next()) is not None:
                for chunk in self._load(slot.unit):
                    with self._changed:
                        if self._stopped:
                            return
                        slot.chunks.append(chunk)
                        self._changed.notify_all()
                with self._changed:
                    slot.done = True
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  (it is raised again in the thread that waits for the chunks)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if not self._stopped:
                self._failure = self._failure or error
            self._changed.notify_all()

    def _next(self) -> _Slot[U, C] | None:
        """The next unit, once it may be loaded. Units are pulled by one thread at a time, which need not be quick."""
        with self._pull:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopped or self._exhausted or self._failure or self._pulled <= self._used + self._ahead
                )
                if self._stopped or self._exhausted or self._failure:
                    return None
            try:
                unit = next(self._units, None)
            except BaseException as error:  # noqa: BLE001  (raised again, as above)
                # Before another thread may pull: a generator that has failed looks as if it were at its end.
                self._fail(error)
                return None
            with self._changed:
                self._changed.notify_all()
                if unit is None:
                    self._exhausted = True
                    return None
                slot: _Slot[U, C] = _Slot(unit)
                self._slots.append(slot)
                self._pulled += 1
                return slot
