"""Facility location: f(S) = Σ_i w_i max_{j ∈ S} (farthest - distance(i, j)) is large if each candidate is near to a chosen one.

Mirzasoleiman, Bilmes and Leskovec: Coresets for Data-efficient Training of Machine Learning Models, 2020, equation 11, with Euclidean distances.
With cosine distances, farthest = 1 and the similarity is (1 + cos) / 2.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from modyn._core import NearestGains
from modyn.trainer_server.downsampling.coresets.distances import Distances
from modyn.trainer_server.downsampling.coresets.greedy import SetFunction
from modyn.trainer_server.downsampling.coresets.rows import blocks

NEAR_SHARE: Final = 1 / 8
"""Share of all candidates that is stored as the neighbours of each candidate. All neighbours together take one byte for each pair of candidates."""


class FacilityLocation(SetFunction):
    """Keeps the exact gains over all rows while the set grows. All maximizers therefore cost the same: about three passes over all pairs."""

    keeps_gains = True

    def __init__(self, distances: Distances, weights: npt.NDArray[np.float32] | None = None) -> None:
        """Args: weights: (n,), the weight of each row; None if all weights are 1."""
        self._distances = distances
        self._weights = np.ones(len(distances), np.float32) if weights is None else weights
        first = distances.farthest * self._weights.sum(dtype=np.float64) - distances.sums(self._weights)
        self._state = NearestGains(self._weights, first, int(np.ceil(NEAR_SHARE * len(distances))))
        self._nearest_chosen = np.full(len(distances), -1)

    def __len__(self) -> int:
        return len(self._distances)

    @property
    def value(self) -> float:
        """Return f(S) in units of `distances`; 0 for the empty set."""
        return float(self._weights @ np.maximum(0.0, self._distances.farthest - self._state.nearest.astype(np.float64)))

    def gains(self, candidates: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the gain of each candidate. Args: candidates: (m,). Returns: (m,)."""
        return self._state.gains[candidates]

    def add(self, candidate: int) -> None:
        """Add a candidate to the set."""
        distances = self._distances.rows(np.array([candidate]))[0]
        self._nearest_chosen[distances < self._state.nearest] = candidate
        self._nearest_chosen[candidate] = candidate
        rows = self._state.choose(distances)
        for part in blocks(len(rows), len(self)):
            some = rows[part]
            self._state.update_rows(some, self._distances.rows(some), distances[some])

    def represented(self, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return for each chosen row the total weight of the rows nearest to it, including its own weight. The results add up to the total weight.

        Args: chosen: (size,), all rows of the set. Returns: (size,).
        """
        if not len(chosen):
            return np.empty(0)
        found: npt.NDArray[np.float64] = np.bincount(self._nearest_chosen, self._weights, len(self)).astype(np.float64)
        return found[chosen]
