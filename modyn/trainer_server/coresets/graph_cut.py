"""Graph cut: f(S) = Σ_{i, j ∈ S} K(i, j) over all candidates i, less λ Σ_{i, j ∈ S} K(i, j): near to all, and far from each other.

Iyer et al.: Submodular Combinatorial Information Measures, 2021, section 2. K = (1 + cos) / 2. Monotone for λ ≤ 1/2.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from modyn.trainer_server.coresets import FloatArray
from modyn.trainer_server.coresets.greedy import SetFunction
from modyn.trainer_server.coresets.rows import kernel_rows


class GraphCut(SetFunction):
    """As K is a product of rows, sums over all candidates are a product with a sum of rows: no pass over pairs."""

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
        """f(S)."""
        return self._value

    def gains(self, candidates: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """What each would add. Args: candidates: (m,). Returns: (m,)."""
        found: npt.NDArray[np.float64] = self._gains[candidates]
        return found

    def add(self, candidate: int) -> None:
        """Choose one."""
        self._value += float(self._gains[candidate])
        self._gains -= 2 * self._redundancy * (self._rows @ self._rows[candidate]).astype(np.float64)
