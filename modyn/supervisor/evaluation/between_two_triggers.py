"""The time from one trigger to the next: how long a model is in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from modyn.config.base import Section
from modyn.records import EvalInterval
from modyn.supervisor.evaluation.base import EvaluationStrategy, TrainedModel


class BetweenTwoTriggersConfig(Section):
    """Has no options."""


class BetweenTwoTriggersEvalStrategy(EvaluationStrategy):
    """One interval per trigger, from the end of the previous trigger's data to the end of its own, and one from there to the stream's end.

    The first starts where the data starts. Ends are running maxima, because late samples may make a trigger's data end before the
    previous one's; intervals that are empty then are left out. The anchor is the start, so that the model in use is the one trained
    on everything before. (Modyn, SIGMOD'25, section 3.1.)

    >>> from modyn.records import Interval
    >>> strategy = BetweenTwoTriggersEvalStrategy(BetweenTwoTriggersConfig())
    >>> models = [TrainedModel(0, 1, Interval(0, 10), 10), TrainedModel(1, 2, Interval(10, 30), 30)]
    >>> list(strategy.after_training(models)), list(strategy.at_end(models, 35))
    ([EvalInterval(start=10, end=30, anchor=10)], [EvalInterval(start=30, end=35, anchor=30)])
    """

    Config: ClassVar[type[Section]] = BetweenTwoTriggersConfig

    def after_training(self, models: Sequence[TrainedModel]) -> Iterator[EvalInterval]:
        """From the end of the data before the newest model to the end of its own."""
        start = models[-2].data_end if len(models) > 1 else models[0].training_interval.start
        return _between(start, models[-1].data_end)

    def at_end(self, models: Sequence[TrainedModel], stream_end: int) -> Iterator[EvalInterval]:
        """From there to the end of the stream."""
        return _between(models[-1].data_end, stream_end)


def _between(start: int, end: int) -> Iterator[EvalInterval]:
    if start < end:
        yield EvalInterval(start, end, anchor=start)
