"""Imputer: fills missing values from the stream so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from modyn.config.base import PlacedError
from modyn.preprocessing.base import Component, ComponentConfig, State, take, take_array
from modyn.preprocessing.columns import Column, ColumnKind, Columns, ColumnType, Float64Array, stacked
from modyn.preprocessing.statistics.categories import Categories
from modyn.preprocessing.statistics.frequent_items import FrequentItems
from modyn.preprocessing.statistics.moments import Moments
from modyn.preprocessing.statistics.quantile_sketch import QuantileSketch
from modyn.preprocessing.statistics.vocabulary import LONGEST

_MIDDLE: Final = np.array([0.5])
_NO_CATEGORY: Final = "missing"


class ImputerConfig(ComponentConfig):
    """Options of Imputer."""

    strategy: Literal["mean", "median", "most_frequent", "constant"] = Field(
        "mean", description="statistic that replaces missing values; `mean` and `median` take numbers only"
    )
    fill_value: float | str | None = Field(
        None,
        description="value for `constant`, and for the other strategies while they have seen no value; by default, 0 or 'missing'",
    )
    max_categories: int = Field(10_000, ge=1, description="number of distinct values that `most_frequent` counts exactly")

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        if self.strategy == "constant" and self.fill_value is None:
            raise PlacedError("fill_value", "is required with the strategy constant: a number or a text")
        if self.strategy in ("mean", "median") and isinstance(self.fill_value, str):
            raise PlacedError(
                "fill_value", f"{self.fill_value!r} is text, but the strategy {self.strategy} fills numbers; give a number"
            )
        if isinstance(self.fill_value, float) and not abs(self.fill_value) <= 1e140:
            raise PlacedError("fill_value", f"{self.fill_value} is wrong: a finite number is expected, within ±1e140")
        return self


class Imputer(Component):
    """Fill missing values of each column with a statistic of the values so far, including the current batch.

    mean: exact up to rounding. median: exact up to 8,192 distinct values, then within 0.4 % (`QuantileSketch`). most_frequent: exact up to
    `max_categories` distinct values; of equally frequent values, the smallest value is used (`FrequentItems`). Filled values are not counted.

    >>> import pyarrow as pa
    >>> from modyn.preprocessing import Preprocessing
    >>> section = {"columns": {"age": "number"}, "components": [{"id": "Imputer"}]}
    >>> Preprocessing(section).update_and_transform({"age": pa.array([1.0, 3.0, None])}).to_dense().tolist()
    [[1.0], [3.0], [2.0]]
    """

    Config = ImputerConfig

    def __init__(self, config: ImputerConfig, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self.config: ImputerConfig = config
        self._names = list(inputs)
        self._numbers = [name for name, found in inputs.items() if found.kind is ColumnKind.NUMBER]
        self._filled = np.zeros(len(inputs), np.int64)
        self._rows = 0
        self._moments = Moments(len(inputs))
        self._sketches = [QuantileSketch() for _ in inputs if config.strategy == "median"]
        self._frequent: list[FrequentItems[Any]] = [
            FrequentItems(config.max_categories) for _ in inputs if config.strategy == "most_frequent"
        ]

    @classmethod
    def kinds(cls, config: ImputerConfig) -> frozenset[ColumnKind]:
        """Return the kinds of columns that the strategy and the constant allow: numbers, categories, or both."""
        if config.strategy in ("mean", "median") or isinstance(config.fill_value, float):
            return frozenset({ColumnKind.NUMBER})
        if isinstance(config.fill_value, str):
            return frozenset({ColumnKind.CATEGORY})
        return frozenset({ColumnKind.NUMBER, ColumnKind.CATEGORY})

    def update(self, columns: Columns) -> None:
        """Count values and missing values."""
        if self.config.strategy == "mean":
            self._update_means(stacked(columns, self._names))
            return
        self._rows += len(columns[self._names[0]])
        for at, name in enumerate(self._names):
            column = columns[name]
            if isinstance(column, Categories):
                self._filled[at] += int((column.codes < 0).sum())
            else:
                self._filled[at] += int(np.isnan(column).sum())
            if self._sketches:
                self._sketches[at].update(column)
            if self._frequent:
                self._frequent[at].update(*_counted(column))

    def transform(self, columns: Columns) -> dict[str, Column]:
        """Fill missing values."""
        if self.config.strategy == "mean":
            return self._filled_matrix(stacked(columns, self._names))
        fills = self._fills()
        return {name: _filled(columns[name], fills[name]) for name in self._names}

    def update_and_transform(self, columns: Columns) -> dict[str, Column]:
        """Update and transform with one matrix if possible."""
        if self.config.strategy != "mean":
            return super().update_and_transform(columns)
        values = stacked(columns, self._names)
        self._update_means(values)
        return self._filled_matrix(values)

    def _update_means(self, values: Float64Array) -> None:
        self._rows += values.shape[1]
        self._filled += np.isnan(values).sum(axis=1)
        self._moments.update(values)

    def _filled_matrix(self, values: Float64Array) -> dict[str, Column]:
        fills = np.array(list(self._fills().values()))
        return dict(zip(self._names, np.where(np.isnan(values), fills[:, None], values), strict=True))

    def _fills(self) -> dict[str, Any]:
        """Return the fill value of each column."""
        defaults: list[Any] = [0.0 if name in self._numbers else _NO_CATEGORY for name in self._names]
        if self.config.fill_value is not None:
            defaults = [self.config.fill_value] * len(defaults)
        found: list[Any] = [None] * len(defaults)
        if self.config.strategy == "mean":
            found = [
                mean if count else None for mean, count in zip(self._moments.mean.tolist(), self._moments.count, strict=True)
            ]
        elif self.config.strategy == "median":
            found = [float(sketch.quantiles(_MIDDLE)[0]) if sketch.count else None for sketch in self._sketches]
        elif self.config.strategy == "most_frequent":
            found = [counts.most_frequent() for counts in self._frequent]
        return {
            name: default if value is None else value for name, default, value in zip(self._names, defaults, found, strict=True)
        }

    def merge(self, other: Self) -> None:
        """Add the counts of `other`."""
        self._rows += other._rows
        self._filled += other._filled
        self._moments.merge(other._moments)
        for sketch, another in zip(self._sketches, other._sketches, strict=True):
            sketch.merge(another)
        for counts, more in zip(self._frequent, other._frequent, strict=True):
            counts.merge(more)

    def state(self) -> State:
        """Return the counters and the statistics of the strategy."""
        state: State = {"rows": self._rows, "filled": self._filled.copy()}
        if self.config.strategy == "mean":
            state["moments"] = self._moments.state()
        for name, statistics in self._by_column().items():
            state[f"column {name}"] = statistics.state()
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the counts. Raises: CorruptStateError."""
        self._rows, self._filled = take(state, "rows", int), take_array(state, "filled", self._filled)
        if self.config.strategy == "mean":
            self._moments.load_state(take(state, "moments", dict))
        for name, statistics in self._by_column().items():
            statistics.load_state(take(state, f"column {name}", dict))

    def _by_column(self) -> dict[str, QuantileSketch | FrequentItems[Any]]:
        return dict(zip(self._names, [*self._sketches, *self._frequent], strict=False))

    def summary(self) -> dict[str, Any]:
        """Return fill values, the number of rows filled and seen, and the error of a statistic that is not exact."""
        found: dict[str, Any] = {}
        for name, filled, fill in zip(self._names, self._filled.tolist(), self._fills().values(), strict=True):
            found[name] = {"fill": fill, "missing": filled, "rows": self._rows}
        for name, statistics in self._by_column().items():
            found[name]["error"] = statistics.error
        return found


def _counted(column: Column) -> list[list[Any]]:
    """Return the distinct values of a column and their counts. The order depends only on the values. Texts too long for a vocabulary are omitted."""
    if isinstance(column, Categories):
        counted = zip(column.texts, column.counts().tolist(), strict=True)
        return [list(part) for part in zip(*((text, count) for text, count in counted if len(text) <= LONGEST), strict=True)] or [
            [],
            [],
        ]
    values, counts = np.unique(column[~np.isnan(column)] + 0.0, return_counts=True)
    return [values.tolist(), counts.tolist()]


def _filled(column: Column, fill: Any) -> Column:
    if isinstance(column, Categories):
        return column.filled(fill)
    numbers: Float64Array = column
    missing = np.isnan(numbers)
    return np.where(missing, fill, numbers) if missing.any() else numbers
