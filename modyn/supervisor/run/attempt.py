"""Execute one attempt of a run in a separate thread: from the lock that excludes other supervisors to the final state."""

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
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.journal import Journal, RunJournal
from modyn.supervisor.journal.records import Run
from modyn.supervisor.journal.states import TERMINAL, RunState
from modyn.supervisor.run.executor import RunExecutor
from modyn.supervisor.services.run_clients import RunClients, how_it_continues, retry_policy

RUNS_ENDED = Counter("modyn_supervisor_runs_ended", "Runs that became terminal, by state", ["state"])

NEVER_BEGAN: Final = (
    "the supervisor went away before the run was accepted; `modyn resume` starts it, `modyn rm` removes it: if its submission seemed to fail, "
    "and you have submitted it again, it is there twice"
)
"""Error of a run whose submission was not completed. This run is not resumed automatically, because the user may have submitted the pipeline again.
"""

_LOG = get_logger("supervisor")


@dataclass(eq=False)
class QueuedRun:
    """A run that waits or executes."""

    run_id: RunId
    token: CancellationToken = field(default_factory=CancellationToken)
    finishing: CancellationToken = field(default_factory=CancellationToken)
    """Cancelled when the run is asked to finish."""
    stopping: CancelledError | None = None
    """The cause of a stop. A stop first sets the cause, then writes to the journal that the run is stopping, and then cancels `token`. After this
    write, the journal refuses the next write of the run with a ConflictError. The cause counts only together with this ConflictError, because the
    write to the journal may have failed.
    """
    thread: threading.Thread | None = None
    """The thread of the run; None while the run waits."""
    clients: RunClients | None = None
    has_begun: bool = False


@dataclass(frozen=True)
class Outcome:
    """The end of a run, with an error or with a message for the user."""

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
        """The text of the error in the journal; empty for a run that was stopped on request."""
        if self.error is None or self.state is RunState.STOPPED:
            return {}
        return {"error": self.error.message, "error_reason": self.error.reason}


class RunAttempts:
    """Executes runs and writes the end of each run. The threads of several runs may use one object at the same time.

    Args: open_clients: called in the thread of each run, which closes the clients. ended: called with each run that has become terminal, while
    its lock is held.
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
        """Retries calls of PostgreSQL until the supervisor cancels the token, because the end of a run must not be lost in an outage."""

    def drive(self, entry: QueuedRun) -> None:
        """Execute the run and write the end of the run, under the lock that excludes other supervisors on this database.

        The caller calls this method again if PostgreSQL could not be reached.
        """
        if entry.has_begun:
            return  # The end of the run is written, and only the release of the lock has failed.
        journal, outcome = RunJournal(self._journal, entry.run_id, attempt=None), None
        with ExitStack() as lock:
            try:
                if not lock.enter_context(self._journal.database.advisory_lock(f"run/{entry.run_id}")):
                    raise elsewhere(entry.run_id)
                journal = self._journal.claim(entry.run_id)
            except ModynError:
                raise
            except Exception as error:  # noqa: BLE001 - the user sees it as the end of the run
                outcome = Outcome(self._as_modyn_error(entry, error))
            # From here on this thread writes the end of the run, unless `RunQueue.close` takes over the run.
            entry.has_begun = True
            outcome = outcome or self._execute(entry, journal)
            if outcome is not None:
                self._write_end(journal, outcome)
                self._ended(self.until_closed.call(self._journal.run, entry.run_id))

    def interrupt_if_abandoned(self, run_id: str, wait_s: float = 0.0) -> bool:
        """Mark a run as interrupted if it is active in the journal and no supervisor executes it. Return False if a supervisor executes it.

        Args: wait_s: seconds to wait until PostgreSQL notices the end of the supervisor that executed the run.
        """
        with self._journal.database.advisory_lock(f"run/{run_id}", wait_s) as held:
            if not held:
                return False
            run = self._journal.run(run_id)
            if run.state not in TERMINAL:
                attempt = self._journal.claim(run_id)
                went_away = f"the supervisor that executed run {run_id} went away; {how_it_continues(self._config, run)}"
                # The acceptance of a run counts as attempt 1. The claim above is therefore attempt 1 only if the run was never accepted.
                error = UnavailableError(NEVER_BEGAN if attempt.attempt == 1 else went_away)
                attempt.end(RunState.INTERRUPTED, error=error.message, error_reason=error.reason)
            return True

    def _execute(self, entry: QueuedRun, journal: RunJournal) -> Outcome | None:
        """Execute the run and return the end of the run; None if the run was stopped just before the start."""
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
        """Return the error that the user sees as the end of the run: the cause of a cancellation, or else the error itself."""
        if entry.token.cause is not None:
            return entry.token.cause
        # The journal refuses writes of a stopping run. The user must see the cause of the stop instead of this refusal.
        if isinstance(error, ConflictError) and entry.stopping is not None and self._is_stopping(entry.run_id):
            return entry.stopping
        if isinstance(error, ModynError):
            return error
        _LOG.error("run_crashed", exc_info=error)
        return ModynError(f"run {entry.run_id} failed: {type(error).__name__}: {error}; the supervisor's log has the details")

    def _is_stopping(self, run_id: RunId) -> bool:
        """Return whether the run is stopping according to the journal. If the write of this state has failed, a conflict has another cause."""
        return self.until_closed.call(self._journal.run, run_id).state is RunState.STOPPING

    def _write_end(self, journal: RunJournal, outcome: Outcome) -> None:
        """Write the end of a run as soon as PostgreSQL can be reached."""
        state = outcome.state
        RUNS_ENDED.labels(str(state)).inc()
        _LOG.info("terminal", state=str(state), message=outcome.message, **outcome.detail)
        try:
            self.until_closed.call(journal.end, state, message=outcome.message, **outcome.detail)
        except ModynError:
            raise
        except Exception as error:  # noqa: BLE001 - no thread executes the run any more, and the journal must say so
            _LOG.exception("end_not_written")
            plain = f"run {journal.run_id} is {state}; the reason could not be written ({type(error).__name__}), the supervisor's log has it"
            self.until_closed.call(journal.end, state, error=plain, error_reason=ModynError.reason)


def elsewhere(run_id: str) -> ConflictError:
    """Build the error for a run that another supervisor executes."""
    return ConflictError(f"run {run_id} is executed by another supervisor on the same database; ask that one")
