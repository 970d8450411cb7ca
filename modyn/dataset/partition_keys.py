"""The keys of a partition, looked up in random order: what can be computed is not kept."""

from __future__ import annotations

import numpy as np

from modyn._core import Column, find_runs, pick
from modyn.records import Float32Array, Int64Array, KeysAndWeights

_MAX_RUNS = 64
"""More are searched longer than a key is waited for."""


class PartitionKeys:
    """Keys and weights of a partition by row. Keys that follow one another, as those of all new samples do, and weights that are all equal
    take no memory, and no waiting for it. Any thread."""

    def __init__(self, partition: KeysAndWeights) -> None:
        keys, weights = np.ascontiguousarray(partition.keys), np.ascontiguousarray(partition.weights)
        self._keys: Column | Int64Array = keys
        self._weights: np.float32 | Float32Array = weights
        if len(keys):
            runs = find_runs(keys, _MAX_RUNS)
            if runs is not None:
                self._keys = Column(np.concatenate(runs).view(np.uint8), "runs", 8, len(keys))
            if weights.min() == weights.max():
                self._weights = weights[0]

    def look_up(self, rows: Int64Array) -> KeysAndWeights:
        """Those of `rows`, int64 (n,), in that order."""
        keys = self._keys.take(rows) if isinstance(self._keys, Column) else pick(self._keys, rows)
        if isinstance(self._weights, np.ndarray):
            return KeysAndWeights(keys, pick(self._weights, rows))
        return KeysAndWeights(keys, np.full(len(rows), self._weights, np.float32))
