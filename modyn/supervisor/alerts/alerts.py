"""Alerts of runs. A separate thread reads the events from the journal, so that no run waits for an alert.

Events from before the start of this process are never reported, even if the previous supervisor did not report them.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from modyn.config.system_sections.alerts import AlertKind, AlertsConfig
from modyn.errors import ModynError, NotFoundError
from modyn.rpc.logs import get_logger
from modyn.supervisor.alerts.channels import CLOSE_S, Alert, AlertQueue, channels
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.queries import JournalQueries
from modyn.supervisor.journal.run_events import (
    EvaluateStep,
    RunEvent,
    RunMessage,
    RunProgress,
    StateChange,
    Step,
    StepState,
    TrainStep,
)
from modyn.supervisor.journal.states import TERMINAL, RunState
from modyn.supervisor.services.run_clients import STOPPED_WITH_SUPERVISOR

HOLD_BACK_S = 3600.0
"""Smallest number of seconds between two reports of the same trouble of a run. The next report counts the occurrences since the last report."""

WORKING = frozenset(RunState) - TERMINAL - {RunState.SUBMITTED, RunState.WAITING_FOR_DATA}
"""States in which a run without progress counts as stalled."""

_LOG = get_logger("supervisor")


class Finding(NamedTuple):
    """A fact about a run that an alert reports."""

    kind: AlertKind
    message: str
    trouble: str = ""
    """Name of a trouble that may occur often; empty if each occurrence is reported."""


def finding(event: RunEvent) -> Finding | None:
    """Return the finding of a journalled event; None if the event is not reported.

    >>> finding(RunEvent(7, 0.0, None, StateChange(RunState.FAILED, error="no such file")))
    Finding(kind='failed', message='no such file', trouble='')
    """
    trigger = f"trigger {event.trigger_id}"
    match event.detail:
        case StateChange(state=RunState.FAILED, error=error):
            return Finding("failed", error)
        case StateChange(state=RunState.INTERRUPTED, error=error) if not error.startswith(STOPPED_WITH_SUPERVISOR):
            return Finding("stalled", f"the run was interrupted: {error}", "interrupted")
        case StateChange(state=RunState.FINISHED, message=message):
            return Finding("finished", message)
        case EvaluateStep(state=StepState.FAILED, handler=handler, dataset=dataset, error=error):
            what = f"evaluation of {trigger} by handler '{handler}' on '{dataset}'"
            return Finding("degraded", f"{what} failed: {error}", EvaluateStep.step)
        case TrainStep(state=StepState.FINISHED, unusual_inputs=unusual) if unusual:
            return Finding("degraded", f"{trigger}: inputs are unusual: {'; '.join(unusual)}", "inputs")
        # A pause of online steps is intended, and not reported.
        case TrainStep(state=StepState.FINISHED, model_id=None, tests_only=False, reason=reason):
            return Finding("degraded", f"{trigger} made no model: {reason}", TrainStep.step)
    return None


@dataclass
class _Followed:
    """A run that this process follows."""

    last_seq: int
    moved_at: float
    state: RunState = RunState.SUBMITTED
    done: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)
    """Job of the run → the numbers that the job reported last."""
    is_stall_reported: bool = False
    troubles: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Trouble → time of the last report, and number of occurrences since this report."""


class RunAlerts:
    """Follows the runs that this supervisor executes. `notice` may be called from any thread, and never waits for another system."""

    def __init__(
        self,
        config: AlertsConfig,
        journal: JournalQueries,
        queues: Sequence[AlertQueue],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: queues: one for each channel, at least one; `close` closes the queues. clock: monotonic clock in seconds."""
        self._config = config
        self._journal = journal
        self._queues = queues
        self._clock = clock
        self._since = time.time()
        # A stall is detected at most one poll interval late: a tenth of `stalled_after_s`. The bounds prevent a busy thread and long intervals.
        self._poll_s = min(max(config.stalled_after_s / 10, 0.05), 30.0)
        self._lock = threading.Lock()  # Guards the next two fields, and the numbers and times of followed runs.
        self._news: set[str] = set()
        self._followed: dict[str, _Followed] = {}
        # Wakes the thread early: set when a journal has news, and by `close`.
        self._changed = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._follow, name="alerts", daemon=True)

    def start(self) -> None:
        """Start the thread. The thread polls when a journal has news, and periodically to find stalled runs."""
        self._thread.start()

    def notice(self, run_id: str, progress: RunEvent | None) -> None:
        """Record progress of a run, or the news of the run's journal if `progress` is None. `EventHub` calls this method."""
        with self._lock:
            if progress is None:
                self._news.add(run_id)
                self._changed.set()
            elif isinstance(detail := progress.detail, RunProgress) and (run := self._followed.get(run_id)) is not None:
                job = (progress.kind, progress.trigger_id, detail.subject)
                # Only changed numbers are progress, because a stalled job may repeat its reports.
                if run.done.get(job) != detail.done:
                    run.done[job] = detail.done
                    self._note_progress(run)

    def close(self) -> None:
        """Report all events until now, then end the thread. Alerts that cannot be sent within `CLOSE_S` are dropped."""
        self._closing = True
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        # The queues close after the thread has ended, because the thread's last poll adds alerts to the queues.
        with ThreadPoolExecutor(len(self._queues)) as pool:  # All queues close in parallel, within the same time.
            list(pool.map(lambda queue: queue.close(), self._queues))

    def poll(self) -> None:
        """Report new events and stalled runs. If the journal of a run cannot be read now, the run is polled again later."""
        with self._lock:
            news, self._news = self._news, set()
            stalled = [run_id for run_id, run in self._followed.items() if self._is_stalled(run)]
        for run_id in sorted(news | set(stalled)):
            try:
                self._report_new_events(run_id)
                self._report_stall(run_id)
            except NotFoundError:
                with self._lock:
                    self._followed.pop(run_id, None)  # The run was removed.
            except ModynError as error:
                _LOG.warning("alerts_wait", run_id=run_id, error=error.message)
                with self._lock:
                    self._news.add(run_id)
            except Exception:  # noqa: BLE001 - an error would end the thread and all later alerts
                _LOG.exception("alerts_crashed", run_id=run_id)

    def _follow(self) -> None:
        closing = False
        while not closing:
            # The wait has a timeout, because a stalled run has no news. The event is cleared first, so that news during the poll wakes the thread
            # again.
            self._changed.wait(self._poll_s)
            self._changed.clear()
            closing = self._closing  # Read before the poll: the last poll then reports all events from before `close`.
            self.poll()

    def _report_new_events(self, run_id: str) -> None:
        """Report the new events in the journal of a run."""
        run = self._followed.get(run_id)
        if run is None:
            # Events from before the start of this process are not reported.
            run = _Followed(self._journal.last_seq(run_id, before=self._since), self._clock())
            with self._lock:
                self._followed[run_id] = run
        while events := self._journal.events(run_id, run.last_seq)[0]:
            for event in events:
                if isinstance(event.detail, StateChange):
                    run.state = event.detail.state
                if not isinstance(event.detail, RunMessage):  # Runs that wait for a service write messages without progress.
                    with self._lock:
                        run.done.clear()
                        self._note_progress(run)
                if isinstance(event.detail, Step) and event.detail.state is StepState.FINISHED:
                    # The run has made progress since the last interruption. Therefore, the next interruption is reported.
                    run.troubles.pop("interrupted", None)
                if (found := finding(event)) is not None:
                    self._report(run_id, run, found, event.time)
                run.last_seq = event.seq

    def _note_progress(self, run: _Followed) -> None:
        run.moved_at, run.is_stall_reported = self._clock(), False

    def _is_stalled(self, run: _Followed) -> bool:
        return run.state in WORKING and not run.is_stall_reported and self._clock() - run.moved_at >= self._config.stalled_after_s

    def _report_stall(self, run_id: str) -> None:
        """Report a stalled run, unless the newest events in its journal show progress, which another supervisor may have written."""
        run = self._followed[run_id]
        with self._lock:
            if not self._is_stalled(run):
                return
        since_s = self._clock() - run.moved_at
        message = f"the run is {run.state} and has made no progress for {since_s:.0f} s; `modyn show {run_id}` shows what it does"
        self._report(run_id, run, Finding("stalled", message), time.time())
        run.is_stall_reported = True

    def _report(self, run_id: str, run: _Followed, found: Finding, when: float) -> None:
        """Queue an alert at each channel, unless the same trouble was reported within `HOLD_BACK_S`."""
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
        for queue in self._queues:
            queue.put(alert)


def follow_runs(config: AlertsConfig, journal: JournalQueries, hub: EventHub) -> RunAlerts | None:
    """Start to send the configured alerts. Return None if no alerts are configured.

    Args: journal: source of the events. hub: reports that the journal has new events. Raises: ConfigError: see `channels`.
    """
    if not (queues := [AlertQueue(channel) for channel in channels(config)]):
        return None
    alerts = RunAlerts(config, journal, queues)
    hub.listen(alerts.notice)
    alerts.start()
    return alerts
