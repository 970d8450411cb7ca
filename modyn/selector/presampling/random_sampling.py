"""Candidates drawn uniformly at random, independently for each trigger."""

from __future__ import annotations

from modyn.selector.presampling import PresamplingConfig, PresamplingPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow, uniform


class RandomPresampling(PresamplingPolicy):
    """Keeps `ratio` of the window, uniformly at random without replacement. A later trigger may draw a sample again.

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> presample({"strategy": "Random", "ratio": 50}, [0] * 4, [0] * 4)
    [[1, 3], [1, 4, 6, 7]]
    """

    Config = PresamplingConfig

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """Select `target_size` samples of the window, at most `limit`, with the generator of the trigger."""
        return uniform(window, min(self.config.target_size(len(window)), limit), context.generator())
