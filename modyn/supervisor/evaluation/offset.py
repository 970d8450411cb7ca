"""Intervals before, on and after the data of each training."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from modyn.config.base import Section
from modyn.config.durations import SECONDS
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, EvalInterval, Interval
from modyn.supervisor.evaluation.base import EvaluationStrategy, IntervalContext

OFFSET_PATTERN = r"^\s*([+-]?)\s*(inf|(\d+)\s*([smhdwy]))\s*$"


def _offset(text: str) -> str:
    if re.fullmatch(OFFSET_PATTERN, text) is None:
        raise ValueError(f"{text!r} is not an offset; write -inf, inf, or <int> and one of s m h d w y, for example '-1d'")
    return text


class OffsetConfig(Section):
    """Offsets to the data of a training."""

    offsets: list[Annotated[str, AfterValidator(_offset)]] = Field(
        min_length=1,
        description="`1d`: the day after the data, `-1d`: the day before it, `inf`, `-inf`: all after or before it, `0d`: its own time",
        examples=[["-1d", "0d", "1d", "inf"]],
    )


class OffsetEvalStrategy(EvaluationStrategy):
    """For each training and offset, the interval that lies before, on or after the data of the training.

    The anchor is the end of that data, whatever the offset, so that with `models: active` each model is evaluated around its own data.

    >>> strategy = OffsetEvalStrategy(OffsetConfig(offsets=["-5s", "0s", "inf"]))
    >>> [(i.start, i.end, i.anchor) for i in strategy.intervals(IntervalContext((Interval(10, 20),)))]
    [(5, 10, 20), (10, 20, 20), (20, 9223372036854775807, 20)]
    """

    Config: ClassVar[type[Section]] = OffsetConfig
    depends_on_run: ClassVar[bool] = True
    config: OffsetConfig

    def intervals(self, context: IntervalContext) -> Iterator[EvalInterval]:
        """Per trigger in the order of `offsets`, each once; clipped to 64 bits of seconds, empty ones left out."""
        seen: set[EvalInterval] = set()
        anchor = MIN_TIMESTAMP
        for data in context.training_intervals:
            anchor = max(anchor, data.end)
            for offset in self.config.offsets:
                around = _around(data, offset)
                interval = EvalInterval(around.start, around.end, anchor)
                if around.start < around.end and interval not in seen:
                    seen.add(interval)
                    yield interval


def _around(data: Interval, offset: str) -> Interval:
    match = re.fullmatch(OFFSET_PATTERN, offset)
    assert match is not None, "the configuration has been checked"
    sign, _, number, unit = match.groups()
    seconds = None if number is None else int(number) * SECONDS[unit]
    if seconds == 0:
        return data
    if sign == "-":
        return Interval(MIN_TIMESTAMP if seconds is None else max(data.start - seconds, MIN_TIMESTAMP), data.start)
    return Interval(data.end, MAX_TIMESTAMP if seconds is None else min(data.end + seconds, MAX_TIMESTAMP))
