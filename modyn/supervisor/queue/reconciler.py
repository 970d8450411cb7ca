"""Compare the runs of this supervisor with the runs that should execute according to the journal, every 30 s, and correct the differences.

These runs should execute: every run that is not terminal, and every interrupted run that is resumed automatically. A supervisor holds the runs of its
queue, and keeps a lock of the database for each run that it executes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Final

from prometheus_client import Gauge

from modyn.config.system import SupervisorConfig
from modyn.errors import ConflictError, ModynError, NotFoundError
from modyn.records import RunId
from modyn.rpc.logs import get_logger
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.records import Run, RunMode
from modyn.supervisor.journal.states import TERMINAL, RunState
from modyn.supervisor.run.attempt import NEVER_BEGAN, RunAttempts

PASS_EVERY_S: Final = 30.0
"""Seconds between two passes over the journal."""
CONFIRMING_PASSES: Final = 3
"""Number of consecutive passes that must find a run orphaned. A broken connection releases the locks of a living supervisor. This supervisor takes
the locks again at its next pass, and therefore before the third pass of another supervisor.
"""
OWNER_GONE_S: Final = 2.0
"""Seconds within which PostgreSQL notices that the supervisor of a run was killed."""
FIRST_PAUSE_S: Final = 10.0
"""Seconds before an interrupted run is resumed for the first time. Each further pause is twice as long."""
LONGEST_PAUSE_S: Final = 600.0
"""Largest length of a pause in seconds. If no interruption occurs for this time after a pause, the next pause has the first length again."""

RUNS_TO_RESUME = Gauge(
    "modyn_supervisor_runs_to_resume",
    "Runs that should run and do not: an outage, or the end of their supervisor, interrupted them; they continue by themselves",
)

_WANTED: Final = frozenset(RunState) - TERMINAL | {RunState.INTERRUPTED}
"""States of runs that should be executed."""

_LOG = get_logger("supervisor")


@dataclass(slots=True)
class _Pause:
    """The current pause of a run before the run is resumed."""

    length_s: float
    ends_at: float
    is_over: bool = False
    """Whether the run was resumed when the pause ended."""


class Reconciler:
    """Interrupts orphaned runs, and resumes interrupted runs after pauses that double. Each method may be called from any thread.

    An orphaned run is active according to the journal, but no thread executes the run: the supervisor was killed, or the thread ended without
    writing the end of the run. A run also looks orphaned for a moment while it is submitted, while its thread ends, or after the connection that
    holds its lock broke; therefore `CONFIRMING_PASSES` passes in a row must find the run orphaned. A run of another supervisor has a lock, and is
    not changed.

    Interrupted runs in production mode are resumed; with `resume_on_start`, all interrupted runs are resumed. A run that was executed for longer than
    the longest pause starts with the first pause again.
    """

    def __init__(
        self,
        journal: Journal,
        attempts: RunAttempts,
        config: SupervisorConfig,
        *,
        held: Callable[[], Set[RunId]],
        accepted: Callable[[], Set[RunId]],
        enqueue: Callable[[RunId], object],
        resume: Callable[[RunId], object],
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: held: returns the runs that this supervisor executes or holds in the queue. accepted: returns all runs that this supervisor was
        asked to queue. enqueue: queues a submitted run. resume: queues an interrupted run again. clock: monotonic clock in seconds.
        """
        self._journal = journal
        self._attempts = attempts
        self._config = config
        self._held = held
        self._accepted = accepted
        self._enqueue = enqueue
        self._resume = resume
        self._first_pause_s, self._longest_pause_s = first_pause_s, longest_pause_s
        self._clock = clock
        self._suspects: dict[RunId, int] = {}
        """Number of consecutive passes that found each run orphaned."""
        # Guards the next three fields. Notified by a new pause and by `close`, which wake the thread early.
        self._changed = threading.Condition()
        self._pauses: dict[RunId, _Pause] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._repeat, name="reconciler", daemon=True)

    def start(self) -> None:
        """Reconcile from now on, in a separate thread."""
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread; no further run is resumed. Args: timeout_s: seconds to wait for a pass that is under way."""
        with self._changed:
            self._closed = True
            self._pauses.clear()
            # The next supervisor counts these runs.
            RUNS_TO_RESUME.set(0)
            self._changed.notify_all()
        # The thread is a daemon: if a call in its pass hangs, the supervisor ends without it.
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def take_over(self) -> None:
        """Interrupt the runs of an earlier, ended supervisor, and resume interrupted runs; with `resume_on_start`, runs are resumed immediately."""
        give_up = time.monotonic() + OWNER_GONE_S  # All runs share one deadline, because all belong to the same ended supervisor.
        for found in list(self._journal.each_run(with_pipelines=False, states=_WANTED)):
            if not found.is_terminal and not self._attempts.interrupt_if_abandoned(found.run_id, give_up - time.monotonic()):
                _LOG.info("executed_elsewhere", run_id=found.run_id)
                continue
            run = self._journal.run(found.run_id)
            if self._is_wanted(run) and self._config.resume_on_start:
                self._resume(run.run_id)
            else:
                self.resume_later(run)

    def reconcile(self) -> None:
        """Make one pass over the journal. Raises: UnavailableError: PostgreSQL cannot be reached; the next pass repeats the work."""
        database = self._journal.database
        # Locks that a broken connection has released are taken again, so that no other supervisor takes over the runs of this supervisor.
        database.keep_locks()
        # The journal is read before the queue. In the other order, a run that is queued between the two reads would look orphaned.
        runs = list(self._journal.each_run(with_pipelines=False, states=_WANTED))
        held = self._held()
        active = [run for run in runs if not run.is_terminal and run.run_id not in held]
        undriven = {run.run_id: run for run in active if not database.is_locked(f"run/{run.run_id}")}
        self._suspects = {run_id: 1 + self._suspects.get(run_id, 0) for run_id in undriven}
        for run_id in [run_id for run_id, passes in self._suspects.items() if passes >= CONFIRMING_PASSES]:
            try:
                self._interrupt_or_enqueue(undriven[run_id])
            except (ConflictError, NotFoundError) as error:
                # The state of the run has changed since the read, or the run was removed.
                _LOG.info("not_orphaned", run_id=run_id, reason=error.message)
        for run in runs:
            self.resume_later(run)

    def resume_later(self, run: Run) -> None:
        """Plan to resume a run after the next pause, if the run is interrupted, is resumed automatically, and has no planned pause yet."""
        if self._is_wanted(run):
            self._begin_pause(run.run_id)

    def resume_due(self) -> None:
        """Resume the runs whose pause has ended. The next pause begins for each run that cannot be resumed now."""
        now = self._clock()
        with self._changed:
            due = [run_id for run_id, pause in self._pauses.items() if not pause.is_over and pause.ends_at <= now]
            for run_id in due:
                self._pauses[run_id].is_over = True
            self._count()
        # The lock is not held here, because a resumption waits for the database and other threads may begin pauses.
        for run_id in due:
            try:
                self._resume(run_id)
            except ModynError as error:
                _LOG.warning("not_resumed", run_id=run_id, error=error.message)
                self._begin_pause(run_id)
            except Exception:  # noqa: BLE001 - it would end the thread
                _LOG.exception("resume_crashed", run_id=run_id)
                self._begin_pause(run_id)

    def _is_wanted(self, run: Run) -> bool:
        is_resumed = run.mode is RunMode.PRODUCTION or self._config.resume_on_start
        return run.state is RunState.INTERRUPTED and run.error != NEVER_BEGAN and is_resumed

    def _begin_pause(self, run_id: RunId) -> None:
        with self._changed:
            now, last = self._clock(), self._pauses.get(run_id)
            if self._closed or (last is not None and not last.is_over):
                return
            length_s = self._first_pause_s
            # If the run is interrupted again soon after a pause, the next pause is twice as long.
            if last is not None and now - last.ends_at <= self._longest_pause_s:
                length_s = min(2 * last.length_s, self._longest_pause_s)
            self._pauses[run_id] = _Pause(length_s, now + length_s)
            self._count()
            self._changed.notify_all()
        _LOG.warning("resumes_later", run_id=run_id, seconds=length_s)

    def _count(self) -> None:
        RUNS_TO_RESUME.set(sum(not pause.is_over for pause in self._pauses.values()))

    def _interrupt_or_enqueue(self, run: Run) -> None:
        if run.state is RunState.SUBMITTED:
            # A waiting run has no lock and may be in the queue of another supervisor. Only runs that this supervisor accepted are queued again.
            if run.run_id in self._accepted():
                _LOG.warning("queued_again", run_id=run.run_id)
                self._enqueue(run.run_id)
        elif self._attempts.interrupt_if_abandoned(run.run_id):
            _LOG.warning("orphaned_run_found", run_id=run.run_id, state=str(run.state))
            self.resume_later(self._journal.run(run.run_id))

    def _repeat(self) -> None:
        next_pass = self._clock()
        while not self._closed:
            self.resume_due()
            if self._clock() >= next_pass:
                next_pass = self._clock() + PASS_EVERY_S
                try:
                    self.reconcile()
                except Exception as error:  # noqa: BLE001 - it would end the thread
                    _LOG.warning("runs_are_reconciled_later", error=str(error))
            with self._changed:
                # Woken by `close`, by a new pause, and at the next pass or the end of the first pause.
                ends = [pause.ends_at for pause in self._pauses.values() if not pause.is_over]
                if not self._closed:
                    self._changed.wait(max(min([next_pass, *ends]) - self._clock(), 0.0))
