"""Candidates drawn at random, each once before any twice."""

from __future__ import annotations

from modyn.selector.presampling import PresamplingConfig, PresamplingPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow
from modyn.selector.window.used_samples import UsedSamples


class RandomNoReplacementPresampling(PresamplingPolicy):
    """Keeps `ratio` of the window, drawn from the samples that no trigger had in this epoch; an epoch ends when all of the window were drawn.

    The trigger in which an epoch ends takes what is left of it and draws the rest from the other samples, for the next epoch. New samples
    belong to the epoch in which they come. Which were drawn is kept in a file of one bit a sample of the stream. Warm-up triggers count for no epoch.
    """

    Config = PresamplingConfig
    needs_history = True

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """`target_size` samples of the window, at most `limit`, as few as possible of them drawn before."""
        used = UsedSamples(context.files, window)
        size = min(self.config.target_size(len(window)), limit)
        left = min(size, used.num_unused)
        return used.select(left, size - left, context.generator(), anew=left < size)
