"""The same number of samples of each value of a column of the dataset."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from modyn.selector.presampling import ColumnName
from modyn.selector.presampling.balanced import BalancedPresampling, BalancedPresamplingConfig
from modyn.selector.window import SelectionContext, SelectionWindow
from modyn.selector.window.column_strata import ColumnStrata
from modyn.selector.window.strata import Column


class ColumnBalancedConfig(BalancedPresamplingConfig):
    """Options of ColumnBalanced."""

    column: ColumnName = Field(
        description=(
            "column of the dataset to balance: its name in Parquet files; a field of JSON Lines (`meta.site` for a field of an inner "
            "object); its name or number, from 0, in CSV files"
        )
    )


class ColumnBalancedPresampling(BalancedPresampling):
    """Keeps `ratio` of the window, with the same number of samples of each value of `column`, as far as a value has enough samples.

    All samples of a rarer value are kept, and the other values share the rest (Modyn, SIGMOD 2025, section 5.2.1). Samples without a value form a
    stratum of their own. Values are compared as text: 1, 1.0 and "1" are equal. Storage reads each value once in a run, from the files of the
    dataset, in CSV, JSON Lines or Parquet.

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> site = lambda dataset, identity, column, keys: keys // 6  # of samples 0 to 5, and of 6 and 7
    >>> presample({"strategy": "ColumnBalanced", "column": "site", "ratio": 50}, [0] * 8, read_column=site)
    [[1, 5, 6, 7]]
    """

    Config = ColumnBalancedConfig
    config: ColumnBalancedConfig

    what = "values of the column"

    @property
    def columns(self) -> Mapping[str, str]:
        """The column."""
        return {"column": self.config.column}

    def column(self, window: SelectionWindow, context: SelectionContext) -> Column:
        """Return the strata of the window: a hash of each sample's value."""
        return ColumnStrata(window, context, self.config.column)
