"""Facility location: f(S) = Σ_i w_i max_{j ∈ S} (farthest - distance(i, j)), how near all candidates are to the chosen ones.

Mirzasoleiman, Bilmes and Leskovec: Coresets for Data-efficient Training of Machine Learning Models, 2020, equation 11, with Euclidean distances;
with cosine distances farthest = 1, and the similarity is (1 + cos) / 2.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from modyn._core import NearestGains
from modyn.trainer_server.coresets.distances import Distances
from modyn.trainer_server.coresets.greedy import SetFunction
from modyn.trainer_server.coresets.rows import blocks

NEAR_SHARE: Final = 1 / 8
"""Of the candidates, so many near ones are kept of each: one byte a pair."""


class FacilityLocation(SetFunction):
    """Gains over all rows are kept exactly while the set grows, so that all maximizers cost the same: some three passes over all pairs."""

    keeps_gains = True

    def __init__(self, distances: Distances, weights: npt.NDArray[np.float32] | None = None) -> None:
        """Args: weights: (n,), what each row counts; none: 1."""
        self._distances = distances
        self._weights = np.ones(len(distances), np.float32) if weights is None else weights
        first = distances.farthest * self._weights.sum(dtype=np.float64) - distances.sums(self._weights)
        self._state = NearestGains(self._weights, first, int(np.ceil(NEAR_SHARE * len(distances))))
        self._nearest_chosen = np.full(len(distances), -1)

    def __len__(self) -> int:
        return len(self._distances)

    @property
    def value(self) -> float:
        """f(S) in units of `distances`; 0 if nothing is chosen."""
        return float(self._weights @ np.maximum(0.0, self._distances.farthest - self._state.nearest.astype(np.float64)))

    def gains(self, candidates: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """What each would add. Args: candidates: (m,). Returns: (m,)."""
        return self._state.gains[candidates]

    def add(self, candidate: int) -> None:
        """Choose one."""
        distances = self._distances.rows(np.array([candidate]))[0]
        self._nearest_chosen[distances < self._state.nearest] = candidate
        self._nearest_chosen[candidate] = candidate
        rows = self._state.choose(distances)
        for part in blocks(len(rows), len(self)):
            some = rows[part]
            self._state.update_rows(some, self._distances.rows(some), distances[some])

    def represented(self, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The weights of the rows that are nearest to each chosen one, of which it is one itself; together those of all rows.

        Args: chosen: (size,), all that were added. Returns: (size,).
        """
        if not len(chosen):
            return np.empty(0)
        found: npt.NDArray[np.float64] = np.bincount(self._nearest_chosen, self._weights, len(self)).astype(np.float64)
        return found[chosen]
