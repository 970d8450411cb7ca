"""A random part of the window with its class shares."""

from __future__ import annotations

from functools import partial

from modyn.selector.presampling import PresamplingConfig, PresamplingPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow
from modyn.selector.window.quotas import quotas
from modyn.selector.window.strata import count_strata, draw_from_strata, label_strata, new_seed


class StratifiedPresampling(PresamplingPolicy):
    """Keeps `ratio` of the window with the shares that its labels have there, to the sample, and at least one sample of each label.

    Uniform within a label. Where the target size is less than the number of labels, labels with the largest shares come first.
    """

    Config = PresamplingConfig

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """`target_size` samples of the window, at most `limit`, divided by the labels' counts."""
        column, generator = partial(label_strata, window), context.generator()
        strata = count_strata(column, "labels")
        size = min(self.config.target_size(len(window)), limit)
        shares = quotas(strata.counts, size, generator, weights=strata.counts.tolist(), least=1)
        return draw_from_strata(window, column, strata, shares, new_seed(generator))
