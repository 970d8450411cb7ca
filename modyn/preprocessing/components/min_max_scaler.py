"""MinMaxScaler: maps the smallest and largest value of the stream so far to the ends of a range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from pydantic import Field, field_validator

from modyn.preprocessing.base import Component, ComponentConfig, State, take_array
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, stacked


class MinMaxScalerConfig(ComponentConfig):
    """Options of MinMaxScaler."""

    feature_range: tuple[float, float] = Field(
        (0.0, 1.0), description="values to which the smallest and the largest value are mapped"
    )
    clip: bool = Field(False, description="map values outside of the earlier range to its ends")

    @field_validator("feature_range")
    @classmethod
    def _ascends(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not -1e30 <= value[0] < value[1] <= 1e30:
            raise ValueError(f"{list(value)} is wrong: two finite numbers are expected, the smaller one first")
        return value


class MinMaxScaler(Component):
    """Map [min, max] of each column of numbers to `feature_range`. Missing values do not count and stay missing.

    The result is exact for any batches and merges. A column of equal values (within 2.2e-308) is only shifted. Before the first value, numbers are
    not changed.

    >>> import pyarrow as pa
    >>> from modyn.preprocessing import Preprocessing
    >>> section = {"columns": {"age": "number"}, "components": [{"id": "MinMaxScaler"}]}
    >>> Preprocessing(section).update_and_transform({"age": pa.array([1.0, 2.0, 5.0])}).to_dense().tolist()
    [[0.0], [0.25], [1.0]]
    """

    Config = MinMaxScalerConfig
    takes = frozenset({ColumnKind.NUMBER})

    def __init__(self, config: MinMaxScalerConfig, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self.config: MinMaxScalerConfig = config
        self._names = list(inputs)
        self._smallest = np.full(len(inputs), np.inf)
        self._largest = np.full(len(inputs), -np.inf)

    def update(self, columns: Columns) -> None:
        """Widen the ranges."""
        values = stacked(columns, self._names)
        self._smallest = np.minimum(self._smallest, np.fmin.reduce(values, axis=1, initial=np.inf))
        self._largest = np.maximum(self._largest, np.fmax.reduce(values, axis=1, initial=-np.inf))

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Shift and scale."""
        seen = self._smallest <= self._largest
        smallest = np.where(seen, self._smallest, 0.0)
        width = np.where(seen, self._largest, 0.0) - smallest
        low, high = self.config.feature_range
        # For a narrower range of values, the scale could be infinite.
        narrowest = max(1.0, high - low) * np.finfo(np.float64).tiny
        scale = (high - low) / np.where(width > narrowest, width, 1.0)
        shift = np.where(seen, low, 0.0)
        scale = np.where(seen, scale, 1.0)
        values = (stacked(columns, self._names) - smallest[:, None]) * scale[:, None] + shift[:, None]
        if self.config.clip:
            values = np.clip(values, low, high)
        return dict(zip(self._names, values, strict=True))

    def merge(self, other: Self) -> None:
        """Merge the ranges."""
        self._smallest = np.minimum(self._smallest, other._smallest)
        self._largest = np.maximum(self._largest, other._largest)

    def state(self) -> State:
        """Return the smallest and the largest value of each column; ±inf before the first value."""
        return {"smallest": self._smallest.copy(), "largest": self._largest.copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the smallest and largest values. Raises: CorruptStateError."""
        self._smallest = take_array(state, "smallest", self._smallest)
        self._largest = take_array(state, "largest", self._largest)

    def summary(self) -> dict[str, Any]:
        """Return the smallest and the largest value of each column; null before the column's first value."""
        rows = zip(self._names, self._smallest.tolist(), self._largest.tolist(), strict=True)
        return {name: {"min": low, "max": high} if low <= high else {"min": None, "max": None} for name, low, high in rows}
