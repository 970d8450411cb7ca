"""InputGuard: counts unusual inputs: missing values, numbers outside the range so far, and new categories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

import numpy as np
from pydantic import Field

from modyn.preprocessing.base import Component, ComponentConfig, State, take, take_array
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Int64Array, stacked
from modyn.preprocessing.statistics.vocabulary import Vocabularies

_COUNTERS: Final = ("rows", "missing", "unlike")


class InputGuardConfig(ComponentConfig):
    """Options of InputGuard."""

    max_categories: int = Field(
        10_000,
        ge=1,
        le=100_000_000,
        description="number of known categories of a column, in order of first appearance; further categories always count as new",
    )
    max_missing_share: float = Field(
        0.5, ge=0, le=1, description="share of missing values of a column in a part of the stream above which it is unusual"
    )
    max_unlike_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="share of numbers outside the earlier range, or of rows with a new category, above which a part is unusual",
    )
    min_rows: int = Field(
        100,
        ge=1,
        description="smallest number of rows of a part whose shares are judged, because one new category is a large share of few rows",
    )
    warm_up_rows: int = Field(
        1000, ge=0, description="number of first rows, from which ranges and categories are learned before rows are counted"
    )


class InputShares(NamedTuple):
    """Shares of one column in a part of the stream."""

    rows: int
    missing: float
    """Share of rows with a missing value."""
    unlike: float
    """Share of rows whose value is outside [min, max] of all earlier batches, or is a new category."""


class InputCounts(NamedTuple):
    """Numbers of missing and unusual values of one column in a batch."""

    missing: int = 0
    out_of_range: int = 0
    """Number of values outside [min, max] of all rows so far."""
    unseen: int = 0
    """Number of rows with a category that no earlier row had."""


class InputGuard(Component):
    """Count, for each column, missing values, numbers outside the range of all earlier batches, and new categories. No column is changed.

    Ranges are exact; categories are exact up to `max_categories`. The counts depend on the division into batches: if the same rows are divided or
    merged in another way, ranges and categories are the same, but the counts of new values differ.

    >>> import pyarrow as pa
    >>> from modyn.preprocessing import Preprocessing
    >>> guard = {"id": "InputGuard", "warm_up_rows": 2}
    >>> preprocessing = Preprocessing({"columns": {"age": "number"}, "components": [guard]})
    >>> preprocessing.update({"age": pa.array([20.0, 60.0])})
    >>> preprocessing.update({"age": pa.array([30.0, 99.0, None])})
    >>> preprocessing.input_counts()["age"].tolist()  # rows, missing, unlike
    [3, 1, 1]
    """

    Config = InputGuardConfig
    takes = frozenset({ColumnKind.NUMBER, ColumnKind.CATEGORY})

    def __init__(self, config: InputGuardConfig, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self.config: InputGuardConfig = config
        self._numbers = [name for name, found in inputs.items() if found.kind is ColumnKind.NUMBER]
        self._categories = [name for name, found in inputs.items() if found.kind is ColumnKind.CATEGORY]
        self._vocabularies = Vocabularies(self._categories, config.max_categories) if self._categories else None
        self._smallest, self._largest = np.full(len(self._numbers), np.inf), np.full(len(self._numbers), -np.inf)
        self._num_rows = 0
        self._counts = {name: np.zeros(len(self.names), np.int64) for name in _COUNTERS}

    @property
    def names(self) -> list[str]:
        """Return the columns to count, with columns of numbers first."""
        return [*self._numbers, *self._categories]

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Output no columns."""
        return {}

    @property
    def keeps_inputs(self) -> bool:
        """Pass the inputs through."""
        return True

    def look(self, columns: Columns) -> dict[str, InputCounts]:
        """Count, for each column, the missing values, and the values that are unlike all earlier values. The statistics do not change, and no value
        is counted during the warm-up."""
        found = dict[str, InputCounts]()
        if self._num_rows < self.config.warm_up_rows:
            return found
        if self._numbers:
            values = stacked(columns, self._numbers)
            counts = np.isnan(values).sum(axis=1), self._outside(values).sum(axis=1)
            found |= {
                name: InputCounts(*each) for name, *each in zip(self._numbers, *(each.tolist() for each in counts), strict=True)
            }
        if self._vocabularies is not None:
            categories = [columns[name] for name in self._categories]
            for name, column, known in zip(self._categories, categories, self._vocabularies.lookup(categories), strict=True):
                is_missing = column.codes < 0
                found[name] = InputCounts(int(is_missing.sum()), unseen=int(((known == 0) & ~is_missing).sum()))
        return found

    def _outside(self, values: Any) -> Any:
        return (values < self._smallest[:, None]) | (values > self._largest[:, None])  # NaN is neither above nor below.

    def update(self, columns: Columns) -> None:
        """Count a batch by the earlier ranges and categories, and then learn from the batch."""
        num_rows = len(next(iter(columns.values())))
        missing, unlike = np.zeros((2, len(self.names)), np.int64)
        numbers = slice(len(self._numbers))
        missing[numbers], unlike[numbers] = self._look_at_numbers(columns)
        missing[numbers.stop :], unlike[numbers.stop :] = self._look_at_categories(columns)
        if self._num_rows >= self.config.warm_up_rows:
            self._counts["rows"] += num_rows
            self._counts["missing"] += missing
            self._counts["unlike"] += unlike
        self._num_rows += num_rows

    def extremes(self, columns: Columns) -> dict[str, float]:
        """Return, for each column, the distance of the most extreme number from [min, max] of all earlier rows, in units of max - min. Distances up
        to 1 and columns with a single value are omitted. During the warm-up, the result is empty."""
        if not self._numbers or self._num_rows < max(self.config.warm_up_rows, 1):
            return {}
        values, width = stacked(columns, self._numbers), self._largest - self._smallest
        below, above = self._smallest - np.fmin.reduce(values, axis=1), np.fmax.reduce(values, axis=1) - self._largest
        outside = np.fmax(below, above)
        found = np.flatnonzero((width > 0) & (outside > width))  # NaN is neither above nor below.
        return {self._numbers[at]: float(outside[at] / width[at]) for at in found}

    def _look_at_numbers(self, columns: Columns) -> tuple[Any, Any]:
        if not self._numbers:
            return 0, 0
        values = stacked(columns, self._numbers)
        outside = self._outside(values)
        self._smallest = np.minimum(self._smallest, np.fmin.reduce(values, axis=1, initial=np.inf))
        self._largest = np.maximum(self._largest, np.fmax.reduce(values, axis=1, initial=-np.inf))
        return np.isnan(values).sum(axis=1), outside.sum(axis=1)

    def _look_at_categories(self, columns: Columns) -> tuple[Any, Any]:
        if self._vocabularies is None:
            return 0, 0
        before = self._vocabularies.counters()
        self._vocabularies.update([columns[name] for name in self._categories])
        after = self._vocabularies.counters()
        return after["num_missing"] - before["num_missing"], after["num_unseen"] - before["num_unseen"]

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Return nothing: all columns pass through."""
        return {}

    def merge(self, other: Self) -> None:
        """Add the ranges, categories and counts of `other`."""
        self._smallest = np.minimum(self._smallest, other._smallest)
        self._largest = np.maximum(self._largest, other._largest)
        if self._vocabularies is not None and other._vocabularies is not None:
            self._vocabularies.merge(other._vocabularies)
        self._num_rows += other._num_rows
        for name, counted in other._counts.items():
            self._counts[name] += counted

    def state(self) -> State:
        """Return ranges, categories and counts."""
        found = {"smallest": self._smallest.copy(), "largest": self._largest.copy(), "num_rows": self._num_rows}
        categories = self._vocabularies.state() if self._vocabularies is not None else {}
        return {**found, "categories": categories, **{name: counts.copy() for name, counts in self._counts.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace ranges, categories and counts. Raises: CorruptStateError."""
        self._smallest = take_array(state, "smallest", self._smallest)
        self._largest = take_array(state, "largest", self._largest)
        self._num_rows = take(state, "num_rows", int)
        self._counts = {name: take_array(state, name, counts) for name, counts in self._counts.items()}
        if self._vocabularies is not None:
            self._vocabularies.load_state(take(state, "categories", dict))

    def counts(self) -> dict[str, Int64Array]:
        """Return for each column the number of rows, missing values and unlike values since the warm-up, int64 (3,). The difference of two results
        gives the counts of a part of the stream."""
        return {name: np.array([self._counts[counter][at] for counter in _COUNTERS]) for at, name in enumerate(self.names)}

    def summary(self) -> dict[str, Any]:
        """Return the shares since the end of the warm-up by column."""
        return {name: input_shares(counts)._asdict() for name, counts in self.counts().items()}


def input_shares(counts: Int64Array) -> InputShares:
    """Convert one entry of `InputGuard.counts` into shares.

    >>> input_shares(np.array([10, 2, 4]))
    InputShares(rows=10, missing=0.2, unlike=0.5)
    """
    rows, missing, unlike = counts.tolist()
    return InputShares(rows, missing / max(rows, 1), unlike / max(rows - missing, 1))


def unusual_inputs(found: Mapping[str, InputShares], config: InputGuardConfig) -> list[str]:
    """Describe unusual shares of a part of the stream, with a clause for each column. Args: found: shares by column.

    >>> unusual_inputs({"age": InputShares(640, 0.75, 0.0), "site": InputShares(3, 0.0, 0.33)}, InputGuardConfig())
    ["75 % of 'age' are missing (limit 50 %)"]
    """
    limits = {"missing": config.max_missing_share, "unlike": config.max_unlike_share}
    words = {"missing": "are missing", "unlike": "are unlike all before"}
    return [
        f"{100 * getattr(shares, name):.3g} % of '{column}' {words[name]} (limit {100 * limit:g} %)"
        for column, shares in found.items()
        for name, limit in limits.items()
        if shares.rows >= config.min_rows and getattr(shares, name) > limit
    ]
