"""Draws uniformly from the newest part of the history."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from modyn.config.base import Section
from modyn.records import Int64Array
from modyn.selector.history import DueSteps, HistoryPolicy
from modyn.selector.history.uniform import draw_between
from modyn.selector.window import SelectionContext, SelectionWindow


class WindowOptions(Section):
    """Options of Window."""

    num_samples: int = Field(
        ge=1, description="number of samples before the new ones of a step from which it may draw", examples=[100_000]
    )


class WindowHistory(HistoryPolicy):
    """Draws the samples of each step uniformly at random, without replacement, from the `num_samples` samples before the new samples of the step.

    >>> from modyn.testing.fake_selector import example_history
    >>> example_history({"strategy": "Window", "num_samples": 3})
    [6, 7, 4, 5, 8, 9, 6, 7]
    """

    Config = WindowOptions
    config: WindowOptions

    def draw(self, window: SelectionWindow, steps: DueSteps, size: int, context: SelectionContext) -> Int64Array:
        """Draw samples; see `HistoryPolicy.draw`."""
        ends = steps.begins[:-1]
        return draw_between(np.maximum(ends - self.config.num_samples, 0), ends, size, context.generator())
