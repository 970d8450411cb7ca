"""Bins of long axes, so that a chart of ten thousand triggers has no more points than a chart of a hundred."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from modyn.analysis.results import STAGES

MAX_BINS = 100
"""Largest number of rows, columns, points or bars of one chart."""


@dataclass(frozen=True, slots=True)
class Bins:
    """The positions 0 … length−1 of an axis in at most `MAX_BINS` bins of nearly equal size."""

    length: int

    @property
    def number(self) -> int:
        """Number of bins."""
        return min(self.length, MAX_BINS)

    @property
    def starts(self) -> NDArray[np.int64]:
        """First position of each bin, int64 (number,)."""
        return -(-np.arange(self.number) * self.length // max(self.number, 1))

    @property
    def ends(self) -> NDArray[np.int64]:
        """Last position of each bin, int64 (number,)."""
        return np.append(self.starts[1:], self.length)[: self.number] - 1

    def of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bin of each position, int64, with the shape of `positions`."""
        return positions * self.number // max(self.length, 1)


def binned_cells(
    rows: NDArray[np.int64], columns: NDArray[np.int64], values: NDArray[np.float64], row_bins: Bins, column_bins: Bins
) -> NDArray[np.float64]:
    """Return the mean of a matrix's cells for each pair of row bin and column bin; NaN: no cell has a value. The whole matrix is never in memory.

    Args: rows, columns: position of each cell. values: (n,); NaN values are ignored.
    """
    defined = ~np.isnan(values)
    at = row_bins.of(rows[defined]) * column_bins.number + column_bins.of(columns[defined])
    size = row_bins.number * column_bins.number
    counts = np.bincount(at, minlength=size)
    sums = np.bincount(at, weights=values[defined], minlength=size)
    means: NDArray[np.float64] = np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0)
    return means.reshape(row_bins.number, column_bins.number)


def binned_triggers(triggers: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each bin of triggers: label, ids of the first and the last trigger, the time range of the data, fired_at of the last
    trigger, and the means of num_keys and of each stage's seconds.

    Args: triggers: the table of `read_results`.
    """
    bins = Bins(len(triggers))
    groups = triggers.reset_index(drop=True).groupby(bins.of(np.arange(len(triggers))))
    stages: dict[str, Any] = {f"{stage}_s": (f"{stage}_s", lambda seconds: seconds.fillna(0.0).mean()) for stage in STAGES}
    table = groups.agg(
        trigger_id=("trigger_id", "first"),
        last_id=("trigger_id", "last"),
        first_timestamp=("first_timestamp", "min"),
        last_timestamp=("last_timestamp", "max"),
        fired_at=("fired_at", "last"),
        num_keys=("num_keys", "mean"),
        **stages,
    )
    table.insert(
        0, "label", [label("trigger", str(a), str(b)) for a, b in zip(table["trigger_id"], table["last_id"], strict=True)]
    )
    return table


def label(what: str, first: str, last: str) -> str:
    """Name a bin by its first and last element.

    Args: what: noun in the singular; the plural is formed with s.

    >>> label("trigger", "3", "3"), label("trigger", "3", "7")
    ('trigger 3', 'triggers 3–7')
    """
    return f"{what} {first}" if first == last else f"{what}s {first}–{last}"
