"""The evaluations of one run: made by a few threads while the run goes on, each journalled, none made twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from modyn.errors import ModynError, UnavailableError
from modyn.evaluator.client import EvaluationRequest, EvaluationStatus, EvaluatorClient
from modyn.records import RunId
from modyn.rpc.logs import bind, get_logger
from modyn.rpc.retry import Retrier
from modyn.supervisor.evaluation_plan import EvaluationTask
from modyn.supervisor.events import EventHub
from modyn.supervisor.journal import RunJournal
from modyn.supervisor.records import EventKind
from modyn.supervisor.work_clock import WorkClock

BACKLOG = 8
"""Evaluations that may wait for each one that runs. A run that trains faster than it evaluates is held back."""

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


class EvaluationQueue:
    """Evaluations beside the run's main loop.

    One that fails is journalled with its reason and blocks no other; `drain` returns the reasons. One whose evaluator stays away cancels
    the token.

    All methods are called by the run's thread. It drains the queue before `use_final_workers`, whose new pool takes the place of an idle
    one, and closes the queue last, also when the run fails.
    """

    def __init__(self, context: RunContext, section: Mapping[str, Any] | None, evaluated: Collection[tuple[int, str]]) -> None:
        """Args: section: `evaluation` of the pipeline. evaluated: steps that the journal holds as finished."""
        self._context = context
        self._token = context.retrier.token
        self._section = section or {}
        self._known = set(evaluated)
        # Appended to by the threads of the pool (one operation under the interpreter's lock), read by `drain` once all futures are done.
        self._failures: list[str] = []
        # Used by the run's thread alone: what is queued or runs.
        self._futures: list[Future[None]] = []
        self._start_workers("after_training_evaluation_workers")

    def use_final_workers(self) -> None:
        """Change to the number of workers for the end of the run. Everything before must have ended."""
        self._pool.shutdown()
        self._start_workers("after_pipeline_evaluation_workers")

    def add(self, tasks: Iterable[EvaluationTask]) -> None:
        """Queue the tasks that have not been made yet. Waits while too many are queued."""
        for task in tasks:
            step = (task.trigger_id, task.step_name)
            if step in self._known:
                continue
            self._known.add(step)
            self._futures = [future for future in self._futures if not future.done()]
            while len(self._futures) >= self._workers * (1 + BACKLOG):
                self._futures.pop(0).result()
                self._token.check()
            self._futures.append(self._pool.submit(self._evaluate, task))

    def drain(self) -> list[str]:
        """Wait for all queued evaluations; return why some of them failed."""
        for future in self._futures:
            future.result()
            self._token.check()
        self._futures = []
        return list(self._failures)

    def close(self) -> None:
        """Drop what waits, and wait for what runs: it ends soon, since the queue is empty or the token is cancelled."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start_workers(self, option: str) -> None:
        self._workers = int(self._section.get(option, 5))
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix=f"{self._context.run_id}-evaluation")

    def _evaluate(self, task: EvaluationTask) -> None:
        """Make one evaluation, in a thread of the pool. An error that is not the evaluation's own ends the run."""
        if self._token.cause is not None:
            return
        journal = self._context.journal
        with bind(run_id=self._context.run_id, trigger_id=task.trigger_id):
            try:
                journal.evaluating(task)
                clock = WorkClock()
                failure = self._follow(task, clock)
                journal.evaluated(task, clock.seconds, None if failure is None else failure.message)
                if failure is not None:
                    about = f"evaluation of trigger {task.trigger_id} by handler '{task.handler}' on dataset '{task.dataset}'"
                    self._failures.append(f"{about} failed: {failure.message}")
            except ModynError as error:
                self._token.cancel(error)
            except Exception as error:  # noqa: BLE001 - it would end a thread unseen; the run's main thread raises it
                _LOG.exception("evaluation_crashed")
                self._token.cancel(ModynError(f"evaluating trigger {task.trigger_id} failed: {type(error).__name__}: {error}"))

    def _follow(self, task: EvaluationTask, clock: WorkClock) -> ModynError | None:
        """Bring the evaluation to its end; return the error that it failed with. Args: clock: counts its seconds of work."""
        evaluator = self._context.evaluator
        request = EvaluationRequest(
            run_id=self._context.run_id,
            trigger_id=task.trigger_id,
            model_id=task.model_id,
            handler=task.handler,
            dataset=next(entry for entry in self._section["datasets"] if entry["dataset_id"] == task.dataset),
            intervals=task.intervals,
            device=self._section.get("device", "cpu"),
        )
        try:
            self._context.retrier.follow(
                start=lambda: evaluator.start(request),
                watch=lambda: evaluator.watch(request.evaluation_id),
                report=lambda status: self._report(task, status, clock),
                stop=lambda: evaluator.stop(request.evaluation_id),
            )
        except UnavailableError:
            raise
        except ModynError as error:
            if self._token.cause is not None:
                raise
            return error
        return None

    def _report(self, task: EvaluationTask, status: EvaluationStatus, clock: WorkClock) -> None:
        clock.report(status)
        detail = {
            "handler": task.handler,
            "dataset": task.dataset,
            "samples_seen": status.samples_seen,
            "samples_total": status.samples_total,
        }
        self._context.hub.progress(self._context.run_id, EventKind.EVALUATION_PROGRESS, detail, task.trigger_id)
