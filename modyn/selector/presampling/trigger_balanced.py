"""As many samples of each trigger."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from modyn.records import Int64Array
from modyn.selector.presampling.balanced import BalancedPresampling
from modyn.selector.window import SelectionContext, SelectionWindow
from modyn.selector.window.strata import Column


class TriggerBalancedPresampling(BalancedPresampling):
    """Keeps `ratio` of the window, the same number of samples of each trigger's new data as far as it has so many.

    The new data of a trigger are the samples that came since the one before it (Modyn, SIGMOD 2025, section 5.2.1). Triggers without new data have
    no share.
    """

    what = "triggers"
    needs_history = True

    def column(self, window: SelectionWindow, context: SelectionContext) -> Column:
        """The number of the first trigger that covers the sample."""
        ends = context.trigger_ends()

        def triggers() -> Iterator[Int64Array]:
            return (np.searchsorted(ends, positions, side="right") for positions in window.positions())

        return triggers
