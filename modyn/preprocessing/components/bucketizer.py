"""Bucketizer: replaces a number by the index of its quantile bucket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from pydantic import Field

from modyn.preprocessing.base import Component, ComponentConfig, State, take
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Float64Array
from modyn.preprocessing.statistics.quantile_sketch import QuantileSketch


class BucketizerConfig(ComponentConfig):
    """Options of Bucketizer."""

    num_buckets: int = Field(10, ge=2, le=10_000, description="number of buckets, which hold equal shares of the values so far")


class Bucketizer(Component):
    """Replace numbers by indices of buckets from 1 to `num_buckets`, and missing numbers by 0.

    A value x has the index 1 + the number of edges <= x. The edges are the quantiles 1/num_buckets, 2/num_buckets, ... of the values so far. The
    edges are exact up to 8,192 distinct values, and then within 0.4 % (`QuantileSketch`). Edges change with the stream. Add a OneHotEncoder after the
    Bucketizer to get one feature for each bucket.

    >>> import pyarrow as pa
    >>> from modyn.preprocessing import Preprocessing
    >>> section = {"columns": {"age": "number"}, "components": [{"id": "Bucketizer", "num_buckets": 2}]}
    >>> Preprocessing(section).update_and_transform({"age": pa.array([1.0, 2.0, 7.0, None])}).to_dense().tolist()
    [[1.0], [2.0], [2.0], [0.0]]
    """

    Config = BucketizerConfig
    takes = frozenset({ColumnKind.NUMBER})

    def __init__(self, config: BucketizerConfig, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self.config: BucketizerConfig = config
        self._sketches = {name: QuantileSketch() for name in inputs}
        self._edges: dict[str, Float64Array] | None = None
        """Edges by column, computed when needed, and again after an update."""

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Output indices under the same names."""
        return dict.fromkeys(self.inputs, ColumnType(ColumnKind.INDEX, self.config.num_buckets + 1))

    def update(self, columns: Columns) -> None:
        """Add values to the sketches."""
        for name, sketch in self._sketches.items():
            sketch.update(columns[name])
        self._edges = None

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Find the bucket of each value. Before the first update, all values are in bucket 1."""
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
        """Return the sketches by column."""
        return {name: sketch.state() for name, sketch in self._sketches.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the sketches. Raises: CorruptStateError."""
        for name, sketch in self._sketches.items():
            sketch.load_state(take(state, name, dict))
        self._edges = None

    def summary(self) -> dict[str, Any]:
        """Return edges, number of values and relative error of the edges; no edges before the first value."""
        edges = self._computed_edges()
        return {
            name: {"edges": edges[name].tolist() if sketch.count else [], "values": sketch.count, "error": sketch.error}
            for name, sketch in self._sketches.items()
        }
