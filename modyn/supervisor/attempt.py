"""One attempt to execute a run, in its own thread: from the lock that keeps other supervisors away to the state that it ends in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Counter

from modyn.config.system import SupervisorConfig
from modyn.errors import CancelledError, ConflictError, ModynError, UnavailableError
from modyn.records import RunId
from modyn.rpc.logs import get_logger
from modyn.rpc.retry import CancellationToken, Retrier, RetryPolicy
from modyn.supervisor.auto_resume import goes_on
from modyn.supervisor.events import EventHub
from modyn.supervisor.executor import RunExecutor
from modyn.supervisor.journal import Journal, RunJournal
from modyn.supervisor.records import Run
from modyn.supervisor.run_clients import RunClients, retry_policy
from modyn.supervisor.states import TERMINAL, RunState

RUNS_ENDED = Counter("modyn_supervisor_runs_ended", "Runs that became terminal, by state", ["state"])

NEVER_BEGAN: Final = (
    "the supervisor went away before the run was accepted; `modyn resume` starts it, `modyn rm` removes it: if its submission seemed to fail, "
    "and you have submitted it again, it is there twice"
)
"""Why a run is interrupted whose submission was not completed. It does not go on by itself: the user may have another one in its place."""

_LOG = get_logger("supervisor")


@dataclass(eq=False)
class QueuedRun:
    """A run that waits or executes."""

    run_id: RunId
    token: CancellationToken = field(default_factory=CancellationToken)
    finishing: CancellationToken = field(default_factory=CancellationToken)
    """Cancelled: the run was asked to finish."""
    stopping: CancelledError | None = None
    """Set before the journal says that the run is stopping, which then refuses what the run would do next; `token` is cancelled after that.
    Without a ConflictError it says nothing: the journal may not have been written."""
    thread: threading.Thread | None = None
    """None: it waits."""
    clients: RunClients | None = None
    begun: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with an error, or well, with a message for the user."""

    error: ModynError | None = None
    message: str = ""

    @property
    def state(self) -> RunState:
        """The state that the run ends in."""
        if self.error is None:
            return RunState.FINISHED
        if isinstance(self.error, CancelledError):
            return RunState.STOPPED
        return RunState.INTERRUPTED if isinstance(self.error, UnavailableError) else RunState.FAILED

    @property
    def detail(self) -> dict[str, str]:
        """What the journal keeps of the error. A run that was stopped on request has none."""
        if self.error is None or self.state is RunState.STOPPED:
            return {}
        return {"error": self.error.message, "error_reason": self.error.reason}


class RunAttempts:
    """Executes runs and writes how they ended. Safe to use from the threads of several runs.

    Args: open_clients: called in the thread of each run, which closes them. ended: called with each run that has become terminal, under
    its lock.
    """

    def __init__(
        self,
        journal: Journal,
        hub: EventHub,
        open_clients: Callable[[], RunClients],
        config: SupervisorConfig,
        ended: Callable[[Run], object],
    ) -> None:
        self._journal = journal
        self._hub = hub
        self._open_clients = open_clients
        self._config = config
        self._ended = ended
        self.until_closed = Retrier(RetryPolicy(float("inf"), longest_pause_s=2.0))

    def drive(self, entry: QueuedRun) -> None:
        """Execute the run and write how it ended: the only way on which a run that began ends.

        Holds the lock that keeps other supervisors on this database away. Called again when PostgreSQL could not be reached.
        """
        if entry.begun:
            return  # The end is written; only giving the lock back has failed.
        journal, outcome = RunJournal(self._journal, entry.run_id, attempt=None), None
        with ExitStack() as lock:
            try:
                if not lock.enter_context(self._journal.database.advisory_lock(f"run/{entry.run_id}")):
                    raise elsewhere(entry.run_id)
                journal = self._journal.claim(entry.run_id)
            except ModynError:
                raise
            except Exception as error:  # noqa: BLE001 - as below
                outcome = Outcome(self._as_modyn_error(entry, error))
            entry.begun = True
            outcome = outcome or self._execute(entry, journal)
            if outcome is not None:
                self._write_end(journal, outcome)
                self._ended(self.until_closed.call(self._journal.run, entry.run_id))

    def interrupt_if_abandoned(self, run_id: str, wait_s: float = 0.0) -> bool:
        """Mark the run as interrupted if it is active by the journal and no supervisor executes it; False if one does.

        Args: wait_s: seconds in which PostgreSQL may notice that the supervisor that executed it is gone.
        """
        with self._journal.database.advisory_lock(f"run/{run_id}", wait_s) as held:
            if not held:
                return False
            run = self._journal.run(run_id)
            if run.state not in TERMINAL:
                attempt = self._journal.claim(run_id)
                went_away = f"the supervisor that executed run {run_id} went away; {goes_on(self._config, run)}"
                error = UnavailableError(NEVER_BEGAN if attempt.attempt == 1 else went_away)
                attempt.end(RunState.INTERRUPTED, error=error.message, error_reason=error.reason)
            return True

    def _execute(self, entry: QueuedRun, journal: RunJournal) -> Outcome | None:
        """Execute the run and return how it ended; None if it was stopped just as its turn came."""
        try:
            with closing(self._open_clients()) as clients:
                entry.clients = clients
                snapshot = Retrier(retry_policy(self._config), entry.token).call(self._journal.snapshot, entry.run_id)
                if snapshot.run.is_terminal:
                    return None
                if snapshot.finish_requested:
                    entry.finishing.cancel(CancelledError(f"run {entry.run_id} was asked to finish"))
                executor = RunExecutor(snapshot, journal, clients, self._hub, self._config, entry.token, entry.finishing)
                return Outcome(message=executor.execute())
        except Exception as error:  # noqa: BLE001 - the user sees it as the end of the run
            return Outcome(self._as_modyn_error(entry, error))

    def _as_modyn_error(self, entry: QueuedRun, error: Exception) -> ModynError:
        """The error that the user sees as the end of the run: the cause of its cancellation, if there is one."""
        if entry.token.cause is not None:
            return entry.token.cause
        if isinstance(error, ConflictError) and entry.stopping is not None and self._is_stopping(entry.run_id):
            return entry.stopping
        if isinstance(error, ModynError):
            return error
        _LOG.error("run_crashed", exc_info=error)
        return ModynError(f"run {entry.run_id} failed: {type(error).__name__}: {error}; the supervisor's log has the details")

    def _is_stopping(self, run_id: RunId) -> bool:
        """Whether the journal says that the run is stopping: that write may have failed, and a conflict be of another kind."""
        return self.until_closed.call(self._journal.run, run_id).state is RunState.STOPPING

    def _write_end(self, journal: RunJournal, outcome: Outcome) -> None:
        """Write how a run ended, however long PostgreSQL stays away."""
        state = outcome.state
        RUNS_ENDED.labels(str(state)).inc()
        _LOG.info("terminal", state=str(state), message=outcome.message, **outcome.detail)
        try:
            self.until_closed.call(journal.end, state, message=outcome.message, **outcome.detail)
        except ModynError:
            raise
        except Exception as error:  # noqa: BLE001 - nothing executes the run any more, so the journal must not say that it is active
            _LOG.exception("end_not_written")
            unwritten = f"why could not be written down ({type(error).__name__}), the supervisor's log has it"
            plain = f"run {journal.run_id} is {state}; {unwritten}"
            self.until_closed.call(journal.end, state, error=plain, error_reason=ModynError.reason)


def elsewhere(run_id: str) -> ConflictError:
    """Build the error for a run that another supervisor executes."""
    return ConflictError(f"run {run_id} is executed by another supervisor on the same database; ask that one")
