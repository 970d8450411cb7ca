"""The queue of runs: accepts runs and executes a bounded number at once, each in a separate thread."""

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
from modyn.supervisor.evaluation.on_request import EvaluationOrder, RequestedEvaluations
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.records import NewRun, RequestedEvaluation, Run, RunOptions
from modyn.supervisor.journal.states import RESUMABLE, RunState
from modyn.supervisor.pipeline_checks.validation import (
    check_pipeline,
    check_references,
    checked_pipeline,
    checked_references,
    measure_stream,
    unreached_handlers,
)
from modyn.supervisor.queue.reconciler import Reconciler
from modyn.supervisor.queue.removal import RunRemoval
from modyn.supervisor.run.attempt import QueuedRun, RunAttempts, elsewhere
from modyn.supervisor.services.run_clients import RunClients, how_it_continues, stopped_with_supervisor

SHUTDOWN_S = 5.0
"""Seconds in which executing runs must become terminal when the supervisor stops."""

RUNS_EXECUTING = Gauge("modyn_supervisor_runs_executing", "Runs that are executed now")

_LOG = get_logger("supervisor")


class RunQueue:
    """The supervisor's operations that change runs. Each method may be called from any thread. Reads are in `journal`.

    `clients` and `removal` are for calls that are not part of an executing run, until the queue is closed.
    """

    def __init__(self, journal: Journal, hub: EventHub, open_clients: Callable[[], RunClients], config: SupervisorConfig) -> None:
        """Args: open_clients: opens clients of the services. The constructor calls this function once; the thread of each run and of each requested
        evaluation calls the function once and closes the clients.
        """
        self.journal = journal
        self._hub = hub
        self._open_clients = open_clients
        self._config = config
        self.clients = open_clients()
        self.removal = RunRemoval(journal, self.clients)
        self._attempts = RunAttempts(journal, hub, open_clients, config, self._release)
        self.reconciler = Reconciler(
            journal,
            self._attempts,
            config,
            held=self._queued,
            accepted=self._accepted_runs,
            enqueue=self._enqueue,
            resume=self._resume_interrupted,
        )
        self._requested = RequestedEvaluations(journal, hub, open_clients, config)
        owners = (self.clients.selector, self.clients.model_storage, self.clients.evaluator)
        self._section_checks = [*(client.validate for client in owners), self._check_training]
        # Guards the three fields below, and the only change of `QueuedRun.thread`, from None to a thread. `stop` may read `QueuedRun.thread` without
        # the lock, because `_stop_waiting` also cancels the token of a thread that starts during the read. `close` sets `_closing` under the lock,
        # and then no thread starts any more. The lock is never held during a call to PostgreSQL or another service.
        self._lock = threading.RLock()
        self._entries: list[QueuedRun] = []
        self._accepted: set[RunId] = set()
        """Ids of all runs that this supervisor was asked to queue. If the answer to a write is lost, such a run is submitted in the journal but not
        queued; the reconciler then queues the run.
        """
        self._closing = False

    def recover(self) -> None:
        """Take over the runs and the requested evaluations of an earlier, ended supervisor."""
        self.reconciler.take_over()
        self._requested.recover()

    def validate(self, yaml: str, file_name: str) -> list[Problem]:
        """Check the text of a pipeline file with the services that will use the file, and with the existing datasets. Return problems and warnings.

        Args: file_name: name of the file in messages.
        """
        references = partial(check_references, storage=self.clients.storage, model_storage=self.clients.model_storage)
        return check_pipeline(yaml, file_name, self._section_checks, references)

    def _check_training(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        """Check the sections of the trainer server, which also computes the scores that the selection needs."""
        return self.clients.trainer_server.validate(pipeline, self.clients.selector.asked_scores(pipeline))

    def submit(self, yaml: str, file_name: str, options: RunOptions, submission_id: str | None = None) -> Run:
        """Make all checks of a submission, and queue the run. The warnings of the checks are the run's message until the run ends.

        Args: yaml: the text of the pipeline file. file_name: name of the file in messages. submission_id: a second call with the same id returns the
            run of the first call, and queues the run if the first call did not. With None, each call makes a run.
        Raises: ConfigError, NotFoundError, InvalidArgumentError: errors of the checks, of `measure_stream` and of `options.check`.
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
        # The acceptance is the last step: if an earlier step fails, the user gets the error and submits again.
        self.journal.accept(run.run_id)
        if run.state is RunState.INTERRUPTED:  # The run was changed between the first call and this call.
            self._resume_interrupted(run.run_id)
        elif run.state is RunState.SUBMITTED and self._accept(run.run_id):
            self._enqueue(run.run_id)
        return run

    def stop(self, run_id: str) -> Run:
        """Ask a run to end soon. A terminal run is not changed.

        If the run is stopping already, this method ends the calls of the run: a second request means that a service does not respond.

        Raises: NotFoundError. ConflictError: another supervisor executes the run.
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
            run = self.journal.run(run_id)  # The run may have become terminal by itself.
        if run.state is RunState.INTERRUPTED:
            return self.journal.become(run_id, RunState.STOPPED)
        if run.is_terminal or entry is None:
            return run
        if run.state is RunState.STOPPING and entry.token.cause is not None and entry.clients is not None:
            entry.clients.close()
            return run
        entry.stopping = _stopped(run_id)  # See `QueuedRun.stopping` for this order.
        try:
            self.journal.become(run_id, RunState.STOPPING)
        except ConflictError as error:
            # The run is just starting, or has become terminal. The run's thread reads the token.
            _LOG.info("stopping_unannounced", run_id=run_id, reason=error.message)
        entry.token.cancel(entry.stopping)
        return self.journal.run(run_id)

    def resume(self, run_id: str) -> Run:
        """Queue a terminal run again, so that the run continues. An active run is not changed.

        Raises: NotFoundError. ConflictError: another supervisor executes the run, or the run has finished.
        """
        run = self.journal.run(run_id)
        if not run.is_terminal and self._entry(run_id) is None and not self._attempts.interrupt_if_abandoned(run_id):
            raise elsewhere(run_id)
        # `interrupt_if_abandoned` may have changed the state.
        run = self.journal.run(run_id)
        if not run.is_terminal:
            return run
        if run.state not in RESUMABLE:
            raise ConflictError(f"run {run_id} is {run.state}; there is nothing to resume. Submit the pipeline to run it again")
        self._accept(run.run_id)
        run = self.journal.submit_again(run_id)
        self._enqueue(run.run_id)
        return run

    def finish(self, run_id: str) -> Run:
        """End the stream of a run now. The remaining evaluations are made, and then the run is finished.

        A stopped, failed or interrupted run is resumed for these evaluations. A finished run is not changed.

        Raises: NotFoundError. ConflictError: the run is stopping, or another supervisor executes the run.
        """
        run = self.journal.run(run_id)
        if run.state is RunState.FINISHED:
            return run
        if run.state is RunState.STOPPING:
            raise ConflictError(f"run {run_id} is stopping; ask it to finish when it has stopped")
        self.journal.request_finish(run_id)
        entry, run = self._entry(run_id), self.journal.run(run_id)
        if run.state is not RunState.FINISHED and (entry is None or run.is_terminal):
            # The run is queued again, because the thread of the run may be ending and may read no more requests.
            return self.resume(run_id)
        if entry is not None:
            entry.finishing.cancel(CancelledError(f"run {run_id} was asked to finish"))
        return run

    def evaluate(self, run_id: str, order: EvaluationOrder) -> RequestedEvaluation:
        """Queue evaluations of the models that a run has made. The run may be in any state, and the state does not change.

        Raises: InvalidArgumentError: the request selects no evaluation, or names an unknown handler. ConfigError: the requested section is invalid.
        """
        return self._requested.submit(run_id, order, self.clients.evaluator.validate)

    def cancel_evaluation(self, run_id: str, number: int) -> RequestedEvaluation:
        """Cancel one request for evaluations. See `RequestedEvaluations.cancel`."""
        return self._requested.cancel(run_id, number)

    def remove(self, run_id: str, *, even_promoted: bool = False) -> None:
        """Remove a terminal run from all services, and cancel its requested evaluations. See `RunRemoval.remove_run`."""
        self.removal.remove_run(run_id, even_promoted=even_promoted, end_evaluations=self._requested.cancel_all)

    def remove_model(self, model_id: int, *, even_promoted: bool = False) -> None:
        """Remove one model version. See `RunRemoval.remove_model`."""
        self.removal.remove_model(model_id, even_promoted=even_promoted)

    def close(self, within_s: float = SHUTDOWN_S) -> None:
        """Interrupt all runs, which can be resumed later, and close all watchers.

        Args: within_s: time for executing runs to end by themselves.
        """
        cause = UnavailableError(stopped_with_supervisor(self._config))
        self.reconciler.close()  # The lock is not held here, because the reconciler's thread takes the lock to queue a run.
        with self._lock:
            self._closing = True  # No run starts from here on.
            executing = [entry for entry in self._entries if entry.thread is not None]
            waiting = [entry for entry in self._entries if entry.thread is None]
            self._entries = list(executing)
        for entry in waiting:
            self._mark_interrupted(entry.run_id, cause)
        for entry in executing:
            entry.token.cancel(cause)
            if entry.clients is not None:
                entry.clients.close()  # This ends the calls in which the run waits. The cancelled token prevents their repetition.
        give_up = time.monotonic() + within_s
        for entry in executing:
            if entry.thread is not None:
                # Woken by the end of the thread, whose calls were cancelled above. The wait ends at `give_up` at the latest.
                entry.thread.join(max(give_up - time.monotonic(), 0.0))
                if entry.has_begun and entry.thread.is_alive():
                    self._take_from_thread(entry.run_id, cause)
        # Until this cancellation, the threads write the ends of their runs and retry these writes. The clients are closed last: users' calls need
        # them.
        self._attempts.until_closed.token.cancel(cause)
        self._requested.close(cause)
        self._hub.close()
        self.clients.close()

    def _accept(self, run_id: RunId) -> bool:
        """Record that this supervisor was asked to queue the run; return whether this is the first request."""
        with self._lock:
            is_new = run_id not in self._accepted
            self._accepted.add(run_id)
        return is_new

    def _accepted_runs(self) -> frozenset[RunId]:
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
        """Return the newest entry of a run. A resumed run may have two entries, because it may wait while the previous thread is ending."""
        with self._lock:
            return next((entry for entry in reversed(self._entries) if entry.run_id == run_id), None)

    def _start_next(self) -> None:
        """Start waiting runs, up to the largest number of runs that execute at the same time."""
        stranded: list[tuple[RunId, UnavailableError]] = []
        with self._lock:
            if self._closing:
                return
            for entry in [entry for entry in self._entries if entry.thread is None]:
                executing = {entry.run_id for entry in self._entries if entry.thread is not None}
                if len(executing) >= self._config.max_runs:
                    break
                if entry.run_id in executing:
                    continue  # The previous thread of the run is ending, and calls this method at the end.
                thread = threading.Thread(target=self._drive, args=(entry,), name=entry.run_id, daemon=True)
                try:
                    thread.start()  # The new thread cannot remove the entry yet, because it needs the lock for that.
                    entry.thread = thread
                except RuntimeError as error:
                    if executing:
                        _LOG.warning("no_thread_for_run", run_id=entry.run_id, error=str(error))
                        break  # The run stays queued until the next run ends and calls this method.
                    text = f"the supervisor cannot start a thread for run {entry.run_id} ({error})"
                    stranded.append(
                        (entry.run_id, UnavailableError(f"{text}; end other processes: {how_it_continues(self._config)}"))
                    )
                    self._entries.remove(entry)
        for run_id, cause in stranded:
            self._mark_interrupted(run_id, cause)

    def _stop_waiting(self, entry: QueuedRun) -> Run | None:
        """Stop a run before the run begins; return None if the run has just started. The run stays queued if PostgreSQL cannot be reached."""
        try:
            run = self.journal.become(entry.run_id, RunState.STOPPED)
        except ConflictError:
            return None
        with self._lock:
            if entry.thread is None and entry in self._entries:
                self._entries.remove(entry)
        entry.token.cancel(_stopped(entry.run_id))  # Cancelling the token ends a thread that has just started.
        return run

    def _mark_interrupted(self, run_id: RunId, cause: UnavailableError) -> None:
        """Write the end of a queued run that will not start."""
        try:
            self.journal.become(run_id, RunState.INTERRUPTED, error=cause.message, error_reason=cause.reason)
        except ModynError as error:
            _LOG.warning("not_marked_interrupted", run_id=run_id, error=error.message)

    def _take_from_thread(self, run_id: RunId, cause: UnavailableError) -> None:
        """Write the end of a run whose thread has not ended in time. Later writes of the thread are refused."""
        try:
            self.journal.claim(run_id).end(RunState.INTERRUPTED, error=cause.message, error_reason=cause.reason)
        except ModynError as error:  # The run has just ended, or PostgreSQL is unavailable.
            _LOG.warning("not_marked_interrupted", run_id=run_id, error=error.message)

    def _drive(self, entry: QueuedRun) -> None:
        """Execute one run, in its own thread."""
        with bind(run_id=entry.run_id):
            try:
                with RUNS_EXECUTING.track_inprogress():
                    self._attempts.until_closed.call(self._attempts.drive, entry)
            except ModynError as error:
                # Another supervisor executes the run, or this supervisor is closing and the next supervisor reads the journal.
                _LOG.error("run_given_up", error=error.message, reason=error.reason)
            except Exception:  # noqa: BLE001 - an error would end the thread without a trace
                _LOG.exception("run_thread_crashed")
            finally:
                with self._lock:
                    self._entries.remove(entry)
                self._start_next()

    def _release(self, run: Run) -> None:
        with self._lock:
            self._accepted.discard(run.run_id)
        self.reconciler.resume_later(run)

    def _resume_interrupted(self, run_id: RunId) -> None:
        self._accept(run_id)
        try:
            self._enqueue(self.journal.submit_again(run_id, only=RunState.INTERRUPTED).run_id)
        except (ConflictError, NotFoundError) as error:  # Another call has changed the state of the run, or the run was removed.
            _LOG.info("not_resumed", run_id=run_id, reason=error.message)


def _stopped(run_id: str) -> CancelledError:
    return CancelledError(f"run {run_id} was stopped on request")
