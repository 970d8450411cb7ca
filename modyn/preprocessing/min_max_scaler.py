"""MinMaxScaler: the smallest and largest value of the stream so far become the ends of a range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from pydantic import Field, field_validator

from modyn.preprocessing.base import Component, ComponentConfig, State, take_array
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, stacked


class MinMaxScalerConfig(ComponentConfig):
    """Options of MinMaxScaler."""

    feature_range: tuple[float, float] = Field((0.0, 1.0), description="what the smallest and the largest value become")
    clip: bool = Field(False, description="keep values that are outside of what was seen inside the range")

    @field_validator("feature_range")
    @classmethod
    def _ascends(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not -1e30 <= value[0] < value[1] <= 1e30:
            raise ValueError(f"{list(value)} is wrong: two finite numbers are expected, the smaller one first")
        return value


class MinMaxScaler(Component):
    """Map [min, max] of each column of numbers to `feature_range`. Missing values do not count and stay missing.

    Exact, for any batches and merges. A column of equal values (within 2.2e-308) is only shifted; before the first value, nothing is.
    """

    Config = MinMaxScalerConfig

    def __init__(self, config: MinMaxScalerConfig, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self.config: MinMaxScalerConfig = config
        self._names = list(inputs)
        self._smallest = np.full(len(inputs), np.inf)
        self._largest = np.full(len(inputs), -np.inf)

    @classmethod
    def kinds(cls, config: MinMaxScalerConfig) -> frozenset[ColumnKind]:
        """Numbers."""
        return frozenset({ColumnKind.NUMBER})

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """The same columns."""
        return self.inputs

    def update(self, columns: Columns) -> None:
        """Widen the ranges."""
        values = stacked(columns, self._names)
        self._smallest = np.minimum(self._smallest, np.fmin.reduce(values, axis=1, initial=np.inf))
        self._largest = np.maximum(self._largest, np.fmax.reduce(values, axis=1, initial=-np.inf))

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Shift and stretch."""
        seen = self._smallest <= self._largest
        smallest = np.where(seen, self._smallest, 0.0)
        width = np.where(seen, self._largest, 0.0) - smallest
        low, high = self.config.feature_range
        # Between values that are nearer to each other, the scale may be infinite.
        narrowest = max(1.0, high - low) * np.finfo(np.float64).tiny
        scale = (high - low) / np.where(width > narrowest, width, 1.0)
        shift = np.where(seen, low, 0.0)
        scale = np.where(seen, scale, 1.0)
        values = (stacked(columns, self._names) - smallest[:, None]) * scale[:, None] + shift[:, None]
        if self.config.clip:
            values = np.clip(values, low, high)
        return dict(zip(self._names, values, strict=True))

    def merge(self, other: Self) -> None:
        """Take the wider ranges."""
        self._smallest = np.minimum(self._smallest, other._smallest)
        self._largest = np.maximum(self._largest, other._largest)

    def state(self) -> State:
        """Both ends, ±inf before the first value."""
        return {"smallest": self._smallest.copy(), "largest": self._largest.copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace both ends. Raises: CorruptStateError."""
        self._smallest = take_array(state, "smallest", self._smallest)
        self._largest = take_array(state, "largest", self._largest)

    def summary(self) -> dict[str, Any]:
        """Both ends of each column, null before its first value."""
        rows = zip(self._names, self._smallest.tolist(), self._largest.tolist(), strict=True)
        return {name: {"min": low, "max": high} if low <= high else {"min": None, "max": None} for name, low, high in rows}
