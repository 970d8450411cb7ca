"""The evaluations of one run: made by a few threads while the run goes on, each journalled, none made twice."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from modyn.errors import ModynError, UnavailableError
from modyn.evaluator.client import EvaluationRequest, EvaluationResult, EvaluationStatus, EvaluatorClient
from modyn.records import RunId
from modyn.rpc.logs import bind, get_logger
from modyn.rpc.retry import Retrier
from modyn.supervisor.evaluation_plan import EvaluationTask
from modyn.supervisor.events import EventHub
from modyn.supervisor.journal import RunJournal
from modyn.supervisor.records import EventKind
from modyn.supervisor.work_clock import WorkClock

BACKLOG = 8
"""Evaluations that may wait for each one that runs. A run that trains faster than it evaluates waits."""

_LOG = get_logger("supervisor")


@dataclass(frozen=True, slots=True)
class RunContext:
    """What evaluations need of the run that they belong to."""

    run_id: RunId
    evaluator: EvaluatorClient
    journal: RunJournal
    """Its writes go through the retrier."""
    hub: EventHub
    retrier: Retrier
    """Carries the run's retry policy and its cancellation token."""
    cache: Mapping[str, Any] = field(default_factory=dict)
    """Section `cache` of the pipeline."""
    dataset_identities: Mapping[str, str] = field(default_factory=dict)
    """By name the identity of each dataset that is evaluated on; those that are not named are taken as they are registered."""


class EvaluationQueue:
    """Evaluations beside the run's main loop.

    One that fails is journalled with its reason and blocks no other; `drain` returns the reasons. One that failed for lack of a service, or of room
    on a disk, is made again at the end. While the evaluator stays away for longer than
    the run's patience, evaluations wait without holding the run back; those that still wait when the patience of `drain` ends have failed, so
    that they can be asked for. An error of anything but evaluations and their evaluator cancels the token.

    All methods are called by the run's thread. It drains the queue before `use_final_workers`, whose new pool takes the place of an idle
    one, and closes the queue last, also when the run fails.
    """

    def __init__(self, context: RunContext, section: Mapping[str, Any] | None, evaluated: Collection[tuple[int, str]]) -> None:
        """Args: section: `evaluation` of the pipeline. evaluated: steps that the journal holds as finished."""
        self._context = context
        self._token = context.retrier.token
        policy = replace(context.retrier.policy, advice="")
        self._retrier = context.retrier.under(policy)
        self._silent_retrier = context.retrier.under(policy, silent=True)
        self._section = section or {}
        self._known = set(evaluated)
        # Changed by the threads of the pool (one operation under the interpreter's lock), read by `drain` once none is open.
        self._failures: dict[EvaluationTask, ModynError] = {}
        # Guards the fields below. Notified when fewer evaluations are open, and when the evaluator is found to stay away or answers.
        self._changed = threading.Condition()
        self._open: set[tuple[int, str]] = set()
        """Steps that are queued or under way."""
        self._is_away = False
        self._came_back = False
        """And no message has said so yet."""
        self._draining = False
        self._given_up: ModynError | None = None
        self._start_workers("after_training_evaluation_workers")

    def use_final_workers(self) -> None:
        """Change to the number of workers for the end of the run. Everything before must have ended."""
        # Does not wait: the queue was drained, so all threads of the pool are idle.
        self._pool.shutdown()
        self._start_workers("after_pipeline_evaluation_workers")

    def add(self, tasks: Iterable[EvaluationTask]) -> None:
        """Queue the tasks that have not been made yet. Waits while too many are queued, unless the evaluator stays away."""
        for task in tasks:
            step = (task.trigger_id, task.step_name)
            if step in self._known:
                continue
            self._known.add(step)
            with self._changed:
                # Until one ends, or the evaluator stays away; at the latest when the token is cancelled, which ends all of them.
                while len(self._open) >= self._workers * (1 + BACKLOG) and not self._is_away:
                    self._changed.wait()
                self._token.check()
                self._open.add(step)
            self._submit(task)

    def _submit(self, task: EvaluationTask) -> None:
        try:
            self._pool.submit(self._evaluate, task)
        except RuntimeError:  # no thread can be made; one that runs may still take it
            self._ended(task)
            raise

    def drain(self) -> list[str]:
        """Wait for all queued evaluations; return why some of them failed. For the end of a run: from now on, the evaluator is waited for once more
        for the run's patience, and not any longer, and what lacked something that may be there now is tried once more."""
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
            # Ends: an evaluation gives up after the run's patience, and when the token is cancelled.
            self._changed.wait_for(lambda: not self._open)
        self._token.check()

    def results(self, tasks: Sequence[EvaluationTask]) -> list[EvaluationResult]:
        """Wait for the end of these evaluations, which were added; return their results, none of those that failed.

        Raises: UnavailableError: the evaluator stays away, and has not come back within the run's patience.
        """
        steps = {(task.trigger_id, task.step_name) for task in tasks}
        patience_s = min(self._retrier.policy.limit_s, threading.TIMEOUT_MAX)
        with self._changed:
            # Until they have ended, which the token's cancellation brings about too, or the evaluator is away for too long.
            while steps & self._open:
                self._changed.wait_for(lambda: self._is_away or not steps & self._open)
                if not self._changed.wait_for(lambda: not self._is_away or not steps & self._open, patience_s):
                    # Ends the evaluations that wait, for which `close` waits.
                    self._token.cancel(self._undecided())
        self._token.check()
        ids = [self._request(task).evaluation_id for task in tasks]
        return self._context.retrier.call(self._context.evaluator.results, self._context.run_id, ids)

    def _undecided(self) -> UnavailableError:
        away = "the evaluator stays away, whose scores decide by which policy the next training is downsampled"
        return UnavailableError("; ".join(filter(None, (away, self._context.retrier.policy.advice))))

    def close(self) -> None:
        """Drop what waits, and wait for what runs: it ends soon, since the queue is empty or the token is cancelled."""
        # An evaluation that runs is woken by the cancelled token, which breaks off its calls; that bounds this wait.
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start_workers(self, option: str) -> None:
        self._workers = int(self._section.get(option, 5))
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix=f"{self._context.run_id}-evaluation")

    def _evaluate(self, task: EvaluationTask) -> None:
        """Make one evaluation, in a thread of the pool. An error that is not the evaluation's own ends the run."""
        try:
            if self._token.cause is None:
                self._evaluate_journalled(task)
        finally:
            self._ended(task)

    def _ended(self, task: EvaluationTask) -> None:
        with self._changed:
            self._open.discard((task.trigger_id, task.step_name))
            self._changed.notify_all()

    def _evaluate_journalled(self, task: EvaluationTask) -> None:
        journal = self._context.journal
        with bind(run_id=self._context.run_id, trigger_id=task.trigger_id):
            try:
                journal.evaluating(task)
                clock = WorkClock()
                failure = self._make(task, clock)
                journal.evaluated(task, clock.seconds, None if failure is None else failure.message)
                if failure is not None:
                    self._failures[task] = failure
            except ModynError as error:
                self._token.cancel(error)
            except Exception as error:  # noqa: BLE001 - it would end a thread unseen; the run's main thread raises it
                _LOG.exception("evaluation_crashed")
                self._token.cancel(ModynError(f"evaluating trigger {task.trigger_id} failed: {type(error).__name__}: {error}"))

    def _make(self, task: EvaluationTask, clock: WorkClock) -> ModynError | None:
        """Bring the evaluation to its end, however long the evaluator stays away before `drain`; return the error that it failed with.

        Args: clock: counts its seconds of work.
        """
        while True:
            with self._changed:
                was_away, is_last, given_up = self._is_away, self._draining, self._given_up
            if given_up is not None:
                return given_up
            failure, answered = self._follow(task, clock, self._silent_retrier if was_away else self._retrier)
            if answered:
                self._report_return()
                return failure
            assert failure is not None
            self._stays_away(failure, for_good=is_last)

    def _report_return(self) -> None:
        with self._changed:
            came_back, self._came_back = self._came_back, False
        if came_back:
            self._context.journal.message("the evaluator is back; the evaluations that waited are made")

    def _stays_away(self, error: ModynError, for_good: bool) -> None:
        with self._changed:
            is_known, self._is_away = self._is_away, True
            if for_good:
                again = f"`modyn evaluate {self._context.run_id}` makes it once the evaluator is back"
                self._given_up = UnavailableError(f"not made, since the evaluator stayed away: {error.message}; {again}")
            self._changed.notify_all()
        if not is_known:
            self._context.journal.message(
                f"the evaluator stays away ({error.message}); the run goes on, and its evaluations wait"
            )

    def _follow(self, task: EvaluationTask, clock: WorkClock, retrier: Retrier) -> tuple[ModynError | None, bool]:
        """Bring the evaluation to its end. Return the error that it failed with, and whether the evaluator has answered at last.

        Raises: the cause of the token.
        """
        evaluator = self._context.evaluator
        answered = False

        def start() -> EvaluationStatus:
            nonlocal answered
            answered = False
            status = evaluator.start(request)
            answered = True
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
            dataset=next(entry for entry in self._section["datasets"] if entry["dataset_id"] == task.dataset),
            intervals=task.intervals,
            device=self._section.get("device", "cpu"),
            cache=self._context.cache,
            dataset_identity=self._context.dataset_identities.get(task.dataset, ""),
        )

    def _report(self, task: EvaluationTask, status: EvaluationStatus, clock: WorkClock) -> None:
        clock.report(status.state)
        detail = {
            "handler": task.handler,
            "dataset": task.dataset,
            "samples_seen": status.samples_seen,
            "samples_total": status.samples_total,
        }
        self._context.hub.progress(self._context.run_id, EventKind.EVALUATION_PROGRESS, detail, task.trigger_id)


def _about(task: EvaluationTask) -> str:
    return f"evaluation of trigger {task.trigger_id} by handler '{task.handler}' on dataset '{task.dataset}'"
