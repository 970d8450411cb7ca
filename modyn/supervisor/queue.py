"""The queue of runs: accepts them, executes a bounded number at once, each in a separate thread, and writes how each one ended."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from prometheus_client import Gauge

from modyn.config.base import Problem
from modyn.config.system import SupervisorConfig
from modyn.config.yaml_source import with_lines
from modyn.errors import CancelledError, ConflictError, ModynError, NotFoundError, UnavailableError
from modyn.records import RunId
from modyn.rpc.logs import bind, get_logger
from modyn.supervisor.attempt import QueuedRun, RunAttempts, elsewhere
from modyn.supervisor.auto_resume import AutoResume, goes_on
from modyn.supervisor.events import EventHub
from modyn.supervisor.journal import Journal
from modyn.supervisor.orphaned_runs import OrphanDetector, stopped_with_supervisor
from modyn.supervisor.records import NewRun, RequestedEvaluation, Run, RunMode, RunOptions
from modyn.supervisor.removal import RunRemoval
from modyn.supervisor.requested_evaluations import EvaluationOrder, RequestedEvaluations
from modyn.supervisor.run_clients import RunClients
from modyn.supervisor.states import RESUMABLE, RunState
from modyn.supervisor.validation import (
    check_pipeline,
    check_references,
    checked_pipeline,
    checked_references,
    measure_stream,
    unreached_handlers,
)

SHUTDOWN_S = 5.0
"""The time that executing runs get to become terminal when the supervisor stops."""
OWNER_GONE_S = 2.0
"""PostgreSQL needs a moment to notice that the supervisor that executed a run has been killed."""

RUNS_EXECUTING = Gauge("modyn_supervisor_runs_executing", "Runs that are executed now")

_LOG = get_logger("supervisor")


class RunQueue:
    """The verbs of the supervisor that change runs. Safe to call from any thread. What is to be read is in `journal`.

    `clients` and `removal` serve the calls that concern no run that executes, until the queue is closed.
    """

    def __init__(self, journal: Journal, hub: EventHub, open_clients: Callable[[], RunClients], config: SupervisorConfig) -> None:
        """Args: open_clients: called once here, and once in the thread of each run and of each requested evaluation, which closes them."""
        self.journal = journal
        self._hub = hub
        self._open_clients = open_clients
        self._config = config
        self.clients = open_clients()
        self.removal = RunRemoval(journal, self.clients)
        self._auto_resume = AutoResume(self._resume_interrupted)
        self._attempts = RunAttempts(journal, hub, open_clients, config, self._ended)
        self._orphans = OrphanDetector(
            journal, self._attempts, self._resume_by_itself, self._queued, self._accepted_runs, self._enqueue
        )
        self._requested = RequestedEvaluations(journal, hub, open_clients, config)
        owners = (self.clients.selector, self.clients.model_storage, self.clients.evaluator)
        self._section_checks = [*(client.validate for client in owners), self._check_training]
        # Guards the three fields below, and each change of `QueuedRun.thread`: from None to the thread, once. `stop` reads that without the lock:
        # a thread that it sees stays, and for one that begins just then `_stop_waiting` also cancels the token. `close` sorts the entries
        # under the lock and begins none after. Never held during a call to PostgreSQL or another service.
        self._lock = threading.RLock()
        self._entries: list[QueuedRun] = []
        self._accepted: set[str] = set()
        """Runs that are, were or were about to be queued here: a write whose answer got lost leaves them submitted."""
        self._closing = False

    def recover(self) -> None:
        """Mark runs as interrupted that an earlier supervisor left behind; resume them if so configured."""
        give_up = time.monotonic() + OWNER_GONE_S  # for all of them: one supervisor left them behind
        for run in self.journal.runs():
            left = run.state is RunState.INTERRUPTED if run.is_terminal else self._interrupt_left_behind(run.run_id, give_up)
            if left and self._config.resume_on_start:
                self._resume_interrupted(run.run_id)
        self._requested.recover()

    def validate(self, yaml: str, file_name: str) -> list[Problem]:
        """Check the text of a pipeline file, with the services that act on it and the datasets that exist; return problems and warnings.

        Args: file_name: for messages.
        """
        references = partial(check_references, storage=self.clients.storage, model_storage=self.clients.model_storage)
        return check_pipeline(yaml, file_name, self._section_checks, references)

    def _check_training(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        """The mistakes in the sections of the trainer server, which also has to give the scores that the selection asks for."""
        return self.clients.trainer_server.validate(pipeline, self.clients.selector.asked_scores(pipeline))

    def submit(self, yaml: str, file_name: str, options: RunOptions, submission_id: str | None = None) -> Run:
        """Check everything that can be checked, and queue the run. What the checks warn of is the run's message until it ends.

        Args: yaml: the text of the pipeline file. file_name: its name in messages. submission_id: a second call with it returns the run of
            the first, and queues it if the first did not come that far. None: each call makes a run.
        Raises: ConfigError, NotFoundError, InvalidArgumentError: what the checks, `measure_stream` and `options.check` find.
        """
        options.check()
        pipeline, warnings = checked_pipeline(yaml, file_name, self._section_checks)
        warnings += checked_references(pipeline, self.clients.storage, self.clients.model_storage)
        extent = measure_stream(pipeline, options, self.clients.storage)
        seed = random.getrandbits(31) if pipeline.training.seed is None else pipeline.training.seed
        new = NewRun(
            options, pipeline.name, yaml, file_name, pipeline.as_dict(), seed, submission_id=submission_id, **asdict(extent)
        )
        run = self.journal.create(new)
        if messages := [*with_lines(warnings, pipeline.source), *unreached_handlers(run)]:
            run = self.journal.announce(run.run_id, "\n".join(messages))
        _LOG.info("submitted", run_id=run.run_id, mode=str(run.mode))
        self.journal.accept(run.run_id)  # Last: when a step before fails, the user gets its error and submits again.
        if run.state is RunState.INTERRUPTED:  # between the first call and this one
            self._resume_interrupted(run.run_id)
        elif run.state is RunState.SUBMITTED and self._accept(run.run_id):
            self._enqueue(run.run_id)
        return run

    def stop(self, run_id: str) -> Run:
        """Ask a run to end; it does so within moments. A terminal one is left as it is.

        A run that is stopping already waits for a service that does not end its work: its calls are broken off.

        Raises: NotFoundError. ConflictError: another supervisor executes it.
        """
        run = self.journal.run(run_id)
        entry = self._entry(run_id)
        if entry is not None and entry.thread is None:
            if (stopped := self._stop_waiting(entry)) is not None:
                return stopped
            run = self.journal.run(run_id)
        if not run.is_terminal and entry is None:
            if not self._attempts.interrupt_if_abandoned(run_id):
                raise elsewhere(run_id)
            run = self.journal.run(run_id)  # It may have become terminal by itself meanwhile.
        if run.state is RunState.INTERRUPTED:
            return self.journal.become(run_id, RunState.STOPPED)
        if run.is_terminal or entry is None:
            return run
        if run.state is RunState.STOPPING and entry.token.cause is not None and entry.clients is not None:
            entry.clients.close()
            return run
        entry.stopping = _stopped(run_id)
        try:
            self.journal.become(run_id, RunState.STOPPING)
        except ConflictError as error:
            # It is only just starting or has become terminal meanwhile; its thread sees the token.
            _LOG.info("stopping_unannounced", run_id=run_id, reason=error.message)
        entry.token.cancel(entry.stopping)
        return self.journal.run(run_id)

    def resume(self, run_id: str) -> Run:
        """Queue a terminal run once more, to go on. An active one is left alone.

        Raises: NotFoundError. ConflictError: another supervisor executes it, or it has finished.
        """
        run = self.journal.run(run_id)
        if not run.is_terminal and self._entry(run_id) is None and not self._attempts.interrupt_if_abandoned(run_id):
            raise elsewhere(run_id)
        run = self.journal.run(run_id)
        if not run.is_terminal:
            return run
        if run.state not in RESUMABLE:
            raise ConflictError(f"run {run_id} is {run.state}; there is nothing to resume. Submit the pipeline to run it again")
        self._accept(run_id)
        run = self.journal.submit_again(run_id)
        self._enqueue(run.run_id)
        return run

    def finish(self, run_id: str) -> Run:
        """End the stream of a run where it stands; what is left of its evaluations is made, and the run is finished.

        A run that was stopped, failed or was interrupted is resumed for that. A finished one is left as it is.

        Raises: NotFoundError. ConflictError: it is stopping, or another supervisor executes it.
        """
        run = self.journal.run(run_id)
        if run.state is RunState.FINISHED:
            return run
        if run.state is RunState.STOPPING:
            raise ConflictError(f"run {run_id} is stopping; ask it to finish when it has stopped")
        self.journal.request_finish(run_id)
        entry, run = self._entry(run_id), self.journal.run(run_id)
        if run.state is not RunState.FINISHED and (entry is None or run.is_terminal):
            return self.resume(run_id)  # Its thread may be just ending, and reads no request any more.
        if entry is not None:
            entry.finishing.cancel(CancelledError(f"run {run_id} was asked to finish"))
        return run

    def evaluate(self, run_id: str, order: EvaluationOrder) -> RequestedEvaluation:
        """Queue evaluations of the models that a run has made; its state does not matter and does not change.

        Raises: InvalidArgumentError: nothing to evaluate, or a handler that there is not. ConfigError: the section of the order is wrong.
        """
        return self._requested.submit(run_id, order, self.clients.evaluator.validate)

    def cancel_evaluation(self, run_id: str, number: int) -> RequestedEvaluation:
        """End requested evaluations, as `RequestedEvaluations.cancel` says."""
        return self._requested.cancel(run_id, number)

    def remove(self, run_id: str, *, even_promoted: bool = False) -> None:
        """Remove a terminal run from all services, as `RunRemoval.remove_run` says; its requested evaluations are cancelled."""
        self.removal.remove_run(run_id, even_promoted=even_promoted, end_evaluations=self._requested.cancel_all)

    def remove_model(self, model_id: int, *, even_promoted: bool = False) -> None:
        """Remove one model version, as `RunRemoval.remove_model` says."""
        self.removal.remove_model(model_id, even_promoted=even_promoted)

    def close(self, within_s: float = SHUTDOWN_S) -> None:
        """End all runs as interrupted, so that they can be resumed, and end all watching.

        Args: within_s: the time that executing runs get to end by themselves.
        """
        cause = UnavailableError(stopped_with_supervisor(self._config))
        with self._lock:
            self._closing = True  # From here on no run begins.
            self._auto_resume.close()
            executing = [entry for entry in self._entries if entry.thread is not None]
            waiting = [entry for entry in self._entries if entry.thread is None]
            self._entries = list(executing)
        for entry in waiting:
            self._mark_interrupted(entry.run_id, cause)
        for entry in executing:
            entry.token.cancel(cause)
            if entry.clients is not None:
                entry.clients.close()  # Ends the calls in which the run waits.
        give_up = time.monotonic() + within_s
        for entry in executing:
            if entry.thread is not None:
                # Woken by the end of the thread, whose calls were broken off above; at most until `give_up`.
                entry.thread.join(max(give_up - time.monotonic(), 0.0))
                if entry.begun and entry.thread.is_alive():
                    self._take_from_thread(entry.run_id, cause)
        # Only now: until here the threads write how their runs ended.
        self._attempts.until_closed.token.cancel(cause)
        self._requested.close(cause)
        self._hub.close()
        self.clients.close()

    def scan_for_orphans(self) -> None:
        """Search once for runs that should run and do not, as `OrphanDetector.scan` says."""
        self._orphans.scan()

    def _accept(self, run_id: str) -> bool:
        """Whether the run was not accepted before."""
        with self._lock:
            is_new = run_id not in self._accepted
            self._accepted.add(run_id)
        return is_new

    def _accepted_runs(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._accepted)

    def _queued(self) -> frozenset[RunId]:
        with self._lock:
            return frozenset(entry.run_id for entry in self._entries)

    def _enqueue(self, run_id: RunId) -> None:
        with self._lock:
            self._entries.append(QueuedRun(run_id))
        self._start_next()

    def _entry(self, run_id: str) -> QueuedRun | None:
        """The newest entry of a run: one that was resumed may wait while its last thread is just ending."""
        with self._lock:
            return next((entry for entry in reversed(self._entries) if entry.run_id == run_id), None)

    def _start_next(self) -> None:
        """Start as many waiting runs as may execute at once."""
        stranded: list[tuple[RunId, UnavailableError]] = []
        with self._lock:
            if self._closing:
                return
            for entry in [entry for entry in self._entries if entry.thread is None]:
                executing = {entry.run_id for entry in self._entries if entry.thread is not None}
                if len(executing) >= self._config.max_runs:
                    break
                if entry.run_id in executing:
                    continue  # Its last thread is just ending and calls this method then.
                thread = threading.Thread(target=self._drive, args=(entry,), name=entry.run_id, daemon=True)
                try:
                    thread.start()  # It removes its entry only once it gets the lock.
                    entry.thread = thread
                except RuntimeError as error:
                    if executing:
                        _LOG.warning("no_thread_for_run", run_id=entry.run_id, error=str(error))
                        break  # It stays queued; the next run that ends calls this method.
                    text = f"the supervisor cannot start a thread for run {entry.run_id} ({error})"
                    stranded.append((entry.run_id, UnavailableError(f"{text}; end other processes: {goes_on(self._config)}")))
                    self._entries.remove(entry)
        for run_id, cause in stranded:
            self._mark_interrupted(run_id, cause)

    def _stop_waiting(self, entry: QueuedRun) -> Run | None:
        """Stop a run before it begins; None if its turn has just come. It stays queued if PostgreSQL cannot be reached."""
        try:
            run = self.journal.become(entry.run_id, RunState.STOPPED)
        except ConflictError:
            return None
        with self._lock:
            if entry.thread is None and entry in self._entries:
                self._entries.remove(entry)
        entry.token.cancel(_stopped(entry.run_id))  # For a thread that took it from the queue meanwhile.
        return run

    def _mark_interrupted(self, run_id: RunId, cause: UnavailableError) -> None:
        """Write the end of a queued run that will not begin."""
        try:
            self.journal.become(run_id, RunState.INTERRUPTED, error=cause.message, error_reason=cause.reason)
        except ModynError as error:
            _LOG.warning("not_marked_interrupted", run_id=run_id, error=error.message)

    def _take_from_thread(self, run_id: RunId, cause: UnavailableError) -> None:
        """Write the end of a run whose thread has not ended in time; what the thread still writes is refused."""
        try:
            self.journal.claim(run_id).end(RunState.INTERRUPTED, error=cause.message, error_reason=cause.reason)
        except ModynError as error:  # it has just ended, or PostgreSQL is away
            _LOG.warning("not_marked_interrupted", run_id=run_id, error=error.message)

    def _drive(self, entry: QueuedRun) -> None:
        """Execute one run, in its own thread."""
        with bind(run_id=entry.run_id):
            try:
                with RUNS_EXECUTING.track_inprogress():
                    self._attempts.until_closed.call(self._attempts.drive, entry)
            except ModynError as error:
                # Another supervisor executes the run, or this one is closing: the next start finds what the journal says.
                _LOG.error("run_given_up", error=error.message, reason=error.reason)
            except Exception:  # noqa: BLE001 - it would end a thread unseen
                _LOG.exception("run_thread_crashed")
            finally:
                with self._lock:
                    self._entries.remove(entry)
                self._start_next()

    def _ended(self, run: Run) -> None:
        with self._lock:
            self._accepted.discard(run.run_id)
        self._resume_by_itself(run)

    def _resume_by_itself(self, run: Run) -> None:
        """Resume a run after a pause if it is interrupted and runs of its kind go on by themselves."""
        if run.state is RunState.INTERRUPTED and (run.mode is RunMode.PRODUCTION or self._config.resume_on_start):
            self._auto_resume.interrupted(run.run_id)

    def _resume_interrupted(self, run_id: str) -> None:
        self._accept(run_id)
        try:
            self._enqueue(self.journal.submit_again(run_id, only=RunState.INTERRUPTED).run_id)
        except (ConflictError, NotFoundError) as error:  # another call has changed its state, or it was removed
            _LOG.info("not_resumed", run_id=run_id, reason=error.message)

    def _interrupt_left_behind(self, run_id: str, give_up: float) -> bool:
        """Call `interrupt_if_abandoned` for a run whose supervisor may just have been killed, until the monotonic time `give_up`."""
        interrupted = self._attempts.interrupt_if_abandoned(run_id, give_up - time.monotonic())
        if not interrupted:
            _LOG.info("executed_elsewhere", run_id=run_id)
        return interrupted


def _stopped(run_id: str) -> CancelledError:
    return CancelledError(f"run {run_id} was stopped on request")
