"""The evaluations of one run, made by a few threads while the run continues. Each evaluation is journalled, and no evaluation is made twice."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from modyn.config.evaluation import Evaluation
from modyn.errors import ModynError, UnavailableError
from modyn.evaluator.client import EvaluationRequest, EvaluationResult, EvaluationStatus, EvaluatorClient
from modyn.records import RunId
from modyn.rpc.logs import bind, get_logger
from modyn.rpc.retry import Retrier
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.journal import RunJournal
from modyn.supervisor.journal.records import EvaluationTask
from modyn.supervisor.journal.run_events import EvaluationProgress
from modyn.supervisor.journal.work_clock import WorkClock

BACKLOG = 8
"""Largest number of waiting evaluations for each running evaluation. A run that trains faster than it evaluates waits."""

_LOG = get_logger("supervisor")


@dataclass(frozen=True, slots=True)
class RunContext:
    """Services and settings that a run uses for evaluations."""

    run_id: RunId
    evaluator: EvaluatorClient
    journal: RunJournal
    """A journal whose writes are repeated by the retrier."""
    hub: EventHub
    retrier: Retrier
    """Retrier with the retry policy and the cancellation token of the run."""
    cache: Mapping[str, Any] = field(default_factory=dict)
    """Section `cache` of the pipeline."""
    dataset_identities: Mapping[str, str] = field(default_factory=dict)
    """Dataset name → the only identity that is accepted. For other datasets, every registration is accepted."""


class EvaluationQueue:
    """Makes evaluations concurrently with the run's main loop.

    A failed evaluation is journalled with a reason and blocks no other evaluation; `drain` returns the reasons. If a service or disk space was
    missing, `drain` makes the evaluation again. If the evaluator is unavailable for longer than the run's patience, evaluations wait without
    blocking the run. Evaluations that still wait when the patience of `drain` ends are journalled as failed; a user can then request them. Every
    other error cancels the token.

    The run's thread calls all methods. The thread drains the queue before `use_final_workers`, which replaces the idle pool, and closes the queue
    last, even if the run fails.
    """

    def __init__(self, context: RunContext, evaluation: Evaluation, evaluated: Collection[tuple[int, str]]) -> None:
        """Args: evaluated: evaluation steps that are finished in the journal."""
        self._context = context
        self._token = context.retrier.token
        # The advice is removed: it describes how to resume an interrupted run, but a waiting evaluation does not interrupt the run.
        policy = replace(context.retrier.policy, advice="")
        self._retrier = context.retrier.under(policy)
        # Used while the evaluator is known to be unavailable, so that further attempts are not reported.
        self._silent_retrier = context.retrier.under(policy, silent=True)
        self._evaluation = evaluation
        self._known = set(evaluated)
        # The threads of the pool add entries (one operation under the interpreter's lock); `drain` reads the entries when no evaluation is open.
        self._failures: dict[EvaluationTask, ModynError] = {}
        # Guards the fields below. Notified when an evaluation has ended, and when the evaluator becomes unavailable or answers again.
        self._changed = threading.Condition()
        self._open: set[tuple[int, str]] = set()
        """Evaluation steps that are queued or running."""
        self._is_away = False
        """Whether the evaluator has been unavailable for longer than the run's patience."""
        self._came_back = False
        """Whether the evaluator has answered again, and no message has reported this yet."""
        self._draining = False
        """Whether an evaluation gives up after the run's patience instead of waiting longer."""
        self._given_up: ModynError | None = None
        """Error of all evaluations that were still waiting when `drain` gave up."""
        self._start_workers(evaluation.after_training_workers)

    def use_final_workers(self) -> None:
        """Replace the pool by a pool with the number of workers for the end of the run. The queue must be drained."""
        # This call does not wait: the queue was drained, so that all threads of the pool are idle.
        self._pool.shutdown()
        self._start_workers(self._evaluation.after_pipeline_workers)

    def add(self, tasks: Iterable[EvaluationTask]) -> None:
        """Queue the evaluations that are not made yet. The call waits while too many evaluations are queued, unless the evaluator is unavailable."""
        for task in tasks:
            step = (task.trigger_id, task.step_name)
            if step in self._known:
                continue
            self._known.add(step)
            with self._changed:
                # Woken when an evaluation ends or the evaluator becomes unavailable. A cancelled token ends all evaluations, and therefore the wait.
                while len(self._open) >= self._workers * (1 + BACKLOG) and not self._is_away:
                    self._changed.wait()
                self._token.check()
                self._open.add(step)
            self._submit(task)

    def _submit(self, task: EvaluationTask) -> None:
        try:
            self._pool.submit(self._evaluate, task)
        except RuntimeError:
            # No thread can be started. If the pool has other threads, one of them may still make the evaluation.
            self._close_task(task)
            raise

    def drain(self) -> list[str]:
        """Wait for all queued evaluations; return the errors of failed evaluations. The run calls this method at its end. From now on, evaluations
        wait for an unavailable evaluator only for the run's patience. Evaluations that failed because a service or disk space was missing are
        repeated.
        """
        with self._changed:
            self._draining = True
        self._wait_for_all()
        if self._given_up is None:
            again = [task for task, error in self._failures.items() if isinstance(error, UnavailableError)]
            for task in again:
                del self._failures[task]
                with self._changed:
                    self._open.add((task.trigger_id, task.step_name))
                self._submit(task)
            self._wait_for_all()
        return [f"{_about(task)} failed: {error.message}" for task, error in self._failures.items()]

    def _wait_for_all(self) -> None:
        with self._changed:
            # The wait ends in every case, because an evaluation gives up after the run's patience or when the token is cancelled.
            self._changed.wait_for(lambda: not self._open)
        self._token.check()

    def results(self, tasks: Sequence[EvaluationTask]) -> list[EvaluationResult]:
        """Wait for the end of these evaluations, which were added before; return the results of the successful evaluations.

        Raises: UnavailableError: the evaluator is unavailable for longer than the run's patience.
        """
        steps = {(task.trigger_id, task.step_name) for task in tasks}
        patience_s = min(self._retrier.policy.limit_s, threading.TIMEOUT_MAX)
        with self._changed:
            # Woken when an evaluation ends, or when the evaluator becomes unavailable or answers again. A cancelled token ends all evaluations.
            while steps & self._open:
                self._changed.wait_for(lambda: self._is_away or not steps & self._open)
                if not self._changed.wait_for(lambda: not self._is_away or not steps & self._open, patience_s):
                    # The run fails here. `close` waits for the waiting evaluations, and the cancelled token ends these evaluations.
                    self._token.cancel(self._undecided())
        self._token.check()
        ids = [self._request(task).evaluation_id for task in tasks]
        return self._context.retrier.call(self._context.evaluator.results, self._context.run_id, ids)

    def _undecided(self) -> UnavailableError:
        away = "the evaluator cannot be reached, and its scores decide which policy downsamples the next training"
        return UnavailableError("; ".join(filter(None, (away, self._context.retrier.policy.advice))))

    def close(self) -> None:
        """Drop waiting evaluations, and wait for running evaluations."""
        # The wait is bounded: the queue is drained, or the cancelled token ends the calls of running evaluations.
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start_workers(self, number: int) -> None:
        self._workers = number
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix=f"{self._context.run_id}-evaluation")

    def _evaluate(self, task: EvaluationTask) -> None:
        """Make one evaluation, in a thread of the pool. Any error other than a failed evaluation ends the run."""
        try:
            if self._token.cause is None:
                self._evaluate_journalled(task)
        finally:
            self._close_task(task)

    def _close_task(self, task: EvaluationTask) -> None:
        with self._changed:
            self._open.discard((task.trigger_id, task.step_name))
            self._changed.notify_all()

    def _evaluate_journalled(self, task: EvaluationTask) -> None:
        journal = self._context.journal
        with bind(run_id=self._context.run_id, trigger_id=task.trigger_id):
            try:
                journal.begin_evaluation(task)
                clock = WorkClock()
                failure = self._make(task, clock)
                journal.end_evaluation_task(task, clock.seconds, None if failure is None else failure.message)
                if failure is not None:
                    self._failures[task] = failure
            except ModynError as error:
                self._token.cancel(error)
            except Exception as error:  # noqa: BLE001 - an error would end the thread without a trace; the run's main thread raises the error
                _LOG.exception("evaluation_crashed")
                self._token.cancel(ModynError(f"evaluating trigger {task.trigger_id} failed: {type(error).__name__}: {error}"))

    def _make(self, task: EvaluationTask, clock: WorkClock) -> ModynError | None:
        """Make one evaluation; return the error of the evaluation. Before `drain`, the evaluation waits while the evaluator is unavailable.

        Args: clock: counts the seconds of work of the evaluation.
        """
        while True:
            with self._changed:
                was_away, is_last, given_up = self._is_away, self._draining, self._given_up
            if given_up is not None:
                return given_up
            # The outage was reported when it began. Later attempts are silent.
            failure, answered = self._follow(task, clock, self._silent_retrier if was_away else self._retrier)
            if answered:
                self._report_return()
                return failure
            assert failure is not None
            self._stays_away(failure, for_good=is_last)

    def _report_return(self) -> None:
        # Several evaluations may end after the evaluator's return; only the first evaluation reports the return.
        with self._changed:
            came_back, self._came_back = self._came_back, False
        if came_back:
            self._context.journal.message("the evaluator is back; the waiting evaluations are made")

    def _stays_away(self, error: ModynError, for_good: bool) -> None:
        # Only the first of several waiting evaluations reports that the evaluator is away. The notification starts the timeout of `results`.
        with self._changed:
            is_known, self._is_away = self._is_away, True
            if for_good:
                again = f"`modyn evaluate {self._context.run_id}` makes it once the evaluator is back"
                self._given_up = UnavailableError(f"not made, since the evaluator stayed away: {error.message}; {again}")
            self._changed.notify_all()
        if not is_known:
            self._context.journal.message(
                f"the evaluator stays away ({error.message}); the run continues, and its evaluations wait"
            )

    def _follow(self, task: EvaluationTask, clock: WorkClock, retrier: Retrier) -> tuple[ModynError | None, bool]:
        """Make one evaluation. Return the error of the evaluation, and whether the evaluator has answered.

        Raises: the cause of the cancelled token.
        """
        evaluator = self._context.evaluator
        answered = False

        def start() -> EvaluationStatus:
            nonlocal answered
            answered = False
            status = evaluator.start(request)
            answered = True
            # The evaluator has answered. The notification wakes `results`, which waits for the evaluator.
            with self._changed:
                self._came_back |= self._is_away
                self._is_away = False
                self._changed.notify_all()
            return status

        request = self._request(task)
        try:
            retrier.follow(
                start=start,
                watch=lambda: evaluator.watch(request.evaluation_id),
                report=lambda status: self._report(task, status, clock),
                stop=lambda: evaluator.stop(request.evaluation_id),
            )
        except ModynError as error:
            self._token.check()
            return error, answered or not isinstance(error, UnavailableError)
        return None, True

    def _request(self, task: EvaluationTask) -> EvaluationRequest:
        return EvaluationRequest(
            run_id=self._context.run_id,
            trigger_id=task.trigger_id,
            model_id=task.model_id,
            handler=task.handler,
            dataset=self._evaluation.datasets[task.dataset],
            intervals=task.intervals,
            device=self._evaluation.device,
            cache=self._context.cache,
            dataset_identity=self._context.dataset_identities.get(task.dataset, ""),
        )

    def _report(self, task: EvaluationTask, status: EvaluationStatus, clock: WorkClock) -> None:
        clock.report(status.state)
        progress = EvaluationProgress(status.samples_seen, status.samples_total, task.handler, task.dataset)
        self._context.hub.progress(self._context.run_id, progress, task.trigger_id)


def _about(task: EvaluationTask) -> str:
    return f"evaluation of trigger {task.trigger_id} by handler '{task.handler}' on dataset '{task.dataset}'"
