"""Random candidates: each sample is drawn once before any sample is drawn twice."""

from __future__ import annotations

from modyn.selector.presampling import PresamplingConfig, PresamplingPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow
from modyn.selector.window.used_samples import UsedSamples


class RandomNoReplacementPresampling(PresamplingPolicy):
    """Keeps `ratio` of the window, drawn from the samples that no trigger of this epoch has drawn. An epoch ends when the whole window was drawn.

    If fewer samples remain in an epoch than a trigger needs, the trigger takes all remaining samples, and draws the rest of its set from the other
    samples, as the first draws of the next epoch. New samples join the current epoch. A file with one bit per sample of the stream stores which
    samples were drawn. Warm-up triggers do not count.

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> presample({"strategy": "RandomNoReplacement", "ratio": 50}, [0] * 4, [], [])
    [[0, 2], [1, 3], [0, 3]]
    """

    Config = PresamplingConfig
    needs_history = True

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """Select `target_size` samples of the window, at most `limit`, with as few previously drawn samples as possible."""
        used = UsedSamples(context.files, window)
        size = min(self.config.target_size(len(window)), limit)
        left = min(size, used.num_unused)
        return used.select(left, size - left, context.generator(), renew=left < size)
