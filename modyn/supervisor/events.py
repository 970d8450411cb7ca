"""Events on their way to watchers. Those that are kept are read from the journal; progress passes through bounded queues and may get lost."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from modyn.errors import UnavailableError
from modyn.supervisor.journal_queries import EVENTS_PER_PAGE, JournalQueries
from modyn.supervisor.records import EventKind, RunEvent

PROGRESS_PER_S = 5
"""Progress events a second of each kind, trigger and dataset; those in between are dropped."""
PROGRESS_KEPT = 100
"""Progress events kept for a watcher that does not keep up; older ones are dropped."""
LOOK_AGAIN_S = 5.0
"""A run may be executed by another supervisor, which cannot wake the watchers of this one."""


class RunWatcher:
    """The side of one watching call on one run: collects progress until it is read."""

    def __init__(self) -> None:
        # Protects the fields below, and is notified after each change of them. No other lock is taken while it is held.
        self._changed = threading.Condition()
        self._progress: deque[RunEvent] = deque(maxlen=PROGRESS_KEPT)
        self._woken = False
        self.closed = False

    def close(self) -> None:
        """End the wait, from any thread."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def wake(self) -> None:
        """End the current or next wait: the journal has news."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def offer(self, event: RunEvent) -> None:
        """Add one progress event and wake the wait; beyond PROGRESS_KEPT events the oldest is dropped."""
        with self._changed:
            self._progress.append(event)
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> list[RunEvent]:
        """Wait for progress, or for the journal to have news; return the progress that has come."""
        with self._changed:
            self._changed.wait_for(lambda: self._woken or self.closed or len(self._progress) > 0, timeout_s)
            self._woken = False
            progress = list(self._progress)
            self._progress.clear()
            return progress


class EventHub:
    """Passes events of the runs that this process executes to their watchers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # Protects `_watchers` and `_last`. Watchers are woken after it is released, so that it is never held with the lock of one.
        self._lock = threading.Lock()
        self._watchers: dict[str, list[RunWatcher]] = {}
        self._clock = clock
        self._last: dict[str, dict[tuple[str, int | None, str], float]] = {}

    def committed(self, run_id: str) -> None:
        """Wake the watchers of the run: its journal has news."""
        for watcher in self._watchers_of(run_id):
            watcher.wake()

    def progress(self, run_id: str, kind: EventKind, detail: Mapping[str, Any], trigger_id: int | None = None) -> None:
        """Send progress, at most PROGRESS_PER_S a second of each kind, trigger and dataset."""
        watchers = self._watchers_of(run_id)
        if not watchers:
            return
        now = self._clock()
        about = (str(kind), trigger_id, str(detail.get("dataset", "")))
        with self._lock:
            last = self._last.setdefault(run_id, {})
            if now - last.get(about, -1.0) < 1 / PROGRESS_PER_S:
                return
            last[about] = now
            for old in [key for key, when in last.items() if now - when > 60]:
                del last[old]
        event = RunEvent(0, time.time(), kind, trigger_id, dict(detail))
        for watcher in watchers:
            watcher.offer(event)

    def add(self, run_id: str) -> RunWatcher:
        """Register and return a new watcher of the run; `remove` must follow."""
        watcher = RunWatcher()
        with self._lock:
            self._watchers.setdefault(run_id, []).append(watcher)
        return watcher

    def remove(self, run_id: str, watcher: RunWatcher) -> None:
        """Unregister a watcher that `add` returned."""
        with self._lock:
            self._watchers[run_id].remove(watcher)
            if not self._watchers[run_id]:
                del self._watchers[run_id]
                self._last.pop(run_id, None)

    def close(self) -> None:
        """End all watching."""
        with self._lock:
            watchers = [watcher for of_run in self._watchers.values() for watcher in of_run]
        for watcher in watchers:
            watcher.close()

    def _watchers_of(self, run_id: str) -> list[RunWatcher]:
        with self._lock:
            return list(self._watchers.get(run_id, ()))


def watch(
    journal: JournalQueries, hub: EventHub, run_id: str, after_seq: int, opened: Callable[[RunWatcher], None] = lambda _: None
) -> Iterator[RunEvent]:
    """Yield the kept events after `after_seq` without a gap, and progress in between, until the run is terminal.

    Args: opened: receives the watcher, so that another thread can close it; the stream then ends with UnavailableError.
    """
    watcher = hub.add(run_id)
    opened(watcher)
    try:
        while True:
            events, complete = journal.events(run_id, after_seq)
            yield from events
            if events:
                after_seq = events[-1].seq
            if complete:
                return
            if len(events) == EVENTS_PER_PAGE:
                continue
            # What is committed between the query above and this wait has set `_woken`: the wait ends at once, and nothing is missed.
            progress = watcher.wait(LOOK_AGAIN_S)
            if watcher.closed:
                raise UnavailableError(f"the supervisor is stopping; watch {run_id} again when it is back")
            yield from progress
    finally:
        hub.remove(run_id, watcher)
