"""Base class of evaluation strategies. A strategy chooses the intervals of evaluation data, and the anchor of each interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from modyn.config.base import Section
from modyn.records import EvalInterval, Interval


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trigger that has produced a model, with the fields that evaluations need."""

    trigger_id: int
    model_id: int
    training_interval: Interval
    """Times of the samples that arrived since the previous trigger, [first, last + 1)."""
    data_end: int
    """Largest timestamp before the trigger, plus 1; see `TriggerRecord.data_end`."""


class EvaluationStrategy:
    """An interval generation function (Modyn, SIGMOD'25, section 3.1). A subclass overrides one or more of the three methods. By default, the
    methods return no intervals.

    The methods are pure: the same configuration and arguments give the same intervals. Intervals are never empty, and are returned in the order of
    their anchors, also across calls. Intervals may overlap; an interval that is returned twice counts once.
    """

    Config: ClassVar[type[Section]]
    """Options of the strategy: the keys of the `strategy` section besides `type`."""

    def __init__(self, config: Any) -> None:
        """Args: config: a checked `Config` of the strategy."""
        self.config = config

    def intervals(self) -> Iterator[EvalInterval]:
        """Return the intervals that do not depend on the run. The data are in [start, end). The `anchor` decides which model is active."""
        return iter(())

    def after_training(self, models: Sequence[TrainedModel]) -> Iterator[EvalInterval]:
        """Return the intervals that the newest model adds; called once for each model.

        Args: models: all models of the run so far, at least one, the newest last.
        """
        return iter(())

    def at_end(self, models: Sequence[TrainedModel], stream_end: int) -> Iterator[EvalInterval]:
        """Return the intervals that the end of the run adds.

        Args: models: all models of the run, at least one. stream_end: largest timestamp of the run, plus 1.
        """
        return iter(())
