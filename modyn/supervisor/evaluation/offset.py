"""Intervals before, on and after the data of each training."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from modyn.config.base import Section
from modyn.config.durations import SECONDS
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, EvalInterval, Interval
from modyn.supervisor.evaluation.base import EvaluationStrategy, TrainedModel

OFFSET_PATTERN = r"^\s*([+-]?)\s*(inf|(\d+)\s*([smhdwy]))\s*$"


def _offset(text: str) -> str:
    if re.fullmatch(OFFSET_PATTERN, text) is None:
        raise ValueError(f"{text!r} is not an offset; write -inf, inf, or <int> and one of s m h d w y, for example '-1d'")
    return text


class OffsetConfig(Section):
    """Offsets from the data of a training."""

    offsets: list[Annotated[str, AfterValidator(_offset)]] = Field(
        min_length=1,
        description="`1d`: the day after the data; `-1d`: the day before them; `inf`, `-inf`: all time after or before them; `0d`: their own "
        "time",
        examples=[["-1d", "0d", "1d", "inf"]],
    )


class OffsetEvalStrategy(EvaluationStrategy):
    """One interval for each training and offset: before, during or after the time of the training's data.

    The anchor of every interval is the largest timestamp before the training, plus 1. Therefore, `models: active` evaluates each model around its
    own data, and late data never gives a model an earlier anchor than the previous model.

    >>> strategy = OffsetEvalStrategy(OffsetConfig(offsets=["-5s", "0s", "inf"]))
    >>> found = strategy.after_training([TrainedModel(0, 1, Interval(10, 20), data_end=20)])
    >>> [(i.start, i.end, i.anchor) for i in found]
    [(5, 10, 20), (10, 20, 20), (20, 9223372036854775807, 20)]
    """

    Config: ClassVar[type[Section]] = OffsetConfig
    config: OffsetConfig

    def after_training(self, models: Sequence[TrainedModel]) -> Iterator[EvalInterval]:
        """Return the intervals in the order of `offsets`, clipped to the range of int64, without empty intervals."""
        for offset in self.config.offsets:
            around = _around(models[-1].training_interval, offset)
            if around.start < around.end:
                yield EvalInterval(around.start, around.end, models[-1].data_end)


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
