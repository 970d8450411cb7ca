"""Intervals that the user lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from modyn.config.base import Section
from modyn.config.durations import Timestamp
from modyn.records import MAX_TIMESTAMP, EvalInterval
from modyn.supervisor.evaluation.base import EvaluationStrategy

Bounds = tuple[Timestamp, Timestamp | None]


def _not_empty(bounds: Bounds) -> Bounds:
    start, end = bounds
    if end is not None and start >= end:
        raise ValueError(f"[{start}, {end}) is empty; the end must be later than the start")
    return bounds


class StaticConfig(Section):
    """Options of StaticEvalStrategy: a list of intervals."""

    intervals: list[Annotated[Bounds, AfterValidator(_not_empty)]] = Field(
        min_length=1,
        description="pairs [start, end), without the end itself; `null`: no end",
        examples=[[["2010-01-01", "2011-01-01"], ["2011-01-01", None]]],
    )


class StaticEvalStrategy(EvaluationStrategy):
    """The listed intervals, ordered by start. The anchor is the start.

    >>> strategy = StaticEvalStrategy(StaticConfig(intervals=[(10, 20), (0, 5)]))
    >>> [(i.start, i.end) for i in strategy.intervals()]
    [(0, 5), (10, 20)]
    """

    Config: ClassVar[type[Section]] = StaticConfig
    config: StaticConfig

    def intervals(self) -> Iterator[EvalInterval]:
        """Return the listed intervals, sorted, without duplicates."""
        bounds = {(start, MAX_TIMESTAMP if end is None else end) for start, end in self.config.intervals}
        for start, end in sorted(bounds):
            yield EvalInterval(start, end, anchor=start)
