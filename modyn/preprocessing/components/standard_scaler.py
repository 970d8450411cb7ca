"""StandardScaler: (x - mean) / standard deviation of the stream so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from pydantic import Field

from modyn.preprocessing.base import Component, ComponentConfig, State
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Float64Array, stacked
from modyn.preprocessing.statistics.moments import Moments


class StandardScalerConfig(ComponentConfig):
    """Options of StandardScaler."""

    with_mean: bool = Field(True, description="subtract the mean")
    with_std: bool = Field(True, description="divide by the standard deviation")


class StandardScaler(Component):
    """Scale each column of numbers to mean 0 and variance 1. Missing values do not count and stay missing.

    The result is exact up to the rounding of float64, for any batches and merges (`Moments`). The variance is the population variance. A column
    whose values differ only by rounding is divided by 1, by the rule of scikit-learn: variance <= n · eps · variance + (n · mean · eps)².

    >>> import pyarrow as pa
    >>> from modyn.preprocessing import Preprocessing
    >>> section = {"columns": {"age": "number"}, "components": [{"id": "StandardScaler"}]}
    >>> Preprocessing(section).update_and_transform({"age": pa.array([1.0, 3.0])}).to_dense().tolist()
    [[-1.0], [1.0]]
    """

    Config = StandardScalerConfig
    takes = frozenset({ColumnKind.NUMBER})

    def __init__(self, config: StandardScalerConfig, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self.config: StandardScalerConfig = config
        self._names = list(inputs)
        self._moments = Moments(len(inputs))

    def update(self, columns: Columns) -> None:
        """Add values to the moments."""
        self._moments.update(stacked(columns, self._names))

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Shift and divide."""
        return self._scaled(stacked(columns, self._names))

    def update_and_transform(self, columns: Columns) -> dict[str, Any]:
        """Update and transform with one matrix."""
        values = stacked(columns, self._names)
        self._moments.update(values)
        return self._scaled(values)

    def _scaled(self, values: Float64Array) -> dict[str, Any]:
        if self.config.with_mean:
            values = values - self._moments.mean[:, None]
        if self.config.with_std:
            values = values / self._scale()[:, None]
        return dict(zip(self._names, values, strict=True))

    def _scale(self) -> Float64Array:
        variance, count = self._moments.variance(), self._moments.count
        rounding = count * np.finfo(np.float64).eps
        constant = variance <= rounding * variance + (rounding * self._moments.mean) ** 2
        return np.where(constant, 1.0, np.sqrt(variance))

    def merge(self, other: Self) -> None:
        """Add the moments of `other`."""
        self._moments.merge(other._moments)

    def state(self) -> State:
        """Return the moments."""
        return self._moments.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the moments. Raises: CorruptStateError."""
        self._moments.load_state(state)

    def summary(self) -> dict[str, Any]:
        """Return mean, standard deviation and number of values of each column."""
        moments = self._moments
        rows = zip(self._names, moments.mean.tolist(), np.sqrt(moments.variance()).tolist(), moments.count.tolist(), strict=True)
        return {name: {"mean": mean, "std": std, "values": count} for name, mean, std, count in rows}
