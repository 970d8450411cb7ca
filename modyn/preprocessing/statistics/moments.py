"""Count, mean and sum of squared deviations of several columns, which can be updated and merged in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from modyn.preprocessing.base import State, take_array
from modyn.preprocessing.columns import Float64Array


class Moments:
    """Mean and variance of k columns, ignoring missing values.

    The result is exact up to the rounding of float64, for any batches and order of merges. Each batch gives its own mean and the deviations from this
    mean. Two parts a, b merge as M2 = M2_a + M2_b + (mean_b - mean_a)² · n_a · n_b / n.

    Source: Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979, equations 2.1.
    """

    def __init__(self, num_columns: int) -> None:
        self.count = np.zeros(num_columns, np.int64)
        self.mean = np.zeros(num_columns)
        self.m2 = np.zeros(num_columns)
        """Sum of squared deviations from the mean."""

    def update(self, values: Float64Array) -> None:
        """Add a batch. Args: values: float64 (columns, n), NaN where missing."""
        there = ~np.isnan(values)
        count = there.sum(axis=1)
        divisor = np.maximum(count, 1)
        mean = np.where(there, values, 0.0).sum(axis=1) / divisor
        deviations = np.where(there, values - mean[:, None], 0.0)
        m2 = (deviations * deviations).sum(axis=1) - deviations.sum(
            axis=1
        ) ** 2 / divisor  # This term subtracts the effect of rounding the mean.
        self._add(count, mean, np.maximum(m2, 0.0))

    def merge(self, other: Moments) -> None:
        """Add the values that `other` has seen."""
        self._add(other.count, other.mean, other.m2)

    def _add(self, count: Any, mean: Float64Array, m2: Float64Array) -> None:
        total = self.count + count
        share, delta = count / np.maximum(total, 1), mean - self.mean
        self.m2 = self.m2 + m2 + delta * delta * self.count * share
        self.mean = self.mean + delta * share
        self.count = total

    def variance(self) -> Float64Array:
        """Return the population variance M2 / count; 0 without values."""
        return self.m2 / np.maximum(self.count, 1)

    def state(self) -> State:
        """Return arrays with one number for each column."""
        return {"count": self.count.copy(), "mean": self.mean.copy(), "m2": self.m2.copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the statistics. Raises: CorruptStateError."""
        self.count, self.mean, self.m2 = (take_array(state, name, like) for name, like in self.state().items())
