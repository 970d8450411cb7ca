"""Candidates drawn uniformly at random, anew for each trigger."""

from __future__ import annotations

from modyn.selector.presampling import PresamplingConfig, PresamplingPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow, uniform


class RandomPresampling(PresamplingPolicy):
    """Keeps `ratio` of the window, uniformly at random without replacement; a sample may be drawn again by a later trigger."""

    Config = PresamplingConfig

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """`target_size` samples of the window, at most `limit`, drawn by the generator of the trigger."""
        return uniform(window, min(self.config.target_size(len(window)), limit), context.generator())
