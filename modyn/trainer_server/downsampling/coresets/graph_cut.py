"""The graph cut, a set function that is large if the chosen candidates S are near to all candidates and far from each other.

f(S) = Σ_{j ∈ S} Σ_i K(i, j) - λ Σ_{i, j ∈ S} K(i, j), with i over all candidates and K = (1 + cos) / 2. The function is monotone for λ ≤ 1/2. (Iyer
et al.: Submodular Combinatorial Information Measures, 2021, section 2.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from modyn.trainer_server.downsampling.coresets import FloatArray
from modyn.trainer_server.downsampling.coresets.greedy import SetFunction
from modyn.trainer_server.downsampling.coresets.rows import kernel_rows


class GraphCut(SetFunction):
    """Computes sums over all candidates as a product with a sum of rows, because K(i, j) is the product of two rows. Makes no pass over pairs."""

    keeps_gains = True

    def __init__(self, features: FloatArray, redundancy: float = 0.5) -> None:
        """Args: features: (n, d), finite. redundancy: λ, at least 0."""
        self._rows, diagonal = kernel_rows(features)
        self._redundancy = redundancy
        self._gains = self._rows @ self._rows.sum(0, dtype=np.float64) - redundancy * diagonal
        self._value = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def value(self) -> float:
        """Return f(S)."""
        return self._value

    def gains(self, candidates: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the gain of each candidate. Args: candidates: (m,). Returns: (m,)."""
        found: npt.NDArray[np.float64] = self._gains[candidates]
        return found

    def add(self, candidate: int) -> None:
        """Add a candidate to the set."""
        self._value += float(self._gains[candidate])
        self._gains -= 2 * self._redundancy * (self._rows @ self._rows[candidate]).astype(np.float64)
