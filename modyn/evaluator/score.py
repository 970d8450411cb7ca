"""What an evaluation gives: one number for one metric on one interval."""

from __future__ import annotations

from dataclasses import dataclass

from modyn.records import Interval


@dataclass(frozen=True, slots=True)
class Score:
    """The value of one metric over the samples of one interval; None: undefined, `note` says why."""

    interval: Interval
    metric: str
    """The label of the metric."""
    value: float | None
    note: str
    num_samples: int
    """Samples that the value was computed over."""
    num_listed: int
    """Samples that storage knew in the interval when the evaluation listed them."""
