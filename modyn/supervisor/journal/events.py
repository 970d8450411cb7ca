"""Delivery of events to watchers. Watchers read journalled events from the journal. Progress events pass through bounded queues and may get lost."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from modyn.errors import UnavailableError
from modyn.supervisor.journal.queries import EVENTS_PER_PAGE, JournalQueries
from modyn.supervisor.journal.run_events import LiveDetail, RunEvent, RunMessage, RunProgress

PROGRESS_PER_S = 5
"""Largest number of progress events per second for each kind, trigger and `RunProgress.subject`. Further progress events are dropped."""
PROGRESS_KEPT = 100
"""Largest number of progress events kept for a slow watcher; older progress events are dropped."""
POLL_S = 5.0
"""Seconds between polls. Polls are needed because another supervisor may execute the run and cannot wake the watchers of this supervisor."""


class RunWatcher:
    """Collects the progress events of one run for one watching call, until the call reads these events."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        """Set after each change of the two fields below, and when the journal has news."""
        self.progress: deque[RunEvent] = deque(maxlen=PROGRESS_KEPT)
        self.closed = False
        self.last: dict[tuple[str, int | None, str], float] = {}
        """Kind, trigger and subject of progress → time of the last progress event, by the hub's clock. Protected by the hub's lock."""

    def close(self) -> None:
        """End `wait`; may be called from any thread."""
        self.closed = True
        self.changed.set()

    def wait(self, timeout_s: float) -> list[RunEvent]:
        """Wait for progress or for news in the journal; return the progress events received."""
        self.changed.wait(timeout_s)  # Woken by progress, a commit, or `close`.
        self.changed.clear()  # The event is cleared before the read, so that later progress ends the next wait.
        return [self.progress.popleft() for _ in range(len(self.progress))]


class EventHub:
    """Passes the events of the runs that this process executes to the watchers of each run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: clock: monotonic clock in seconds."""
        self._lock = threading.Lock()  # Protects `_watchers`, and the fields of these watchers.
        self._watchers: dict[str, list[RunWatcher]] = {}
        self._clock = clock
        self._listener: Callable[[str, RunEvent | None], None] = lambda run_id, progress: None

    def listen(self, listener: Callable[[str, RunEvent | None], None]) -> None:
        """Call `listener(run_id, None)` after each write that added events to a journal, and `listener(run_id, event)` for each progress event. The
        listener must return immediately.
        """
        self._listener = listener

    def wake_watchers(self, run_id: str) -> None:
        """Wake the watchers of the run, because the journal of the run has news."""
        with self._lock:
            for watcher in self._watchers.get(run_id, ()):
                watcher.changed.set()
        self._listener(run_id, None)

    def progress(self, run_id: str, detail: LiveDetail, trigger_id: int | None = None) -> None:
        """Send progress to the watchers of a run, at most PROGRESS_PER_S events a second for each kind, trigger and `RunProgress.subject`."""
        now = self._clock()
        event = RunEvent(0, time.time(), trigger_id, detail)
        about = (event.kind, trigger_id, detail.subject if isinstance(detail, RunProgress) else "")
        with self._lock:
            for watcher in self._watchers.get(run_id, ()):
                if now - watcher.last.get(about, -1.0) >= 1 / PROGRESS_PER_S:
                    # Entries of the last minute are enough for the limit. Older entries are dropped, because a run has many triggers.
                    watcher.last = {key: when for key, when in watcher.last.items() if now - when <= 60} | {about: now}
                    watcher.progress.append(event)
                    watcher.changed.set()
        self._listener(run_id, event)

    @contextmanager
    def watching(self, run_id: str) -> Iterator[RunWatcher]:
        """Register a new watcher of the run until the block ends."""
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
        """Close all watchers."""
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
    """Yield the journalled events after `after_seq` without a gap, and progress between them, until the run is terminal.

    Args: watcher: watcher registered for the run; after the watcher is closed, the stream ends with UnavailableError. newest: number of the newest
    journalled events to start with; None to start with all of them, after a message if older events were removed. evaluation:
    `RequestedEvaluation.number` of a request. The stream then ends with this request instead of with the run.
    """
    first = journal.first_event(run_id, newest)
    if newest is None and after_seq + 1 < first:
        gone = "its first events are no longer kept (supervisor.events_kept); `modyn show` has all triggers and results"
        yield RunEvent(0, time.time(), None, RunMessage(f"run {run_id}: {gone}"))
    after_seq = max(after_seq, first - 1)
    while True:
        events, complete = journal.events(run_id, after_seq, evaluation=evaluation)
        yield from events
        if events:
            after_seq = events[-1].seq
        if complete:
            return
        if len(events) == EVENTS_PER_PAGE:  # The journal may have more events.
            continue
        # A commit between the query above and this wait sets `changed`. The wait then ends immediately, and no event is missed.
        progress = watcher.wait(POLL_S)
        if watcher.closed:
            raise UnavailableError(f"the supervisor is stopping; watch {run_id} again when it is back")
        yield from progress
