"""As many samples of each value of a column of the dataset."""

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
            "column of the dataset to balance: of Parquet files by name, a field of JSON Lines (`meta.site` for one of an inner object), of "
            "CSV files by name or by number, from 0"
        )
    )


class ColumnBalancedPresampling(BalancedPresampling):
    """Keeps `ratio` of the window, the same number of samples of each value of `column` as far as there are so many.

    Where a value has fewer, it gives all, and the others share what it leaves (Modyn, SIGMOD 2025, section 5.2.1). Samples without a value are
    balanced like one more value. Values are compared as text: 1, 1.0 and "1" are one. Each is read once in a run, from the files of the
    dataset, in CSV, JSON Lines or Parquet.
    """

    Config = ColumnBalancedConfig
    config: ColumnBalancedConfig

    what = "values of the column"

    @property
    def columns(self) -> Mapping[str, str]:
        """The column."""
        return {"column": self.config.column}

    def column(self, window: SelectionWindow, context: SelectionContext) -> Column:
        """A hash of the value."""
        return ColumnStrata(window, context, self.config.column)
