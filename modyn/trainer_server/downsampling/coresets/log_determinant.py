"""Log determinant: f(S) = log det(λ I + K_S) measures the volume that the chosen candidates span. K = (1 + cos) / 2.

Kulesza and Taskar: Determinantal Point Processes for Machine Learning, 2012. Gains are kept as in Chen, Zhang and Zhou: Fast Greedy MAP Inference
for Determinantal Point Process, 2018, but in the space of the features, because K = Z Zᵀ. A gain is log(λ (1 + zᵀ P z)) with
P = (λ I + Z_Sᵀ Z_S)⁻¹. The function is monotone for λ ≥ 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from modyn.errors import InvalidArgumentError
from modyn.trainer_server.downsampling.coresets import FloatArray
from modyn.trainer_server.downsampling.coresets.greedy import SetFunction
from modyn.trainer_server.downsampling.coresets.rows import kernel_rows


class LogDeterminant(SetFunction):
    """Keeps zᵀ P z of each candidate. Each choice subtracts a product u uᵀ from P, and (z · u)² from zᵀ P z, in one pass over the rows."""

    keeps_gains = True

    def __init__(self, features: FloatArray, regularization: float = 1.0) -> None:
        """Args: features: (n, d), finite. regularization: λ. Raises InvalidArgumentError: λ is not positive."""
        if not regularization > 0:
            raise InvalidArgumentError(f"the regularization of a log determinant is {regularization}; it must be positive")
        self._rows, diagonal = kernel_rows(features)
        self._regularization = regularization
        self._left = diagonal / regularization
        self._taken = np.empty((0, self._rows.shape[1]))
        self._num_taken = 0
        self._value = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def value(self) -> float:
        """Return f(S)."""
        return self._value

    def gains(self, candidates: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the gain of each candidate. Args: candidates: (m,). Returns: (m,)."""
        return np.log(self._regularization) + np.log1p(self._left[candidates])  # type: ignore[no-any-return]

    def add(self, candidate: int) -> None:
        """Add a candidate to the set."""
        self._value += float(self.gains(np.array([candidate]))[0])
        row = self._rows[candidate].astype(np.float64)
        taken = self._taken[: self._num_taken]
        direction = row / self._regularization - (taken @ row) @ taken
        direction /= np.sqrt(1 + row @ direction)
        if self._num_taken == len(self._taken):
            self._taken = np.concatenate([taken, np.empty((max(16, len(taken)), len(row)))])
        self._taken[self._num_taken] = direction
        self._num_taken += 1
        self._left -= np.square(self._rows @ direction.astype(np.float32), dtype=np.float64)
        np.maximum(self._left, 0, out=self._left)
