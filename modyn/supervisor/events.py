"""Delivery of events to watchers. Those that are kept are read from the journal; progress passes through bounded queues and may get lost."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from modyn.errors import UnavailableError
from modyn.supervisor.journal_queries import EVENTS_PER_PAGE, JournalQueries
from modyn.supervisor.records import EventKind, RunEvent

PROGRESS_PER_S = 5
"""Progress events a second of each kind, trigger and dataset; those in between are dropped."""
PROGRESS_KEPT = 100
"""Progress events kept for a watcher that does not keep up; older ones are dropped."""
POLL_S = 5.0
"""A run may be executed by another supervisor, which cannot wake the watchers of this one."""


class RunWatcher:
    """The side of one watching call on one run: collects progress until it is read."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        """Set after each change of the two fields below, and when the journal has news."""
        self.progress: deque[RunEvent] = deque(maxlen=PROGRESS_KEPT)
        self.closed = False
        self.last: dict[tuple[str, int | None, str], float] = {}
        """When progress of each kind, trigger and dataset was passed on last, by the hub's clock. The hub's lock protects it."""

    def close(self) -> None:
        """End the wait, from any thread."""
        self.closed = True
        self.changed.set()

    def wait(self, timeout_s: float) -> list[RunEvent]:
        """Wait for progress, or for the journal to have news; return the progress that has come."""
        self.changed.wait(timeout_s)
        self.changed.clear()  # Before reading: what comes from here on ends the next wait.
        return [self.progress.popleft() for _ in range(len(self.progress))]


class EventHub:
    """Passes events of the runs that this process executes to their watchers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: clock: seconds that never jump."""
        self._lock = threading.Lock()  # Protects `_watchers`, and what their watchers know of progress.
        self._watchers: dict[str, list[RunWatcher]] = {}
        self._clock = clock
        self._listener: Callable[[str, RunEvent | None], None] = lambda run_id, progress: None

    def listen(self, listener: Callable[[str, RunEvent | None], None]) -> None:
        """Have `listener` called with the id of each run whose journal has news, or with its progress. It must return at once."""
        self._listener = listener

    def committed(self, run_id: str) -> None:
        """Wake the watchers of the run: its journal has news."""
        with self._lock:
            for watcher in self._watchers.get(run_id, ()):
                watcher.changed.set()
        self._listener(run_id, None)

    def progress(self, run_id: str, kind: EventKind, detail: Mapping[str, Any], trigger_id: int | None = None) -> None:
        """Send progress, at most PROGRESS_PER_S a second of each kind, trigger, dataset, state and stage.

        Args: detail: what `kind` documents. trigger_id: the trigger that it is about; None: the run as a whole.
        """
        now = self._clock()
        about = (str(kind), trigger_id, " ".join(str(detail.get(name, "")) for name in ("dataset", "state", "stage")))
        event = RunEvent(0, time.time(), kind, trigger_id, dict(detail))
        with self._lock:
            for watcher in self._watchers.get(run_id, ()):
                if now - watcher.last.get(about, -1.0) >= 1 / PROGRESS_PER_S:
                    watcher.last = {key: when for key, when in watcher.last.items() if now - when <= 60} | {about: now}
                    watcher.progress.append(event)
                    watcher.changed.set()
        self._listener(run_id, event)

    @contextmanager
    def watching(self, run_id: str) -> Iterator[RunWatcher]:
        """A new watcher of the run, registered until the block ends."""
        watcher = RunWatcher()
        with self._lock:
            self._watchers.setdefault(run_id, []).append(watcher)
        try:
            yield watcher
        finally:
            with self._lock:
                self._watchers[run_id].remove(watcher)
                if not self._watchers[run_id]:
                    del self._watchers[run_id]

    def close(self) -> None:
        """End all watching."""
        with self._lock:
            for watcher in (watcher for of_run in self._watchers.values() for watcher in of_run):
                watcher.close()


def watch(
    journal: JournalQueries,
    watcher: RunWatcher,
    run_id: str,
    after_seq: int,
    evaluation: int | None = None,
    newest: int | None = None,
) -> Iterator[RunEvent]:
    """Yield the kept events after `after_seq` without a gap, and progress in between, until the run is terminal.

    Args: watcher: registered for the run; once it is closed, the stream ends with UnavailableError. newest: begin with the newest so many
    of the kept ones; None: with the oldest, behind a message if older ones were removed. evaluation: number of requested evaluations,
    whose end counts instead of the run's.
    """
    first = journal.first_event(run_id, newest)
    if newest is None and after_seq + 1 < first:
        gone = "its first events are no longer kept (supervisor.events_kept); `modyn show` has all triggers and results"
        yield RunEvent(0, time.time(), EventKind.MESSAGE, None, {"message": f"run {run_id}: {gone}"})
    after_seq = max(after_seq, first - 1)
    while True:
        events, complete = journal.events(run_id, after_seq, evaluation=evaluation)
        yield from events
        if events:
            after_seq = events[-1].seq
        if complete:
            return
        if len(events) == EVENTS_PER_PAGE:
            continue
        # What is committed between the query above and this wait has set `changed`: the wait ends at once, and nothing is missed.
        progress = watcher.wait(POLL_S)
        if watcher.closed:
            raise UnavailableError(f"the supervisor is stopping; watch {run_id} again when it is back")
        yield from progress
