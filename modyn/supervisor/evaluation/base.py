"""What an evaluation strategy is: it says from which times evaluation data is taken, and which time each interval stands for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from modyn.config.base import Section
from modyn.records import EvalInterval, Interval


@dataclass(frozen=True, slots=True)
class IntervalContext:
    """What is known of the run when intervals are asked for."""

    training_intervals: tuple[Interval, ...] = ()
    """For each trigger so far, in order, the times of the samples that came since the one before: [first, last + 1)."""
    stream_end: int | None = None
    """First time that no sample of the run has reached (last timestamp + 1); none while the stream goes on."""


class EvaluationStrategy(ABC):
    """An interval generation function (Modyn, SIGMOD'25, section 3.1). Pure: the same configuration and context give the same intervals.

    Intervals are never empty, and come in the order of their anchors. They may overlap.
    """

    Config: ClassVar[type[Section]]
    """Options of the strategy: the keys of the `strategy` section beside `type`."""
    depends_on_run: ClassVar[bool] = False
    """Whether the intervals depend on the triggers, so that they are only all known once the run has ended."""

    def __init__(self, config: Any) -> None:
        """Args: config: a checked `Config` of the strategy."""
        self.config = config

    @abstractmethod
    def intervals(self, context: IntervalContext) -> Iterator[EvalInterval]:
        """The intervals to evaluate on. Data is [start, end); `anchor` decides which model is active for it."""
