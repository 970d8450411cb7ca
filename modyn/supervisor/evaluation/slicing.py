"""Tumbling windows over a fixed range of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field, model_validator

from modyn.config.base import Section
from modyn.config.durations import Duration, Timestamp
from modyn.records import EvalInterval
from modyn.supervisor.evaluation.base import EvaluationStrategy

MAX_INTERVALS = 100_000
"""Largest number of intervals. More intervals are refused, because they most likely come from a wrong unit of time."""


class SlicingConfig(Section):
    """Options of windows of length `eval_every` that divide [eval_start_from, eval_end_at)."""

    eval_every: Duration = Field(ge=1, description="length of a window", examples=["1y"])
    eval_start_from: Timestamp = Field(description="start of the first window", examples=["2010-01-01"])
    eval_end_at: Timestamp = Field(description="end of the last window (exclusive)", examples=["2020-01-01"])

    @model_validator(mode="after")
    def _range(self) -> SlicingConfig:
        if self.eval_start_from >= self.eval_end_at:
            raise ValueError(f"eval_end_at ({self.eval_end_at}) must be later than eval_start_from ({self.eval_start_from})")
        if (number := -(-(self.eval_end_at - self.eval_start_from) // self.eval_every)) > MAX_INTERVALS:
            raise ValueError(f"eval_every cuts the range into {number} windows; at most {MAX_INTERVALS} are allowed")
        return self


class SlicingEvalStrategy(EvaluationStrategy):
    """Consecutive windows [start, start + every); the last window is shorter if the range is not a multiple of `every`. The anchor is the start.

    >>> strategy = SlicingEvalStrategy(SlicingConfig(eval_every=10, eval_start_from=0, eval_end_at=25))
    >>> [(i.start, i.end) for i in strategy.intervals()]
    [(0, 10), (10, 20), (20, 25)]
    """

    Config: ClassVar[type[Section]] = SlicingConfig
    config: SlicingConfig

    def intervals(self) -> Iterator[EvalInterval]:
        """Return the windows from `eval_start_from` on."""
        every, end = self.config.eval_every, self.config.eval_end_at
        for start in range(self.config.eval_start_from, end, every):
            yield EvalInterval(start, min(start + every, end), anchor=start)
