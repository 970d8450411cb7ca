"""What a run decides by itself, as pure functions: where batches are split, what a training starts from, which evaluations are due."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from modyn.errors import UserCodeError
from modyn.records import EvalInterval, Interval, SampleBatch
from modyn.supervisor.evaluation.base import EvaluationStrategy, IntervalContext
from modyn.supervisor.evaluation.handlers import ModelChoice


@dataclass(frozen=True, slots=True)
class Pending:
    """The samples since the last trigger: how many, and the smallest and largest of their timestamps."""

    num_samples: int = 0
    first_timestamp: int | None = None
    last_timestamp: int | None = None

    def plus(self, samples: SampleBatch) -> Pending:
        """With `samples` after them."""
        if len(samples) == 0:
            return self
        first, last = int(samples.timestamps.min()), int(samples.timestamps.max())
        if self.first_timestamp is not None and self.last_timestamp is not None:
            first, last = min(first, self.first_timestamp), max(last, self.last_timestamp)
        return Pending(self.num_samples + len(samples), first, last)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a run stands after a whole batch: everything that it needs to go on from there."""

    position: int = 0
    """Samples of the stream before it."""
    last: tuple[int, int] | None = None
    """(timestamp, key) of the newest sample before it."""
    max_timestamp: int | None = None
    """The largest timestamp before it."""
    pending: Pending = Pending()
    num_triggers: int = 0
    stream_ended: bool = False

    def plus(self, samples: SampleBatch) -> Cursor:
        """After `samples`, if nothing fires in between."""
        if len(samples) == 0:
            return self
        largest = int(samples.timestamps.max())
        return replace(
            self,
            position=self.position + len(samples),
            last=(int(samples.timestamps[-1]), int(samples.keys[-1])),
            max_timestamp=largest if self.max_timestamp is None else max(largest, self.max_timestamp),
            pending=self.pending.plus(samples),
        )

    def after_trigger(self) -> Cursor:
        return replace(self, pending=Pending(), num_triggers=self.num_triggers + 1)


def split(num_samples: int, cuts: Iterable[int], policy: str) -> Iterator[tuple[int, int, bool]]:
    """(start, stop, fires) of the parts of a batch, in order; a trigger fires after each part but the last.

    Lazily: the policy is asked for its next cut after the part before has been dealt with. UserCodeError when cuts do not ascend.

    >>> list(split(5, [0, 2], "MyTrigger"))
    [(0, 0, True), (0, 2, True), (2, 5, False)]
    """
    start = 0
    previous = -1
    for cut in cuts:
        if not previous < cut <= num_samples:
            raise UserCodeError(
                f"trigger {policy} fired at position {cut} of a batch of {num_samples} samples, after {previous}: "
                "positions must ascend within [0, length]; correct its `cuts`"
            )
        yield start, cut, True
        start = previous = cut
    yield start, num_samples, False


def parent_model(earlier_models: Sequence[int], use_previous_model: bool, initial_model_id: int | None) -> int | None:
    """The stored model that the next training starts from, given those of the triggers before it; None: initial weights."""
    if use_previous_model and earlier_models:
        return earlier_models[-1]
    return initial_model_id


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """What evaluation needs to know of a trigger that has produced a model."""

    trigger_id: int
    model_id: int
    training_interval: Interval
    """Times of the samples that came since the trigger before, [first, last + 1)."""


When = int | Literal["end", "manual"]
"""When an evaluation becomes due: once the model of this trigger is stored, at the end of the run, or by hand."""


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
    def step(self) -> tuple[int, str]:
        """Trigger and name of the step in the journal."""
        return self.trigger_id, f"{self.handler}/{self.dataset}/{self.when}"


Cells = dict[int, tuple[EvalInterval, ...]]
"""Intervals to evaluate, by the index of the model."""


class EvaluationPlan:
    """Which cells of the matrix of models × intervals one handler asks for, and when each is known.

    A cell is evaluated as soon as it is certain: a model's own row once it is trained; under `active` the intervals up to the next
    training once that is done. What only the end of the run can tell (the last active model; intervals that depend on the triggers) is
    left for the end.
    """

    def __init__(self, models: ModelChoice, strategy: EvaluationStrategy) -> None:
        self._models = models
        self._strategy = strategy
        self._fixed = None if strategy.depends_on_run else tuple(strategy.intervals(IntervalContext()))

    def after_training(self, models: Sequence[TrainedModel]) -> Cells:
        """What the newest of `models` makes certain."""
        newest = len(models) - 1
        intervals = self._intervals(models, None)
        if self._models == "matrix":
            return {newest: intervals}
        ends = data_ends(models)
        before = ends[newest - 1] if newest else None
        certain = tuple(i for i in intervals if (before is None or before <= i.anchor) and i.anchor < ends[newest])
        if self._models == "train":
            return {newest: certain}
        return {newest - 1: certain} if newest else {}

    def whole(self, models: Sequence[TrainedModel], stream_end: int | None) -> Cells:
        """Every cell, once all models are known."""
        intervals = self._intervals(models, stream_end)
        if self._models == "matrix":
            return dict.fromkeys(range(len(models)), intervals)
        cells: dict[int, list[EvalInterval]] = {}
        ends = data_ends(models)
        for interval in intervals:
            active = active_model(ends, interval.anchor)
            chosen = active if self._models == "active" else min(active + 1, len(models) - 1)
            if chosen >= 0:
                cells.setdefault(chosen, []).append(interval)
        return {index: tuple(found) for index, found in sorted(cells.items())}

    def rest(self, models: Sequence[TrainedModel], stream_end: int | None) -> Cells:
        """What `after_training` has not asked for on the way to `models`."""
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


def data_ends(models: Sequence[TrainedModel]) -> list[int]:
    """For each model, the first time that no sample up to its trigger has reached. Running maxima: late samples do not make a
    newer model count as older."""
    return list(accumulate((model.training_interval.end for model in models), max))


def active_model(ends: Sequence[int], anchor: int) -> int:
    """Index of the newest model whose data ends before `anchor` (SIGMOD'25, section 3.1); -1 if there is none.

    >>> [active_model([10, 20, 20], anchor) for anchor in (9, 10, 19, 20, 99)]
    [-1, 0, 0, 2, 2]
    """
    return bisect_right(ends, anchor) - 1
