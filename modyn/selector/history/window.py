"""The newest part of the history."""

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

    num_samples: int = Field(ge=1, description="samples before a step's new ones that it may draw from", examples=[100_000])


class WindowHistory(HistoryPolicy):
    """Draws each step's samples uniformly at random, without replacement, from the `num_samples` that came right before its new ones."""

    Config = WindowOptions
    config: WindowOptions

    def draw(self, window: SelectionWindow, steps: DueSteps, size: int, context: SelectionContext) -> Int64Array:
        """As the base says."""
        ends = steps.begins[:-1]
        return draw_between(np.maximum(ends - self.config.num_samples, 0), ends, size, context.generator())
