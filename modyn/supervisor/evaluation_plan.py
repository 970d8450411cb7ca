"""Which evaluations of a run are due, and when: cells of the matrix of models × intervals.

A plan follows a run model by model and calls no service.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modyn.errors import TrainingError
from modyn.records import EvalInterval, Interval
from modyn.supervisor.evaluation import EvaluationHandler, ModelChoice, build_strategy, load_handlers
from modyn.supervisor.evaluation.base import EvaluationStrategy, TrainedModel
from modyn.supervisor.records import TriggerRecord, model_at
from modyn.supervisor.states import TriggerState
from modyn.trainer_server.client import NOTHING_TRAINED

When = int | str
"""When an evaluation becomes due: once the model of this trigger is stored, at the `end` of the run, or at a `request` of the user."""


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """One model on one dataset, on the intervals of a handler that are due together."""

    handler: str
    dataset: str
    when: When
    trigger_id: int
    model_id: int
    intervals: tuple[EvalInterval, ...]

    @property
    def step_name(self) -> str:
        """Name of its step in the journal, unique among those of its trigger."""
        return f"{self.handler}/{self.dataset}/{self.when}"


Cells = Iterator[tuple[TrainedModel, tuple[EvalInterval, ...]]]
"""A model and the intervals to evaluate it on, at least one. A row at a time, since a matrix is large."""


class EvaluationPlan:
    """Which cells of the matrix of models × intervals one handler asks for, and when each is known.

    A cell is evaluated as soon as it is certain: a model's own row once it is trained; under `active` and `train` the intervals
    between two trainings once the second is done. What only the end of the run decides (the intervals before the first model's data end, the
    last model's, those that depend on the triggers) is left for the end. Each interval is looked at a fixed number of times, whatever the
    number of models.
    """

    def __init__(self, models: ModelChoice, strategy: EvaluationStrategy) -> None:
        self._choice = models
        self._strategy = strategy
        self._models: list[TrainedModel] = []
        self._ends: list[int] = []
        """`data_end` of the models."""
        self._asked = dict.fromkeys(strategy.intervals(), False)
        """The intervals so far, in order, and whether `due_now` has returned them. Not for `matrix`."""
        self._waiting = deque(self._asked)
        """Those that no model's data has reached, in the order of their anchors."""
        self._row = tuple(self._asked)
        """The same intervals; brought up to date where `matrix` asks for it, so that rows of many models are one object."""
        self._row_lengths: list[int] = []
        """Of the row of each model, how much `due_now` has returned."""

    def add(self, model: TrainedModel) -> None:
        """Take note of the next model."""
        self._models.append(model)
        self._ends.append(model.data_end)
        self._row_lengths.append(0)
        for interval in self._strategy.after_training(self._models):
            if interval not in self._asked:
                self._asked[interval] = False
                self._waiting.append(interval)

    def due_now(self) -> Cells:
        """The cells that the newest model makes certain. Ask behind each `add`, or never: what was not asked for is left for `due_at_end`."""
        newest = len(self._models) - 1
        if self._choice == "matrix":
            if len(self._row) < len(self._asked):
                self._row = tuple(self._asked)
            self._row_lengths[newest] = len(self._row)
            return self._cells({newest: self._row})
        due: list[EvalInterval] = []
        while self._waiting and self._waiting[0].anchor < self._ends[newest]:
            interval = self._waiting.popleft()
            if newest and interval.anchor >= self._ends[newest - 1]:
                self._asked[interval] = True
                due.append(interval)
        return self._cells({newest if self._choice == "train" else newest - 1: due})

    def due_at_end(self, stream_end: int | None) -> Cells:
        """The cells that `due_now` has not returned, once all models are known.

        Args: stream_end: first time that no sample of the run has reached; None: it had no sample.
        """
        last = () if stream_end is None or not self._models else self._strategy.at_end(self._models, stream_end)
        intervals = tuple(dict.fromkeys((*self._asked, *last)))
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
    """The evaluations that all handlers of an `evaluation` section ask for, by the moment at which they are due."""

    def __init__(self, evaluation: Mapping[str, Any] | None) -> None:
        self._plans = [
            (h, EvaluationPlan(h.models, build_strategy(h.strategy)))
            for h in load_handlers(evaluation)
            if h.execution_time != "manual"
        ]

    def add(self, model: TrainedModel) -> list[EvaluationTask]:
        """Take note of the next model; return what is due now that it is stored."""
        tasks: list[EvaluationTask] = []
        for handler, plan in self._plans:
            plan.add(model)
            if handler.execution_time == "after_training":
                tasks += _tasks(handler, plan.due_now(), model.trigger_id)
        return tasks

    def at_end(self, stream_end: int | None) -> Iterator[EvaluationTask]:
        """Due when no more models come. Args: as for `EvaluationPlan.due_at_end`."""
        for handler, plan in self._plans:
            yield from _tasks(handler, plan.due_at_end(stream_end), "end")


def tasks_of_run(
    evaluation: Mapping[str, Any] | None, models: Sequence[TrainedModel], stream_end: int | None
) -> Iterator[EvaluationTask]:
    """All evaluations that a run with these models makes, from its first training to its end.

    Args: stream_end: as for `EvaluationPlan.due_at_end`.
    """
    schedule = EvaluationSchedule(evaluation)
    for model in models:
        yield from schedule.add(model)
    yield from schedule.at_end(stream_end)


def requested_tasks(
    evaluation: Mapping[str, Any] | None,
    names: Collection[str],
    models: Sequence[TrainedModel],
    stream_end: int | None,
    when: When,
) -> Iterator[EvaluationTask]:
    """The evaluations that the user asked for: those of the handlers `names`, or of all `manual` handlers.

    Args: models: all of the run. stream_end: as for `EvaluationPlan.due_at_end`. when: the request.
    """
    for handler in load_handlers(evaluation):
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
    """The models of a run, trigger by trigger. Samples of a trigger that trained nothing count to the next model's."""

    def __init__(self, triggers: Iterable[TriggerRecord] = ()) -> None:
        self.models: list[TrainedModel] = []
        """In order of their triggers."""
        self._first: int | None = None
        self._last: int | None = None
        self._newest_training: TriggerRecord | None = None
        self._untrained: TriggerRecord | None = None
        for trigger in triggers:
            self.add(trigger)

    def add(self, trigger: TriggerRecord) -> None:
        """Take note of the next trigger, once it is trained or empty."""
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
        """Check at the end of a run that it has a model, if it had something to train on. Raises: TrainingError, with the newest reason."""
        if not self.models and self._untrained is not None:
            number, reason = self._untrained.trigger_id, self._untrained.training_result.get(NOTHING_TRAINED, "")
            raise TrainingError(f"no trigger of the run made a model; the newest, trigger {number}, trained nothing: {reason}")

    def training_of(self, model_id: int) -> TriggerRecord | None:
        """The trigger that has made this model, if it is the newest one that is not online: the one that policies look at."""
        newest = self._newest_training
        return newest if newest is not None and newest.model_id == model_id else None


def trained_models(triggers: Iterable[TriggerRecord]) -> list[TrainedModel]:
    """The models of these triggers, in order."""
    return TrainedModels(triggers).models


def parent_model(previous: int | None, use_previous_model: bool, initial_model_id: int | None) -> int | None:
    """Choose the stored model that the next training starts from; None: initial weights.

    Args: previous: the newest of the triggers before it, if any has a model. use_previous_model, initial_model_id: of section `training`.
    """
    if use_previous_model and previous is not None:
        return previous
    return initial_model_id
