"""Windows around the points in time of a fixed schedule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from modyn.config.base import Section
from modyn.config.durations import SECONDS, Duration, Timestamp
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, EvalInterval
from modyn.supervisor.evaluation.base import EvaluationStrategy
from modyn.supervisor.evaluation.slicing import MAX_INTERVALS

_END = r"([+-]?)\s*(\d+)\s*([smhdwy])|{inf}"
_WINDOW = re.compile(rf"\s*([\[(])\s*(?:{_END.format(inf='-inf')})\s*[;,]\s*(?:{_END.format(inf=r'[+]?inf')})\s*([\])])\s*")


@dataclass(frozen=True, slots=True)
class AnchorWindow:
    """Seconds [left, right) relative to an anchor: whole numbers, -inf or inf."""

    left: float
    right: float


def parse_window(value: object) -> AnchorWindow:
    """Parse a window such as `[-2d; +0d]`: two offsets with a unit, -inf or +inf; `[` and `]` include an end of the window, `(` and `)` exclude it.

    Raises: ValueError: the text is invalid, or the window contains no second.

    >>> parse_window("[-2d; +0d]")
    AnchorWindow(left=-172800, right=1)
    >>> parse_window("(-inf; 1h)")
    AnchorWindow(left=-inf, right=3600)
    """
    match = _WINDOW.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f"{value!r} is not an interval; write two offsets with units s m h d w y in brackets, for example '[-2d; +0d]' "
            "or '(-inf; 0d]'"
        )
    opening, left_sign, left, left_unit, right_sign, right, right_unit, closing = match.groups()
    # `AnchorWindow` includes its left end and excludes its right end. Therefore, `(` and `]` add one second.
    window = AnchorWindow(
        -inf if left is None else _seconds(left_sign, left, left_unit) + (opening == "("),
        inf if right is None else _seconds(right_sign, right, right_unit) + (closing == "]"),
    )
    if window.left >= window.right:
        raise ValueError(f"{value!r} holds no second; its left end must be before its right end")
    return window


def _seconds(sign: str, number: str, unit: str) -> int:
    return int(number) * SECONDS[unit] * (-1 if sign == "-" else 1)


class PeriodicConfig(Section):
    """Options of windows around start_timestamp, start_timestamp + every, … until end_timestamp (inclusive)."""

    every: Duration = Field(ge=1, description="time between two anchors", examples=["1y"])
    start_timestamp: Timestamp = Field(description="first anchor", examples=["2010-01-01"])
    end_timestamp: Timestamp = Field(description="latest time of an anchor", examples=["2020-01-01"])
    interval: Annotated[AnchorWindow, BeforeValidator(parse_window, json_schema_input_type=str)] = Field(
        description="the window around each anchor, as offsets; `[ ]` include the end, `( )` exclude it; ±inf is allowed",
        examples=["[-2d; +0d]"],
    )

    @model_validator(mode="after")
    def _range(self) -> PeriodicConfig:
        if self.start_timestamp > self.end_timestamp:
            raise ValueError(f"end_timestamp ({self.end_timestamp}) must not be before start_timestamp ({self.start_timestamp})")
        if (number := (self.end_timestamp - self.start_timestamp) // self.every + 1) > MAX_INTERVALS:
            raise ValueError(f"every gives {number} anchors; at most {MAX_INTERVALS} are allowed")
        return self


class PeriodicEvalStrategy(EvaluationStrategy):
    """One window around each point in time of a fixed schedule; the point is the anchor. Windows may overlap.

    >>> config = PeriodicConfig(every=10, start_timestamp=0, end_timestamp=20, interval="[-5s; +5s)")
    >>> [(i.start, i.end, i.anchor) for i in PeriodicEvalStrategy(config).intervals()]
    [(-5, 5, 0), (5, 15, 10), (15, 25, 20)]
    """

    Config: ClassVar[type[Section]] = PeriodicConfig
    config: PeriodicConfig

    def intervals(self) -> Iterator[EvalInterval]:
        """Return one window for each anchor, clipped to the range of int64."""
        window = self.config.interval
        for anchor in range(self.config.start_timestamp, self.config.end_timestamp + 1, self.config.every):
            start, end = max(anchor + window.left, MIN_TIMESTAMP), min(anchor + window.right, MAX_TIMESTAMP)
            if start < end:
                yield EvalInterval(int(start), int(end), anchor)
