"""The time from one trigger to the next: how long a model is in use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import ClassVar

from modyn.config.base import Section
from modyn.records import EvalInterval
from modyn.supervisor.evaluation.base import EvaluationStrategy, IntervalContext


class BetweenTwoTriggersConfig(Section):
    """Has no options."""


class BetweenTwoTriggersEvalStrategy(EvaluationStrategy):
    """One interval per trigger, from the end of the previous trigger's data to the end of its own, and one from there to the stream's end.

    The first starts where the data starts. Ends are running maxima, because late samples may make a trigger's data end before the
    previous one's; intervals that are empty then are left out. The anchor is the start, so that the model in use is the one trained
    on everything before. (Modyn, SIGMOD'25, section 3.1.)

    >>> from modyn.records import Interval
    >>> context = IntervalContext((Interval(0, 10), Interval(10, 30)), stream_end=35)
    >>> [(i.start, i.end) for i in BetweenTwoTriggersEvalStrategy(BetweenTwoTriggersConfig()).intervals(context)]
    [(0, 10), (10, 30), (30, 35)]
    """

    Config: ClassVar[type[Section]] = BetweenTwoTriggersConfig
    depends_on_run: ClassVar[bool] = True

    def intervals(self, context: IntervalContext) -> Iterator[EvalInterval]:
        """None before the first trigger; the last one, to `stream_end`, only once the stream has ended."""
        if not context.training_intervals:
            return
        ends = list(accumulate((interval.end for interval in context.training_intervals), max))
        if context.stream_end is not None:
            ends.append(max(ends[-1], context.stream_end))
        start = context.training_intervals[0].start
        for end in ends:
            if start < end:
                yield EvalInterval(start, end, anchor=start)
                start = end
