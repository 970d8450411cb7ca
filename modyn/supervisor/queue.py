"""All runs: accepts them, drives a bounded number at once, each in a thread of its own, and brings each to rest."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from prometheus_client import Counter, Gauge

from modyn.config.base import Problem
from modyn.config.system import SupervisorConfig
from modyn.errors import CancelledError, ConflictError, InvalidArgumentError, ModynError, UnavailableError
from modyn.records import RunId
from modyn.registry import nearest
from modyn.rpc.logs import bind, get_logger
from modyn.rpc.retry import CancellationToken, Retrier, RetryPolicy
from modyn.supervisor.client import EvaluationResult, Run, TriggerRecord
from modyn.supervisor.clients import OpenClients, RunClients
from modyn.supervisor.evaluation.handlers import load_handlers
from modyn.supervisor.events import EventHub
from modyn.supervisor.executor import ADVICE, RunExecutor
from modyn.supervisor.journal import Journal, NewRun
from modyn.supervisor.run_journal import RunJournal
from modyn.supervisor.states import RESUMABLE, TERMINAL, RunState
from modyn.supervisor.validation import RunOptions, check_pipeline, checked_pipeline, count_stream

SHUTDOWN_S = 5.0
"""Threads get so long to bring their runs to rest when the supervisor stops."""
OWNER_GONE_S = 2.0
"""PostgreSQL needs a moment to notice that the supervisor who drove a run has been killed."""

POSTGRES_PAUSE_S = 2.0

RUNS_DRIVEN = Gauge("modyn_supervisor_runs_driven", "Runs that are driven now")
RUNS_ENDED = Counter("modyn_supervisor_runs_ended", "Runs that came to rest, by state", ["state"])

_LOG = get_logger("supervisor")


@dataclass
class _Driven:
    """A run in line or in a thread."""

    run_id: RunId
    signals: CancellationToken = field(default_factory=CancellationToken)
    thread: threading.Thread | None = None
    clients: RunClients | None = None


class RunQueue:
    """The verbs of the supervisor. Safe to call from any thread."""

    def __init__(self, journal: Journal, hub: EventHub, open_clients: OpenClients, config: SupervisorConfig) -> None:
        self._journal = journal
        self._hub = hub
        self._open_clients = open_clients
        self._config = config
        self._clients = open_clients()
        self._lock = threading.RLock()
        self._line: deque[_Driven] = deque()
        self._driven: dict[str, _Driven] = {}
        self._closing = False
        self._closed = CancellationToken()

    def recover(self) -> None:
        """Marks runs as interrupted that an earlier supervisor left behind; resumes them if so configured."""
        for run in self._journal.runs():
            if run.is_terminal:
                if run.state is RunState.INTERRUPTED and self._config.resume_on_start:
                    self.resume(run.run_id)
                continue
            give_up = time.monotonic() + OWNER_GONE_S
            while not self._interrupt_if_abandoned(run.run_id):
                if time.monotonic() > give_up:
                    _LOG.info("driven_elsewhere", run_id=run.run_id)
                    break
                time.sleep(0.05)
            else:
                if self._config.resume_on_start:
                    self.resume(run.run_id)

    def validate(self, yaml: str, file_name: str) -> list[Problem]:
        return check_pipeline(yaml, file_name, self._clients)

    def submit(self, yaml: str, file_name: str, options: RunOptions) -> Run:
        """Checks everything that can be checked, and puts the run into line."""
        options.check()
        pipeline = checked_pipeline(yaml, file_name, self._clients)
        total_samples = count_stream(pipeline, options, self._clients)
        run = self._journal.create(
            NewRun(
                pipeline_name=pipeline.name,
                mode=options.mode,
                yaml=yaml,
                file_name=file_name,
                pipeline=pipeline.as_dict(),
                selection_seed=random.getrandbits(31) if pipeline.seed is None else pipeline.seed,
                from_timestamp=options.from_timestamp,
                to_timestamp=options.to_timestamp,
                max_triggers=options.max_triggers,
                total_samples=total_samples,
            )
        )
        _LOG.info("submitted", run_id=run.run_id, mode=str(run.mode))
        self._enqueue(run.run_id)
        return run

    def runs(self) -> list[Run]:
        return self._journal.runs()

    def run(self, run_id: str) -> Run:
        return self._journal.run(run_id)

    def triggers(self, run_id: str) -> Sequence[TriggerRecord]:
        return self._journal.triggers(run_id)

    def results(self, run_id: str) -> Iterator[EvaluationResult]:
        return iter(self._clients.evaluator.results(self._journal.run(run_id).run_id))

    def stop(self, run_id: str) -> Run:
        """Asks a run to end; it does so within moments. One that is at rest is left there."""
        run = self._journal.run(run_id)
        with self._lock:
            driven = self._driven.get(run_id)
            waiting = next((waiting for waiting in self._line if waiting.run_id == run_id), None)
        if waiting is not None:
            if (stopped := self._stop_waiting(waiting)) is not None:
                return stopped
            run, driven = self._journal.run(run_id), waiting
        if run.state is RunState.INTERRUPTED:
            return self._journal.become(run_id, RunState.STOPPED)
        if run.state in TERMINAL:
            return run
        if driven is None:
            if not self._interrupt_if_abandoned(run_id):
                raise self._elsewhere(run_id)
            run = self._journal.run(run_id)  # It may have come to rest by itself meanwhile.
            return self._journal.become(run_id, RunState.STOPPED) if run.state is RunState.INTERRUPTED else run
        try:
            self._journal.become(run_id, RunState.STOPPING)
        except ConflictError as error:
            # It is only just starting or has come to rest meanwhile; its thread knows.
            _LOG.info("stopping_unannounced", run_id=run_id, reason=error.message)
        driven.signals.cancel(_stopped(run_id))
        return self._journal.run(run_id)

    def _stop_waiting(self, waiting: _Driven) -> Run | None:
        """The run, stopped before it began; None if its turn has just come. In line as before if PostgreSQL cannot be reached."""
        try:
            run = self._journal.become(waiting.run_id, RunState.STOPPED)
        except ConflictError:
            return None
        with self._lock:
            if waiting in self._line:
                self._line.remove(waiting)
        waiting.signals.cancel(_stopped(waiting.run_id))  # For a thread that took it from the line meanwhile.
        return run

    def resume(self, run_id: str) -> Run:
        """Puts a run back into line. One that is active is left alone."""
        run = self._journal.run(run_id)
        if run.state not in TERMINAL and not self._is_ours(run_id) and not self._interrupt_if_abandoned(run_id):
            raise self._elsewhere(run_id)
        run = self._journal.run(run_id)
        if run.state not in TERMINAL:
            return run
        if run.state not in RESUMABLE:
            raise ConflictError(f"run {run_id} is {run.state}; there is nothing to resume. Submit the pipeline to run it again")
        run = self._journal.submit_again(run_id)
        self._enqueue(run.run_id)
        return run

    def evaluate(self, run_id: str, handlers: Sequence[str]) -> Run:
        """Makes manual evaluations of a finished run. InvalidArgumentError for handlers that its pipeline does not have."""
        run = self._journal.run(run_id)
        evaluation = run.pipeline.get("evaluation")
        known = load_handlers(evaluation) if evaluation else ()
        names = [handler.name for handler in known]
        for name in handlers:
            if name not in names:
                raise InvalidArgumentError(
                    f"run {run_id} has no evaluation handler '{name}'{nearest(name, names) or ';'} it has: {', '.join(names) or 'none'}"
                )
        if not handlers and not any(handler.execution_time == "manual" for handler in known):
            raise InvalidArgumentError(
                f"run {run_id} has no handler with `execution_time: manual`; name those to evaluate: {', '.join(names) or 'none'}"
            )
        run = self._journal.submit_again(run_id, manual_handlers=list(handlers))
        self._enqueue(run.run_id)
        return run

    def close(self) -> None:
        """Brings all runs to rest as interrupted, so that they can be resumed, and ends all watching."""
        cause = UnavailableError("the supervisor was stopped; start it again (`modyn up`), then resume the run")
        with self._lock:
            self._closing = True
            waiting, driven = list(self._line), list(self._driven.values())
            self._line.clear()
        for in_line in waiting:
            self._mark_interrupted(in_line.run_id, cause)
        for one in driven:
            one.signals.cancel(cause)
            if one.clients is not None:
                one.clients.close()
        give_up = time.monotonic() + SHUTDOWN_S
        for one in driven:
            if one.thread is not None:
                one.thread.join(max(give_up - time.monotonic(), 0.0))
        self._closed.cancel(cause)
        self._hub.close()
        self._clients.close()

    def _enqueue(self, run_id: RunId) -> None:
        with self._lock:
            self._line.append(_Driven(run_id))
        self._start_next()

    def _start_next(self) -> None:
        stranded: list[tuple[RunId, UnavailableError]] = []
        with self._lock:
            if self._closing:
                return
            for driven in list(self._line):
                if len(self._driven) >= self._config.max_runs:
                    break
                if driven.run_id in self._driven:
                    continue  # Its last thread is just ending and calls this method then.
                driven.thread = threading.Thread(target=self._drive, args=(driven,), name=driven.run_id, daemon=True)
                try:
                    driven.thread.start()  # It looks for itself in `_driven` only once it gets the lock.
                except RuntimeError as error:
                    if self._driven:
                        _LOG.warning("no_thread_for_run", run_id=driven.run_id, error=str(error))
                        break  # It stays in line; the next run that ends calls this method.
                    text = f"the supervisor cannot start a thread for run {driven.run_id} ({error})"
                    stranded.append((driven.run_id, UnavailableError(f"{text}; end other processes, then resume the run")))
                else:
                    self._driven[driven.run_id] = driven
                self._line.remove(driven)
        for run_id, cause in stranded:
            self._mark_interrupted(run_id, cause)

    def _mark_interrupted(self, run_id: RunId, cause: UnavailableError) -> None:
        """For a run in line that will not begin."""
        try:
            self._journal.become(run_id, RunState.INTERRUPTED, error=cause.message, error_reason=cause.reason)
        except ModynError as error:
            _LOG.warning("not_marked_interrupted", run_id=run_id, error=error.message)

    def _drive(self, driven: _Driven) -> None:
        with bind(run_id=driven.run_id):
            try:
                with RUNS_DRIVEN.track_inprogress():
                    self._drive_locked(driven)
            except ModynError as error:
                # Somebody else took the run over, or we are closing: what the journal says is found at the next start.
                _LOG.error("run_given_up", error=error.message, reason=error.reason)
            except Exception:  # noqa: BLE001 - it would end a thread unseen
                _LOG.exception("run_thread_crashed")
            finally:
                with self._lock:
                    del self._driven[driven.run_id]
                self._start_next()

    def _drive_locked(self, driven: _Driven) -> None:
        """Drives the run while no other supervisor on this database can, once PostgreSQL can be reached."""
        begun = False
        while not begun:
            try:
                with self._journal.database.advisory_lock(f"run/{driven.run_id}") as held:
                    if not held:
                        raise self._elsewhere(driven.run_id)
                    attempt = self._journal.claim(driven.run_id)
                    begun = True
                    self._bring_to_rest(driven, RunJournal(self._journal, driven.run_id, attempt))
            except UnavailableError as error:
                _LOG.warning("postgres_unavailable", error=error.message)
                self._closed.wait(POSTGRES_PAUSE_S)
            except ModynError:
                raise
            except Exception as raised:
                if begun:
                    raise
                self._end_in_line(driven, self._crashed(driven, raised))
                return

    def _end_in_line(self, driven: _Driven, error: ModynError) -> None:
        """Brings a run to rest that could not even be claimed, unless somebody else has moved it on."""
        state = _end_of(error)
        RUNS_ENDED.labels(str(state)).inc()

        def write_end() -> None:
            with self._journal.write(driven.run_id) as write:
                if write.state is RunState.SUBMITTED:
                    write.become(state, **_told(state, error))

        Retrier(RetryPolicy(float("inf"), longest_pause_s=POSTGRES_PAUSE_S), self._closed).call(write_end)

    def _bring_to_rest(self, driven: _Driven, journal: RunJournal) -> None:
        """Drives the run and writes down how it ended, however long PostgreSQL stays away."""
        run_id, signals = driven.run_id, driven.signals
        error: ModynError | None = None
        message = ""
        try:
            with closing(self._open_clients()) as clients:
                driven.clients = clients
                snapshot = Retrier(RetryPolicy(self._config.patience_s, advice=ADVICE), signals).call(
                    lambda: self._journal.snapshot(run_id)
                )
                if snapshot.run.is_terminal:
                    return  # It was stopped just as its turn came.
                message = RunExecutor(snapshot, journal, clients, self._hub, self._config, signals).drive()
        except ModynError as raised:
            error = signals.cause or raised
        except Exception as raised:  # noqa: BLE001 - the user sees it as the end of the run
            error = self._crashed(driven, raised)
        state = _end_of(error)
        RUNS_ENDED.labels(str(state)).inc()
        _LOG.info("at_rest", state=str(state), error=error.message if error else "", message=message)
        patience = Retrier(RetryPolicy(float("inf"), longest_pause_s=POSTGRES_PAUSE_S), self._closed)
        try:
            patience.call(lambda: journal.end(state, message=message, **_told(state, error)))
        except ModynError:
            raise
        except Exception as raised:  # noqa: BLE001 - nobody drives the run any more, so the journal must not say that somebody does
            _LOG.exception("end_not_written")
            plain = (
                f"run {run_id} is {state}; why could not be written down ({type(raised).__name__}), the supervisor's log has it"
            )
            patience.call(lambda: journal.end(state, error=plain, error_reason=ModynError.reason))

    @staticmethod
    def _crashed(driven: _Driven, raised: Exception) -> ModynError:
        """What the user sees of an error that is none of ours."""
        _LOG.error("run_crashed", exc_info=raised)
        text = f"run {driven.run_id} failed: {type(raised).__name__}: {raised}; the supervisor's log has the details"
        return driven.signals.cause or ModynError(text)

    def _is_ours(self, run_id: str) -> bool:
        with self._lock:
            return run_id in self._driven or any(driven.run_id == run_id for driven in self._line)

    def _interrupt_if_abandoned(self, run_id: str) -> bool:
        """Whether the run, active by the journal, turned out to be driven by nobody; it is interrupted then."""
        with self._journal.database.advisory_lock(f"run/{run_id}") as held:
            if not held:
                return False
            if self._journal.run(run_id).state not in TERMINAL:
                error = UnavailableError(f"the supervisor that drove run {run_id} went away; resume the run")
                self._journal.claim(run_id)
                self._journal.become(run_id, RunState.INTERRUPTED, error=error.message, error_reason=error.reason)
            return True

    @staticmethod
    def _elsewhere(run_id: str) -> ConflictError:
        return ConflictError(f"run {run_id} is driven by another supervisor on the same database; ask that one")


def _stopped(run_id: str) -> CancelledError:
    return CancelledError(f"run {run_id} was stopped on request")


def _told(state: RunState, error: ModynError | None) -> dict[str, str]:
    """What the journal keeps of the error. A run that was stopped on request has none."""
    return {} if error is None or state is RunState.STOPPED else {"error": error.message, "error_reason": error.reason}


def _end_of(error: ModynError | None) -> RunState:
    if error is None:
        return RunState.FINISHED
    if isinstance(error, CancelledError):
        return RunState.STOPPED
    return RunState.INTERRUPTED if isinstance(error, UnavailableError) else RunState.FAILED
