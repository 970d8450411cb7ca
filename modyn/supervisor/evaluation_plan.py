"""Which evaluations of a run are due, and when: cells of the matrix of models × intervals. Pure functions and records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modyn.records import EvalInterval, Interval
from modyn.supervisor.evaluation import EvaluationHandler, ModelChoice, build_strategy, load_handlers
from modyn.supervisor.evaluation.base import EvaluationStrategy, IntervalContext
from modyn.supervisor.records import TriggerRecord, model_at


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trigger that has produced a model, as evaluation sees it."""

    trigger_id: int
    model_id: int
    training_interval: Interval
    """Times of the samples that came since the trigger before, [first, last + 1)."""
    data_end: int
    """As journalled with its trigger: no sample before it has reached this time."""


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


Cells = dict[int, tuple[EvalInterval, ...]]
"""Intervals to evaluate, by the index of the model."""


class EvaluationPlan:
    """Which cells of the matrix of models × intervals one handler asks for, and when each is known.

    A cell is evaluated as soon as it is certain: a model's own row once it is trained; under `active` and `train` the intervals
    between two trainings once the second is done. What only the end of the run decides (the intervals before the first model's data end, the
    last model's, those that depend on the triggers) is left for the end.
    """

    def __init__(self, models: ModelChoice, strategy: EvaluationStrategy) -> None:
        self._models = models
        self._strategy = strategy
        self._fixed = None if strategy.depends_on_run else tuple(strategy.intervals(IntervalContext()))

    def after_training(self, models: Sequence[TrainedModel]) -> Cells:
        """The cells that the newest of `models` makes certain."""
        newest = len(models) - 1
        intervals = self._intervals(models, None)
        if self._models == "matrix":
            return {newest: intervals}
        if not newest:
            return {}
        ends = _ends(models)
        certain = tuple(i for i in intervals if ends[newest - 1] <= i.anchor < ends[newest])
        return {newest if self._models == "train" else newest - 1: certain}

    def whole(self, models: Sequence[TrainedModel], stream_end: int | None) -> Cells:
        """Every cell, once all models are known.

        Args: models: in the order in which they were trained. stream_end: first time that no sample of the run has reached; None: it had
        no sample.
        """
        intervals = self._intervals(models, stream_end)
        if self._models == "matrix":
            return dict.fromkeys(range(len(models)), intervals)
        cells: dict[int, list[EvalInterval]] = {}
        ends = _ends(models)
        for interval in intervals:
            if (chosen := model_at(ends, interval.anchor, following=self._models == "train")) >= 0:
                cells.setdefault(chosen, []).append(interval)
        return {index: tuple(found) for index, found in sorted(cells.items())}

    def rest(self, models: Sequence[TrainedModel], stream_end: int | None) -> Cells:
        """The cells that `after_training` has not returned on the way to `models`. Args: as for `whole`."""
        asked: dict[int, set[EvalInterval]] = {}
        for count in range(1, len(models) + 1):
            for index, intervals in self.after_training(models[:count]).items():
                asked.setdefault(index, set()).update(intervals)
        whole = self.whole(models, stream_end)
        return {index: tuple(i for i in found if i not in asked.get(index, ())) for index, found in whole.items()}

    def _intervals(self, models: Sequence[TrainedModel], stream_end: int | None) -> tuple[EvalInterval, ...]:
        if self._fixed is not None:
            return self._fixed
        context = IntervalContext(tuple(model.training_interval for model in models), stream_end)
        return tuple(self._strategy.intervals(context))


class EvaluationSchedule:
    """The evaluations that all handlers of an `evaluation` section ask for, by the moment at which they are due."""

    def __init__(self, evaluation: Mapping[str, Any] | None) -> None:
        self._plans = [(h, EvaluationPlan(h.models, build_strategy(h.strategy))) for h in load_handlers(evaluation)]

    def after_training(self, models: Sequence[TrainedModel]) -> list[EvaluationTask]:
        """Due now that the newest of `models` is stored."""
        return [
            task
            for handler, plan in self._plans
            if handler.execution_time == "after_training"
            for task in _tasks(handler, plan.after_training(models), models, models[-1].trigger_id)
        ]

    def at_end(self, models: Sequence[TrainedModel], stream_end: int | None) -> list[EvaluationTask]:
        """Due when no more models come. Args: as for `EvaluationPlan.whole`."""
        tasks: list[EvaluationTask] = []
        for handler, plan in self._plans:
            if handler.execution_time != "manual":
                cells = plan.rest if handler.execution_time == "after_training" else plan.whole
                tasks += _tasks(handler, cells(models, stream_end), models, "end")
        return tasks

    def of_run(self, models: Sequence[TrainedModel], stream_end: int | None) -> list[EvaluationTask]:
        """All that a run with these models makes, from its first training to its end. Args: as for `EvaluationPlan.whole`."""
        early = [task for count in range(1, len(models) + 1) for task in self.after_training(models[:count])]
        return [*early, *(self.at_end(models, stream_end) if models else ())]

    def requested(
        self, names: Collection[str], models: Sequence[TrainedModel], stream_end: int | None, when: When
    ) -> list[EvaluationTask]:
        """Return the tasks that the user asked for: those of the handlers `names`, or of all `manual` handlers.

        Args: models: all of the run. stream_end: first time that no sample of the run has reached; None: it had no sample. when: the request.
        """
        return [
            task
            for handler, plan in self._plans
            if (handler.name in names if names else handler.execution_time == "manual")
            for task in _tasks(handler, plan.whole(models, stream_end), models, when)
        ]


def _tasks(handler: EvaluationHandler, cells: Cells, models: Sequence[TrainedModel], when: When) -> Iterator[EvaluationTask]:
    for index, intervals in cells.items():
        for dataset in handler.datasets if intervals else ():
            yield EvaluationTask(handler.name, dataset, when, models[index].trigger_id, models[index].model_id, intervals)


class TrainedModels:
    """The models of a run, trigger by trigger. Samples of a trigger that trained nothing count to the next model's."""

    def __init__(self, triggers: Iterable[TriggerRecord] = ()) -> None:
        self.models: list[TrainedModel] = []
        """In order of their triggers."""
        self._first: int | None = None
        self._last: int | None = None
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


def trained_models(triggers: Iterable[TriggerRecord]) -> list[TrainedModel]:
    """The models of these triggers, in order."""
    return TrainedModels(triggers).models


def _ends(models: Sequence[TrainedModel]) -> list[int]:
    return [model.data_end for model in models]
