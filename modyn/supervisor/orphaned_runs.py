"""A periodic search for orphaned runs: left by a thread or a supervisor that ended without writing how, or interrupted unseen."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

from modyn.config.system import SupervisorConfig
from modyn.errors import ConflictError, NotFoundError
from modyn.records import RunId
from modyn.rpc.logs import get_logger
from modyn.supervisor.attempt import NEVER_BEGAN, RunAttempts
from modyn.supervisor.auto_resume import goes_on
from modyn.supervisor.journal import Journal
from modyn.supervisor.records import Run
from modyn.supervisor.states import TERMINAL, RunState

SCAN_PERIOD_S: Final = 30.0
"""Between two scans."""
CONFIRMING_SCANS: Final = 3
"""So many scans in a row find an orphaned run. Every supervisor takes locks that a broken connection cost it again at each scan, so that
it comes before the third scan of another one."""

STOPPED_WITH_SUPERVISOR: Final = "the supervisor was stopped"
"""So begins why a run is interrupted that has ended with its supervisor."""

_SCANNED_STATES = frozenset(RunState) - TERMINAL | {RunState.INTERRUPTED}

_LOG = get_logger("supervisor")


def stopped_with_supervisor(config: SupervisorConfig) -> str:
    """Why a run is interrupted that has ended with its supervisor, and what makes it go on."""
    start = "start it again" if config.address else "start it again (`modyn up`)"  # Without an address it is the embedded one.
    return f"{STOPPED_WITH_SUPERVISOR}; {start}: {goes_on(config)}"


class OrphanDetector:
    """Marks runs as interrupted that are active by the journal and driven by nothing, and has those resumed that go on by themselves.

    A run counts as orphaned only if `CONFIRMING_SCANS` scans in a row find it so: it may be just submitted, its thread just ending, or the
    connection that holds its lock just broken.

    Args: resume_by_itself: called with interrupted runs; resumes those that go on by themselves. queued: the runs that this supervisor executes or
        that wait for their turn here. accepted: those that it was ever asked to queue. enqueue: queues a submitted run.
    """

    def __init__(
        self,
        journal: Journal,
        attempts: RunAttempts,
        resume_by_itself: Callable[[Run], object],
        queued: Callable[[], Set[RunId]],
        accepted: Callable[[], Set[str]],
        enqueue: Callable[[RunId], object],
    ) -> None:
        self._journal = journal
        self._attempts = attempts
        self._resume_by_itself = resume_by_itself
        self._queued = queued
        self._accepted = accepted
        self._enqueue = enqueue
        self._suspects: dict[RunId, int] = {}
        """How many scans in a row have found each of them so."""

    def scan(self) -> None:
        """Go through all runs once. Raises: UnavailableError: PostgreSQL cannot be reached; the next scan finds the same."""
        database = self._journal.database
        database.keep_locks()
        # The journal first: a run that it shows as active and that is not queued afterwards is not on its way into the queue.
        runs = list(self._journal.each_run(with_pipelines=False, states=_SCANNED_STATES))
        queued = self._queued()
        active = [run for run in runs if not run.is_terminal and run.run_id not in queued]
        undriven = {run.run_id: run for run in active if not database.is_locked(f"run/{run.run_id}")}
        self._suspects = {run_id: 1 + self._suspects.get(run_id, 0) for run_id in undriven}
        for run_id in [run_id for run_id, scans in self._suspects.items() if scans >= CONFIRMING_SCANS]:
            try:
                self._interrupt_or_enqueue(undriven[run_id])
            except (ConflictError, NotFoundError) as error:  # it has moved on by itself, or is removed
                _LOG.info("not_orphaned", run_id=run_id, reason=error.message)
        for run in runs:
            if run.state is RunState.INTERRUPTED and run.error != NEVER_BEGAN:
                self._resume_by_itself(run)

    def _interrupt_or_enqueue(self, run: Run) -> None:
        if run.state is RunState.SUBMITTED:
            # It holds no lock while it waits: whether another supervisor has it in its queue is not known.
            if run.run_id in self._accepted():
                _LOG.warning("queued_again", run_id=run.run_id)
                self._enqueue(run.run_id)
        elif self._attempts.interrupt_if_abandoned(run.run_id):
            _LOG.warning("orphaned_run_found", run_id=run.run_id, state=str(run.state))
            self._resume_by_itself(self._journal.run(run.run_id))
