"""Intervals from one trigger to the next trigger, in which one model is in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from modyn.config.base import Section
from modyn.records import EvalInterval
from modyn.supervisor.evaluation.base import EvaluationStrategy, TrainedModel


class BetweenTwoTriggersConfig(Section):
    """Options of BetweenTwoTriggersEvalStrategy, which has no options."""


class BetweenTwoTriggersEvalStrategy(EvaluationStrategy):
    """Intervals between the ends of the data of successive triggers. The first interval begins at the start of the data. The last interval runs from
    the end of the last trigger's data to the end of the stream.

    With late samples, a trigger's data may end before the data of the previous trigger. Therefore each end is the largest end so far, and empty
    intervals are left out. The anchor of an interval is its start. Therefore, the model in use was trained on all data before the interval.
    Source: Modyn, SIGMOD'25, section 3.1.

    >>> from modyn.records import Interval
    >>> strategy = BetweenTwoTriggersEvalStrategy(BetweenTwoTriggersConfig())
    >>> models = [TrainedModel(0, 1, Interval(0, 10), 10), TrainedModel(1, 2, Interval(10, 30), 30)]
    >>> list(strategy.after_training(models)), list(strategy.at_end(models, 35))
    ([EvalInterval(start=10, end=30, anchor=10)], [EvalInterval(start=30, end=35, anchor=30)])
    """

    Config: ClassVar[type[Section]] = BetweenTwoTriggersConfig

    def after_training(self, models: Sequence[TrainedModel]) -> Iterator[EvalInterval]:
        """Return the interval from the end of the previous model's data to the end of the newest model's data."""
        start = models[-2].data_end if len(models) > 1 else models[0].training_interval.start
        return _between(start, models[-1].data_end)

    def at_end(self, models: Sequence[TrainedModel], stream_end: int) -> Iterator[EvalInterval]:
        """Return the interval from the end of the newest model's data to the end of the stream."""
        return _between(models[-1].data_end, stream_end)


def _between(start: int, end: int) -> Iterator[EvalInterval]:
    if start < end:
        yield EvalInterval(start, end, anchor=start)
