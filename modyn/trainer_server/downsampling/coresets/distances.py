"""Distances between all pairs of candidates. Rows of the matrix are computed on demand; the whole matrix is never in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from modyn.trainer_server.downsampling.coresets import FloatArray
from modyn.trainer_server.downsampling.coresets.rows import Rows, blocks, centred_rows, unit_rows

Distance = npt.NDArray[np.float32]


class Distances(ABC):
    """Distances between n candidates. Distances are at least 0, and 0 between a candidate and itself."""

    farthest: float
    """An upper bound of all distances."""
    unit: float = 1.0
    """Length, in units of the features, that corresponds to a distance of 1."""

    def __init__(self, left: Rows, right: Rows) -> None:
        """Args: left, right: (n, p). The distance between i and j is a function of the product of left row i and right row j."""
        self._left = left
        self._right = right

    def __len__(self) -> int:
        return len(self._left)

    def rows(self, positions: npt.NDArray[np.int64]) -> Distance:
        """Return the distances from some candidates to all candidates. Args: positions: (m,). Returns: (m, n)."""
        found = self._from_products(self._left[positions] @ self._right.T)
        found[np.arange(len(positions)), positions] = 0
        return found

    def sums(self, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return for each candidate j the sum of weights[i] · distance(i, j) over all candidates i. Args: weights: (n,). Returns: (n,)."""
        sums = np.zeros(len(self))
        for part in blocks(len(self), len(self)):
            sums += weights[part] @ self.rows(np.arange(part.start, part.stop))
        return sums

    @abstractmethod
    def _from_products(self, products: Any) -> Distance:
        """Convert products to distances. Args: products: (m, n), may be overwritten."""


class CosineDistances(Distances):
    """(1 - cos) / 2: 0 for equal directions, 1 for opposite directions, 1/2 for a row of length 0. The similarity is 1 minus the distance."""

    farthest = 1.0

    def __init__(self, features: FloatArray) -> None:
        """Args: features: (n, d), finite."""
        rows = unit_rows(features)
        ones = np.ones((len(rows), 1), np.float32)
        super().__init__(np.hstack([rows * np.float32(-0.5), ones * np.float32(0.5)]), np.hstack([rows, ones]))

    def sums(self, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the sums, computed as the product of a row with a sum of rows."""
        to_itself = np.einsum("ij,ij->i", self._left, self._right, dtype=np.float64)
        return np.asarray(self._right @ (weights.astype(np.float64) @ self._left) - weights * to_itself)

    def _from_products(self, products: Any) -> Distance:
        return np.maximum(products, 0, out=products)  # type: ignore[no-any-return]


class EuclideanDistances(Distances):
    """Euclidean distances, in units of the typical length of the features around their mean."""

    def __init__(self, features: FloatArray) -> None:
        """Args: features: (n, d), finite."""
        rows, self.unit = centred_rows(features)
        squares = np.einsum("ij,ij->i", rows, rows)[:, None]
        ones = np.ones_like(squares)
        super().__init__(np.hstack([-2 * rows, squares, ones]), np.hstack([rows, ones, squares]))
        self.farthest = 2 * float(np.sqrt(squares.max(initial=0.0)))

    def _from_products(self, products: Any) -> Distance:
        np.maximum(products, 0, out=products)
        return np.sqrt(products, out=products).astype(np.float32, copy=False)  # type: ignore[no-any-return]
