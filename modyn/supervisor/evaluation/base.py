"""What an evaluation strategy is: it says from which times evaluation data is taken, and which time each interval stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from modyn.config.base import Section
from modyn.records import EvalInterval, Interval


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trigger that has produced a model, as evaluation sees it."""

    trigger_id: int
    model_id: int
    training_interval: Interval
    """Times of the samples that came since the trigger before, [first, last + 1)."""
    data_end: int
    """As journalled with its trigger: no sample before it has reached this time."""


class EvaluationStrategy:
    """An interval generation function (Modyn, SIGMOD'25, section 3.1): overrides one or more of three questions, to which the answer is "none".

    Pure: the same configuration and arguments give the same intervals. Intervals are never empty, and come in the order of their anchors, from
    answer to answer. They may overlap; one that is given again counts once.
    """

    Config: ClassVar[type[Section]]
    """Options of the strategy: the keys of the `strategy` section beside `type`."""

    def __init__(self, config: Any) -> None:
        """Args: config: a checked `Config` of the strategy."""
        self.config = config

    def intervals(self) -> Iterator[EvalInterval]:
        """The intervals that do not depend on the run. Data is [start, end); `anchor` decides which model is active for it."""
        return iter(())

    def after_training(self, models: Sequence[TrainedModel]) -> Iterator[EvalInterval]:
        """The intervals that the newest model adds to those of the models before; asked once for each model.

        Args: models: those of the run so far, at least one, the newest last.
        """
        return iter(())

    def at_end(self, models: Sequence[TrainedModel], stream_end: int) -> Iterator[EvalInterval]:
        """The intervals that the end of the run adds.

        Args: models: all of the run, at least one. stream_end: first time that no sample of the run has reached (last timestamp + 1).
        """
        return iter(())
