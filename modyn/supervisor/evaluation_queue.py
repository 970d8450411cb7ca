"""The evaluations of one run: made by a few threads while the run goes on, each journalled, none made twice."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from modyn.errors import CancelledError, ModynError, UnavailableError
from modyn.evaluator.client import EvaluationRequest, EvaluationStatus, EvaluatorClient
from modyn.records import RunId
from modyn.rpc.logs import bind, get_logger
from modyn.rpc.retry import CancellationToken, Retrier
from modyn.supervisor.client import EventKind
from modyn.supervisor.evaluation.handlers import EvaluationHandler, load_handlers
from modyn.supervisor.evaluation_plan import Cells, EvaluationPlan, EvaluationTask, TrainedModel, When
from modyn.supervisor.events import EventHub
from modyn.supervisor.run_journal import RunJournal

BACKLOG = 8
"""EvaluationQueue that may wait for each that runs. A run that trains faster than it evaluates is held back."""

_LOG = get_logger("supervisor")


class Schedule:
    """Which evaluations the handlers of a pipeline ask for, and when."""

    def __init__(self, evaluation: Mapping[str, Any] | None) -> None:
        handlers = load_handlers(evaluation) if evaluation else ()
        self._handlers = [(handler, EvaluationPlan(handler.models, handler.build())) for handler in handlers]

    def after_training(self, models: Sequence[TrainedModel]) -> list[EvaluationTask]:
        """Due now that the newest of `models` is stored."""
        return [
            task
            for handler, plan in self._handlers
            if handler.execution_time == "after_training"
            for task in _tasks(handler, plan.after_training(models), models, models[-1].trigger_id)
        ]

    def at_end(self, models: Sequence[TrainedModel], stream_end: int | None) -> list[EvaluationTask]:
        """Due when no more models come."""
        tasks: list[EvaluationTask] = []
        for handler, plan in self._handlers:
            if handler.execution_time == "after_training":
                tasks += _tasks(handler, plan.rest(models, stream_end), models, "end")
            elif handler.execution_time == "after_pipeline":
                tasks += _tasks(handler, plan.whole(models, stream_end), models, "end")
        return tasks

    def by_hand(self, names: Collection[str], models: Sequence[TrainedModel], stream_end: int | None) -> list[EvaluationTask]:
        """Of these handlers, or of all that are `manual`."""
        return [
            task
            for handler, plan in self._handlers
            if (handler.name in names if names else handler.execution_time == "manual")
            for task in _tasks(handler, plan.whole(models, stream_end), models, "manual")
        ]


def _tasks(handler: EvaluationHandler, cells: Cells, models: Sequence[TrainedModel], when: When) -> Iterable[EvaluationTask]:
    for index, intervals in cells.items():
        for dataset in handler.datasets if intervals else ():
            yield EvaluationTask(handler.name, dataset, when, models[index].trigger_id, models[index].model_id, intervals)


class EvaluationQueue:
    """EvaluationQueue that run beside the run's main loop.

    One that fails is journalled and does not stop the run; `drain` tells of it. One whose evaluator stays away ends the run's signals.
    """

    def __init__(
        self,
        run_id: RunId,
        evaluation: Mapping[str, Any] | None,
        evaluator: EvaluatorClient,
        journal: RunJournal,
        hub: EventHub,
        patience: Retrier,
        signals: CancellationToken,
        evaluated: Collection[tuple[int, str]],
    ) -> None:
        self._run_id = run_id
        self._section = evaluation or {}
        self._evaluator = evaluator
        self._journal = journal
        self._hub = hub
        self._patience = patience
        self._signals = signals
        self._known = set(evaluated)
        self._failures: list[ModynError] = []
        self._futures: list[Future[None]] = []
        self._running: set[str] = set()
        self._lock = threading.Lock()
        self._workers = int(self._section.get("after_training_evaluation_workers", 5))
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix=f"{run_id}-evaluation")
        signals.on_cancel(self._call_off)

    def use_workers(self, num_workers: int) -> None:
        """For what is begun from now on; everything before must have ended."""
        self._pool.shutdown()
        self._workers = num_workers
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix=f"{self._run_id}-evaluation")

    def begin(self, tasks: Iterable[EvaluationTask]) -> None:
        """Makes those that have not been made yet. Waits while too many are in line."""
        for task in tasks:
            if task.step in self._known:
                continue
            self._known.add(task.step)
            self._futures = [future for future in self._futures if not future.done()]
            while len(self._futures) >= self._workers * (1 + BACKLOG):
                self._futures.pop(0).result()
                self._signals.check()
            self._futures.append(self._pool.submit(self._evaluate, task))

    def drain(self) -> None:
        """Waits for all that was begun. Raises the first failure, with a count of the others."""
        for future in self._futures:
            future.result()
            self._signals.check()
        self._futures = []
        if self._failures:
            first = self._failures[0]
            others = f" ({len(self._failures) - 1} more evaluations failed, see the run's events)" if self._failures[1:] else ""
            raise type(first)(f"{first.message}{others}")

    def close(self) -> None:
        """Drops what is in line and waits for what runs, which must have been called off."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _evaluate(self, task: EvaluationTask) -> None:
        if self._signals.cause is not None:
            return
        with bind(run_id=self._run_id, trigger_id=task.trigger_id):
            try:
                self._patience.call(lambda: self._journal.evaluating(task))
                try:
                    self._follow(task)
                except ModynError as error:
                    if self._signals.cause is not None or isinstance(error, UnavailableError):
                        raise
                    self._failed(task, error)
                else:
                    self._patience.call(lambda: self._journal.evaluated(task))
            except ModynError as error:
                self._signals.cancel(error)
            except Exception as error:  # noqa: BLE001 - it would end a thread unseen; the run's main thread raises it
                _LOG.exception("evaluation_crashed")
                self._signals.cancel(ModynError(f"evaluating trigger {task.trigger_id} failed: {type(error).__name__}: {error}"))

    def _failed(self, task: EvaluationTask, error: ModynError) -> None:
        self._patience.call(lambda: self._journal.evaluation_failed(task, error.message))
        with self._lock:
            self._failures.append(
                type(error)(
                    f"evaluation of trigger {task.trigger_id} by handler '{task.handler}' on dataset '{task.dataset}' failed: "
                    f"{error.message}; `modyn resume` makes it again"
                )
            )

    def _follow(self, task: EvaluationTask) -> None:
        dataset = next(entry for entry in self._section["datasets"] if entry["dataset_id"] == task.dataset)
        request = EvaluationRequest(
            run_id=self._run_id,
            trigger_id=task.trigger_id,
            model_id=task.model_id,
            handler=task.handler,
            dataset=dataset,
            intervals=task.intervals,
            device=self._section.get("device", "cpu"),
        )
        id_ = request.evaluation_id
        with self._lock:
            self._running.add(id_)
        try:
            self._patience.follow(
                start=lambda: self._evaluator.start(request),
                watch=lambda: self._evaluator.watch(id_),
                report=lambda status: self._tell_progress(task, status),
            )
        finally:
            if self._signals.cause is not None:
                # The request to stop may have come before the evaluation was known to the evaluator.
                self._call_off(self._signals.cause)
            with self._lock:
                self._running.discard(id_)

    def _tell_progress(self, task: EvaluationTask, status: EvaluationStatus) -> None:
        detail = {
            "handler": task.handler,
            "dataset": task.dataset,
            "samples_seen": status.samples_seen,
            "samples_total": status.samples_total,
        }
        self._hub.progress(self._run_id, EventKind.EVALUATION_PROGRESS, detail, task.trigger_id)

    def _call_off(self, cause: ModynError) -> None:
        """On the user's request only: evaluations of a run that was interrupted may as well go on."""
        if not isinstance(cause, CancelledError):
            return
        with self._lock:
            running = list(self._running)
        for id_ in running:
            try:
                self._evaluator.stop(id_)
            except ModynError as error:
                _LOG.warning("evaluation_not_stopped", evaluation_id=id_, error=error.message)
