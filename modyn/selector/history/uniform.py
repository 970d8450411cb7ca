"""Draws uniformly from the whole history."""

from __future__ import annotations

import numpy as np

from modyn.config.base import Section
from modyn.records import Int64Array
from modyn.selector.history import DueSteps, HistoryPolicy
from modyn.selector.window import SelectionContext, SelectionWindow


class UniformOptions(Section):
    """Uniform has no options."""


class UniformHistory(HistoryPolicy):
    """Draws the samples of each step uniformly at random from all earlier samples, without replacement (Continuous Training of Machine Learning
    Pipelines, section 4.2: the data manager's sample).

    >>> from modyn.testing.fake_selector import example_history
    >>> example_history({"strategy": "Uniform"})
    [6, 7, 2, 5, 8, 9, 4, 6]
    """

    Config = UniformOptions

    def draw(self, window: SelectionWindow, steps: DueSteps, size: int, context: SelectionContext) -> Int64Array:
        """Draw samples; see `HistoryPolicy.draw`."""
        return draw_between(np.zeros(len(steps), np.int64), steps.begins[:-1], size, context.generator())


def draw_between(starts: Int64Array, ends: Int64Array, size: int, generator: np.random.Generator) -> Int64Array:
    """Draw `size` numbers from each range [start, end) uniformly, without replacement if the range has enough numbers: int64 (ranges, size).

    >>> draw_between(np.array([5]), np.array([8]), 3, np.random.default_rng(0)).tolist()
    [[5, 6, 7]]
    """
    rows = [
        start + np.sort(generator.choice(end - start, size, replace=end - start < size, shuffle=False))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return np.array(rows, np.int64).reshape(-1, size)
