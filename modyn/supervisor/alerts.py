"""Alerts of runs, read from the journal by a separate thread: no run waits for an alert.

Begins with the process: what was journalled, but not sent yet, when the supervisor before was killed is not sent any more.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from modyn.config.alerts import AlertKind, AlertsConfig
from modyn.errors import ModynError, NotFoundError
from modyn.rpc.logs import get_logger
from modyn.supervisor.alert_channels import CLOSE_S, Alert, Outbox, channels
from modyn.supervisor.events import EventHub
from modyn.supervisor.journal_queries import JournalQueries
from modyn.supervisor.orphaned_runs import STOPPED_WITH_SUPERVISOR
from modyn.supervisor.records import EventKind, RunEvent
from modyn.supervisor.states import TERMINAL, RunState

HOLD_BACK_S = 3600.0
"""The same trouble of a run is reported once in this time; the next alert says how often it came meanwhile."""

WORKING = frozenset(RunState) - TERMINAL - {RunState.SUBMITTED, RunState.WAITING_FOR_DATA}
"""States in which a run makes progress, or has stalled."""

_LOG = get_logger("supervisor")


class Finding(NamedTuple):
    """Something to report of a run."""

    kind: AlertKind
    message: str
    trouble: str = ""
    """What is the matter, of those that may come often; empty: it is reported each time."""


def finding(event: RunEvent) -> Finding | None:
    """What a kept event is reported as; None: it is no news.

    >>> finding(RunEvent(7, 0.0, EventKind.RUN_STATE, None, {"state": "failed", "error": "no such file"}))
    Finding(kind='failed', message='no such file', trouble='')
    """
    detail = event.detail
    match event.kind, detail.get("state"):
        case EventKind.RUN_STATE, RunState.FAILED:
            return Finding("failed", detail.get("error", ""))
        case EventKind.RUN_STATE, RunState.INTERRUPTED if not detail.get("error", "").startswith(STOPPED_WITH_SUPERVISOR):
            return Finding("stalled", f"the run was interrupted: {detail.get('error', '')}", "interrupted")
        case EventKind.RUN_STATE, RunState.FINISHED:
            return Finding("finished", detail.get("message", ""))
        case EventKind.STEP, "failed":
            what = f"{detail['step']} of trigger {event.trigger_id}"
            if detail["step"] == "evaluate":
                what = f"evaluation of trigger {event.trigger_id} by handler '{detail['handler']}' on '{detail['dataset']}'"
            return Finding("degraded", f"{what} failed: {detail.get('error', '')}", detail["step"])
        case EventKind.STEP, "finished" if detail.get("unusual_inputs"):
            found = f"trigger {event.trigger_id}: inputs are unusual: {'; '.join(detail['unusual_inputs'])}"
            return Finding("degraded", found, "inputs")
        case EventKind.STEP, "finished" if detail["step"] == "train" and detail.get("model_id") is None:
            if not detail.get("tests_only"):  # A pause of steps is meant.
                return Finding("degraded", f"trigger {event.trigger_id} made no model: {detail.get('reason', '')}", "train")
    return None


@dataclass
class _Followed:
    """A run that this process has heard of."""

    last_seq: int
    moved_at: float
    state: RunState = RunState.SUBMITTED
    marks: dict[tuple[object, ...], object] = field(default_factory=dict)
    """How far each of its jobs was at its last sign of progress."""
    reported_still: bool = False
    troubles: dict[str, tuple[float, int]] = field(default_factory=dict)
    """When each trouble was reported last, and how often it came since."""


class RunAlerts:
    """Follows the runs that this supervisor executes. `heard` may be called from any thread, and never waits for another system."""

    def __init__(
        self,
        config: AlertsConfig,
        journal: JournalQueries,
        outboxes: Sequence[Outbox],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: outboxes: one for each channel, at least one; `close` closes them. clock: seconds that never jump."""
        self._config = config
        self._journal = journal
        self._outboxes = outboxes
        self._clock = clock
        self._since = time.time()
        self._poll_s = min(max(config.stalled_after_s / 10, 0.05), 30.0)
        self._lock = threading.Lock()  # Guards the next two fields, and marks and times of what is followed.
        self._news: set[str] = set()
        self._followed: dict[str, _Followed] = {}
        # Wakes the thread before its time: there is news, or `close` was called.
        self._changed = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._follow, name="alerts", daemon=True)

    def start(self) -> None:
        """Look from now on, in a thread, after each news and often enough to find runs that stand still."""
        self._thread.start()

    def heard(self, run_id: str, progress: RunEvent | None) -> None:
        """Take note of progress, or of news in the journal of a run: a listener of `EventHub`."""
        with self._lock:
            if progress is None:
                self._news.add(run_id)
                self._changed.set()
            elif progress.kind is not EventKind.SERVING and (run := self._followed.get(run_id)) is not None:
                job = (progress.kind, progress.trigger_id, progress.detail.get("handler"), progress.detail.get("dataset"))
                detail = progress.detail
                mark = (detail.get("samples_seen", detail.get("num_samples")), detail.get("samples_scored"), detail.get("stage"))
                if run.marks.get(job) != mark:
                    run.marks[job] = mark
                    self._moved(run)

    def close(self) -> None:
        """Report what has happened until now, then end; what cannot be sent within moments is not sent."""
        self._closing = True
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        # After the thread: its last poll still puts alerts into them.
        with ThreadPoolExecutor(len(self._outboxes)) as pool:  # all at once, so that they share the time
            list(pool.map(lambda outbox: outbox.close(), self._outboxes))

    def poll(self) -> None:
        """Report all news, and the runs that stand still. A run whose journal cannot be read now is polled again."""
        with self._lock:
            news, self._news = self._news, set()
            still = [run_id for run_id, run in self._followed.items() if self._stands_still(run)]
        for run_id in sorted(news | set(still)):
            try:
                self._read(run_id)
                self._report_still(run_id)
            except NotFoundError:
                with self._lock:
                    self._followed.pop(run_id, None)  # The run was removed.
            except ModynError as error:
                _LOG.warning("alerts_wait", run_id=run_id, error=error.message)
                with self._lock:
                    self._news.add(run_id)
            except Exception:  # noqa: BLE001 - it would end the thread, and all alerts with it
                _LOG.exception("alerts_crashed", run_id=run_id)

    def _follow(self) -> None:
        closing = False
        while not closing:
            # Bounded: runs that stand still give no news. Cleared before the poll: what comes during it wakes the thread once more.
            self._changed.wait(self._poll_s)
            self._changed.clear()
            closing = self._closing  # Read before the poll: it sees all that was written before `close`.
            self.poll()

    def _read(self, run_id: str) -> None:
        """Report what the journal of a run has new."""
        run = self._followed.get(run_id)
        if run is None:
            run = _Followed(self._journal.last_seq(run_id, before=self._since), self._clock())
            with self._lock:
                self._followed[run_id] = run
        while events := self._journal.events(run_id, run.last_seq)[0]:
            for event in events:
                if event.kind is EventKind.RUN_STATE:
                    run.state = RunState(event.detail["state"])
                if event.kind is not EventKind.MESSAGE:  # A run that waits for a service says so, and stands still.
                    with self._lock:
                        run.marks.clear()
                        self._moved(run)
                if event.kind is EventKind.STEP and event.detail["state"] == "finished":
                    run.troubles.pop("interrupted", None)  # It got on since: the next interruption is news.
                if (found := finding(event)) is not None:
                    self._report(run_id, run, found, event.time)
                run.last_seq = event.seq

    def _moved(self, run: _Followed) -> None:
        run.moved_at, run.reported_still = self._clock(), False

    def _stands_still(self, run: _Followed) -> bool:
        return run.state in WORKING and not run.reported_still and self._clock() - run.moved_at >= self._config.stalled_after_s

    def _report_still(self, run_id: str) -> None:
        """Report a run that stands still, also by the journal, into which another supervisor may write."""
        run = self._followed[run_id]
        with self._lock:
            if not self._stands_still(run):
                return
        since_s = self._clock() - run.moved_at
        message = f"the run is {run.state} and has made no progress for {since_s:.0f} s; `modyn show {run_id}` shows what it does"
        self._report(run_id, run, Finding("stalled", message), time.time())
        run.reported_still = True

    def _report(self, run_id: str, run: _Followed, found: Finding, when: float) -> None:
        """Queue an alert at each channel, unless the same trouble was reported a short time ago."""
        if found.kind not in self._config.kinds:
            return
        record, message = self._journal.run(run_id), found.message
        if found.trouble:
            reported_at, held_back = run.troubles.get(found.trouble, (float("-inf"), 0))
            if self._clock() - reported_at < HOLD_BACK_S:
                run.troubles[found.trouble] = (reported_at, held_back + 1)
                return
            run.troubles[found.trouble] = (self._clock(), 0)
            message += f" (and {held_back} more since the last alert)" if held_back else ""
        if found.kind == "finished" and record.failed_evaluations:
            message += f"{'; ' if message else ''}{record.failed_evaluations} evaluations failed"
        message = message or f"the run is {record.state}"
        alert = Alert(uuid.uuid4().hex, found.kind, run_id, record.pipeline_name, str(record.state), when, message)
        for outbox in self._outboxes:
            outbox.put(alert)


def follow_runs(config: AlertsConfig, journal: JournalQueries, hub: EventHub) -> RunAlerts | None:
    """Begin to send the alerts that are configured; None: none are.

    Args: journal: read at the start and after each event. hub: reports the events.
    Raises: ConfigError: a secret is missing.
    """
    if not (outboxes := [Outbox(channel) for channel in channels(config)]):
        return None
    alerts = RunAlerts(config, journal, outboxes)
    hub.listen(alerts.heard)
    alerts.start()
    return alerts
