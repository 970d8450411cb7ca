"""Bucketizer: the quantile of the stream that a number lies in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from pydantic import Field

from modyn.preprocessing.base import Component, ComponentConfig, State, take
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Float64Array
from modyn.preprocessing.quantile_sketch import QuantileSketch


class BucketizerConfig(ComponentConfig):
    """Options of Bucketizer."""

    num_buckets: int = Field(10, ge=2, le=10_000, description="buckets that hold equal shares of the values so far")


class Bucketizer(Component):
    """Replace numbers by indices of buckets from 1 to `num_buckets`; 0 is missing.

    A value x has the index 1 + the number of edges <= x; the edges are the quantiles 1/num_buckets, 2/num_buckets, ... of the values so far, exact
    up to 8,192 distinct values, then each within 0.4 % or less (`QuantileSketch`). Edges move with the stream. Follow it with a OneHotEncoder for one
    feature a bucket.
    """

    Config = BucketizerConfig

    def __init__(self, config: BucketizerConfig, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self.config: BucketizerConfig = config
        self._sketches = {name: QuantileSketch() for name in inputs}
        self._edges: dict[str, Float64Array] | None = None
        """Computed when they are needed, and again after an update."""

    @classmethod
    def kinds(cls, config: BucketizerConfig) -> frozenset[ColumnKind]:
        """Numbers."""
        return frozenset({ColumnKind.NUMBER})

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Indices under the same names."""
        return dict.fromkeys(self.inputs, ColumnType(ColumnKind.INDEX, self.config.num_buckets + 1))

    def update(self, columns: Columns) -> None:
        """Add values to the sketches."""
        for name, sketch in self._sketches.items():
            sketch.update(columns[name])
        self._edges = None

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Search the edges. Before the first value, all are in bucket 1."""
        edges = self._computed_edges()
        found = {name: np.searchsorted(edges[name], columns[name], side="right") + 1 for name in self.inputs}
        return {name: np.where(np.isnan(columns[name]), 0, indices) for name, indices in found.items()}

    def _computed_edges(self) -> dict[str, Float64Array]:
        if self._edges is None:
            shares = np.arange(1, self.config.num_buckets) / self.config.num_buckets
            self._edges = {name: sketch.quantiles(shares) for name, sketch in self._sketches.items()}
        return self._edges

    def merge(self, other: Self) -> None:
        """Merge the sketches."""
        for name, sketch in self._sketches.items():
            sketch.merge(other._sketches[name])
        self._edges = None

    def state(self) -> State:
        """The sketches by name of their columns."""
        return {name: sketch.state() for name, sketch in self._sketches.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the sketches. Raises: CorruptStateError."""
        for name, sketch in self._sketches.items():
            sketch.load_state(take(state, name, dict))
        self._edges = None

    def summary(self) -> dict[str, Any]:
        """Edges, number of values and relative error of the edges; no edges before the first value."""
        edges = self._computed_edges()
        return {
            name: {"edges": edges[name].tolist() if sketch.count else [], "values": sketch.count, "error": sketch.error}
            for name, sketch in self._sketches.items()
        }
