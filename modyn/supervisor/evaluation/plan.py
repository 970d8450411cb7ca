"""Decide when each evaluation of a run is due. Evaluations are cells of the matrix of models × intervals. No service is called."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from modyn.config.evaluation import Evaluation, EvaluationHandler, ModelChoice
from modyn.errors import TrainingError
from modyn.records import EvalInterval, Interval
from modyn.supervisor.evaluation import build_strategy
from modyn.supervisor.evaluation.base import EvaluationStrategy, TrainedModel
from modyn.supervisor.journal.records import EvaluationTask, TriggerRecord, When, model_at
from modyn.supervisor.journal.states import TriggerState

Cells = Iterator[tuple[TrainedModel, tuple[EvalInterval, ...]]]
"""Rows of the matrix: a model, and one or more intervals on which the model is evaluated."""


class EvaluationPlan:
    """The cells of the matrix of models × intervals that one handler requests. Each cell is returned as soon as the cell is certain.

    A model's own row is certain after the model's training. With `active` and `train`, the intervals between two trainings are certain after the
    second training. The end of the run decides the remaining intervals: the intervals before the end of the first model's data, the intervals of the
    last model, and the intervals that depend on the triggers. Each interval is processed a fixed number of times, for any number of models.
    """

    def __init__(self, models: ModelChoice, strategy: EvaluationStrategy) -> None:
        self._choice = models
        self._strategy = strategy
        self._models: list[TrainedModel] = []
        self._ends: list[int] = []
        """`data_end` of the models."""
        self._asked = dict.fromkeys(strategy.intervals(), False)
        """Interval → whether `due_now` has returned the interval, for all intervals so far, in order. `matrix` does not use the value."""
        self._waiting = deque(self._asked)
        """Intervals whose anchor is at or after the end of all models' data, in the order of the anchors."""
        self._row = tuple(self._asked)
        """The keys of `_asked`, as one tuple that the rows of many models share. Only `matrix` uses and updates the tuple."""
        self._row_lengths: list[int] = []
        """Length of the row that `due_now` has returned for each model."""

    def add(self, model: TrainedModel) -> None:
        """Add the next model."""
        self._models.append(model)
        self._ends.append(model.data_end)
        self._row_lengths.append(0)
        for interval in self._strategy.after_training(self._models):
            if interval not in self._asked:
                self._asked[interval] = False
                self._waiting.append(interval)

    def due_now(self) -> Cells:
        """Return the cells that the newest model makes certain. Call this after each `add`, or never; `due_at_end` returns the other cells."""
        newest = len(self._models) - 1
        if self._choice == "matrix":
            if len(self._row) < len(self._asked):
                self._row = tuple(self._asked)
            self._row_lengths[newest] = len(self._row)
            return self._cells({newest: self._row})
        due: list[EvalInterval] = []
        # Intervals wait in the order of their anchors. If an anchor is before the end of the newest model's data, the model of the interval is
        # certain, because the data of later models never end earlier.
        while self._waiting and self._waiting[0].anchor < self._ends[newest]:
            interval = self._waiting.popleft()
            if newest and interval.anchor >= self._ends[newest - 1]:
                self._asked[interval] = True
                due.append(interval)
        return self._cells({newest if self._choice == "train" else newest - 1: due})

    def due_at_end(self, stream_end: int | None) -> Cells:
        """Return the cells that `due_now` has not returned; all models must be known.

        Args: stream_end: largest timestamp of the run, plus 1; None if the run had no samples.
        """
        last = () if stream_end is None or not self._models else self._strategy.at_end(self._models, stream_end)
        intervals = tuple(dict.fromkeys((*self._asked, *last)))
        # In a matrix, each model is evaluated on all intervals. `_row_lengths` counts the intervals that `due_now` has returned for each model.
        if self._choice == "matrix":
            lengths = zip(self._models, self._row_lengths, strict=True)
            return ((model, row) for model, length in lengths if (row := intervals[length:]))
        cells: dict[int, list[EvalInterval]] = {}
        for interval in intervals:
            if not self._asked.get(interval):
                chosen = model_at(self._ends, interval.anchor, following=self._choice == "train")
                if chosen >= 0:
                    cells.setdefault(chosen, []).append(interval)
        return self._cells(dict(sorted(cells.items())))

    def _cells(self, rows: Mapping[int, Sequence[EvalInterval]]) -> Cells:
        return ((self._models[index], tuple(row)) for index, row in rows.items() if row)


class EvaluationSchedule:
    """The evaluations of all handlers of an `evaluation` section, by the time at which each evaluation is due."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._plans = [
            (h, EvaluationPlan(h.models, build_strategy(h.strategy))) for h in evaluation.handlers if h.execution_time != "manual"
        ]

    def add(self, model: TrainedModel) -> list[EvaluationTask]:
        """Add the next stored model; return the evaluations that are due."""
        tasks: list[EvaluationTask] = []
        for handler, plan in self._plans:
            plan.add(model)
            if handler.execution_time == "after_training":
                tasks += _tasks(handler, plan.due_now(), model.trigger_id)
        return tasks

    def at_end(self, stream_end: int | None) -> Iterator[EvaluationTask]:
        """Yield the evaluations that are due at the end of the run. Args: see `EvaluationPlan.due_at_end`."""
        for handler, plan in self._plans:
            yield from _tasks(handler, plan.due_at_end(stream_end), "end")


def tasks_of_run(evaluation: Evaluation, models: Sequence[TrainedModel], stream_end: int | None) -> Iterator[EvaluationTask]:
    """Yield all evaluations that a run with these models makes, from the first training to the end of the run.

    Args: stream_end: see `EvaluationPlan.due_at_end`.
    """
    schedule = EvaluationSchedule(evaluation)
    for model in models:
        yield from schedule.add(model)
    yield from schedule.at_end(stream_end)


def requested_tasks(
    evaluation: Evaluation,
    names: Collection[str],
    models: Sequence[TrainedModel],
    stream_end: int | None,
    when: When,
) -> Iterator[EvaluationTask]:
    """Yield the requested evaluations: the evaluations of the handlers `names`, or of all `manual` handlers if there are no names.

    Args: models: all models of the run. stream_end: see `EvaluationPlan.due_at_end`. when: name of the request.
    """
    for handler in evaluation.handlers:
        if handler.name in names if names else handler.execution_time == "manual":
            plan = EvaluationPlan(handler.models, build_strategy(handler.strategy))
            for model in models:
                plan.add(model)
            yield from _tasks(handler, plan.due_at_end(stream_end), when)


def _tasks(handler: EvaluationHandler, cells: Cells, when: When) -> Iterator[EvaluationTask]:
    for model, intervals in cells:
        for dataset in handler.datasets:
            yield EvaluationTask(handler.name, dataset, when, model.trigger_id, model.model_id, intervals)


class TrainedModels:
    """The models of a run, added trigger by trigger. Samples of a trigger that made no model count as samples of the next model."""

    def __init__(self, triggers: Iterable[TriggerRecord] = ()) -> None:
        self.models: list[TrainedModel] = []
        """The models of the run, in order of their triggers."""
        self._first: int | None = None
        self._last: int | None = None
        self._newest_training: TriggerRecord | None = None
        self._untrained: TriggerRecord | None = None
        for trigger in triggers:
            self.add(trigger)

    def add(self, trigger: TriggerRecord) -> None:
        """Add the next trigger after it has ended, with or without a model."""
        self._first = trigger.first_timestamp if self._first is None else min(self._first, trigger.first_timestamp)
        self._last = trigger.last_timestamp if self._last is None else max(self._last, trigger.last_timestamp)
        if trigger.model_id is not None:
            interval = Interval(self._first, self._last + 1)
            self.models.append(TrainedModel(trigger.trigger_id, trigger.model_id, interval, trigger.data_end))
            self._first = self._last = None
            self._newest_training = self._newest_training if trigger.online else trigger
        elif trigger.state is TriggerState.UNTRAINED:
            self._untrained = trigger

    def check_any(self) -> None:
        """Check at the end of a run that the run has a model, if there were samples to train on. Raises: TrainingError: there is no model; the error
        contains the reason of the newest trigger.
        """
        if not self.models and self._untrained is not None:
            number, reason = self._untrained.trigger_id, self._untrained.training_result.nothing_trained
            raise TrainingError(f"no trigger of the run made a model; the newest, trigger {number}, trained nothing: {reason}")

    def training_of(self, model_id: int) -> TriggerRecord | None:
        """Return the newest retraining if it made the model `model_id`; None otherwise. Policies use only the newest retraining."""
        newest = self._newest_training
        return newest if newest is not None and newest.model_id == model_id else None


def trained_models(triggers: Iterable[TriggerRecord]) -> list[TrainedModel]:
    """Return the models of these triggers, in order."""
    return TrainedModels(triggers).models


def parent_model(previous: int | None, use_previous_model: bool, initial_model_id: int | None) -> int | None:
    """Return the stored model from which the next training starts; None for initial weights. Args: previous: the newest model of the run; None
    without a model. use_previous_model, initial_model_id: options of section `training`.
    """
    if use_previous_model and previous is not None:
        return previous
    return initial_model_id
