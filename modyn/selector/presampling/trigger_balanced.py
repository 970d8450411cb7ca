"""The same number of samples of each trigger."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from modyn.records import Int64Array
from modyn.selector.presampling.balanced import BalancedPresampling
from modyn.selector.window import SelectionContext, SelectionWindow
from modyn.selector.window.strata import Column


class TriggerBalancedPresampling(BalancedPresampling):
    """Keeps `ratio` of the window, with the same number of samples of each trigger's new data, as far as a trigger has enough new data.

    The new data of a trigger are the samples since the previous trigger (Modyn, SIGMOD 2025, section 5.2.1). Triggers without new data have no share.

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> presample({"strategy": "TriggerBalanced", "ratio": 50}, [0] * 6, [0] * 2)
    [[0, 2, 4], [1, 3, 6, 7]]
    """

    what = "triggers"
    needs_history = True

    def column(self, window: SelectionWindow, context: SelectionContext) -> Column:
        """Return the strata of the window: for each sample, the first trigger that covers it."""
        ends = context.trigger_ends()

        def triggers() -> Iterator[Int64Array]:
            return (np.searchsorted(ends, positions, side="right") for positions in window.positions())

        return triggers
