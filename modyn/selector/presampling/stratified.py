"""A random part of the window with the same shares of classes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pydantic import Field

from modyn.selector.presampling import ColumnName, PresamplingConfig, PresamplingPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow
from modyn.selector.window.column_strata import ColumnStrata
from modyn.selector.window.quotas import quotas
from modyn.selector.window.strata import Column, count_strata, draw_from_strata, label_strata, new_seed


class StratifiedConfig(PresamplingConfig):
    """Options of Stratified."""

    column: ColumnName | None = Field(
        None, description="column of the dataset whose shares of values are kept, as for `ColumnBalanced`; none: shares of labels"
    )


class StratifiedPresampling(PresamplingPolicy):
    """Keeps `ratio` of the window. The share of each label is the same as in the window, exact to one sample, and each label keeps at least one
    sample.

    Samples of a label are drawn uniformly. If the target size is less than the number of labels, labels with the largest shares get samples first.
    With `column`, the values of this column replace the labels.

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> presample({"strategy": "Stratified", "ratio": 50}, [0, 0, 0, 0, 0, 0, 1, 1])
    [[0, 1, 5, 6]]
    """

    Config = StratifiedConfig
    config: StratifiedConfig

    @property
    def columns(self) -> Mapping[str, str]:
        """The column, if the options name one."""
        return {"column": self.config.column} if self.config.column is not None else {}

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """Select `target_size` samples of the window, at most `limit`, divided by the counts of labels or values."""
        by, generator = self.config.column, context.generator()
        column: Column = partial(label_strata, window) if by is None else ColumnStrata(window, context, by)
        strata = count_strata(column, "labels" if by is None else "values of the column")
        size = min(self.config.target_size(len(window)), limit)
        shares = quotas(strata.counts, size, generator, weights=strata.counts.tolist(), least=1)
        return draw_from_strata(window, column, strata, shares, new_seed(generator))
