"""All of the history alike."""

from __future__ import annotations

import numpy as np

from modyn.config.base import Section
from modyn.records import Int64Array
from modyn.selector.history import DueSteps, HistoryPolicy
from modyn.selector.window import SelectionContext, SelectionWindow


class UniformOptions(Section):
    """It has none."""


class UniformHistory(HistoryPolicy):
    """Draws each step's samples uniformly at random from all before its new ones, without replacement (Continuous Training of Machine Learning
    Pipelines, section 4.2: the data manager's sample)."""

    Config = UniformOptions

    def draw(self, window: SelectionWindow, steps: DueSteps, size: int, context: SelectionContext) -> Int64Array:
        """As the base says."""
        return draw_between(np.zeros(len(steps), np.int64), steps.begins[:-1], size, context.generator())


def draw_between(starts: Int64Array, ends: Int64Array, size: int, generator: np.random.Generator) -> Int64Array:
    """`size` numbers of each range [start, end), uniformly, without replacement where there are so many: int64 (ranges, size).

    >>> draw_between(np.array([5]), np.array([8]), 3, np.random.default_rng(0)).tolist()
    [[5, 6, 7]]
    """
    rows = [
        start + np.sort(generator.choice(end - start, size, replace=end - start < size, shuffle=False))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return np.array(rows, np.int64).reshape(-1, size)
