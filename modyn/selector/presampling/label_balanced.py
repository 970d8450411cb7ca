"""The same number of samples of each label."""

from __future__ import annotations

from functools import partial

from modyn.selector.presampling.balanced import BalancedPresampling
from modyn.selector.window import SelectionContext, SelectionWindow
from modyn.selector.window.strata import Column, label_strata


class LabelBalancedPresampling(BalancedPresampling):
    """Keeps `ratio` of the window, with the same number of samples of each label, as far as a label has enough samples. The policy uses the labels in
    storage.

    All samples of a rarer label are kept, and the other labels share the rest (Modyn, SIGMOD 2025, section 5.2.1).

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> presample({"strategy": "LabelBalanced", "ratio": 50}, [0, 0, 0, 0, 0, 0, 1, 1])
    [[1, 5, 6, 7]]
    """

    what = "labels"

    def column(self, window: SelectionWindow, context: SelectionContext) -> Column:
        """Return the strata of the window: the labels of the samples, or the bits of float labels."""
        return partial(label_strata, window)
