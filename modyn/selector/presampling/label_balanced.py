"""As many samples of each label."""

from __future__ import annotations

from functools import partial

from modyn.selector.presampling.balanced import BalancedPresampling
from modyn.selector.window import SelectionContext, SelectionWindow
from modyn.selector.window.strata import Column, label_strata


class LabelBalancedPresampling(BalancedPresampling):
    """Keeps `ratio` of the window, the same number of samples of each label (as storage has it) as far as there are so many.

    Where a label has fewer, it gives all, and the others share what it leaves (Modyn, SIGMOD 2025, section 5.2.1).
    """

    what = "labels"

    def column(self, window: SelectionWindow, context: SelectionContext) -> Column:
        """The labels; of float labels their bits."""
        return partial(label_strata, window)
