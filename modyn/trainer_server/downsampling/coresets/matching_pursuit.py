"""Gradient matching by non-negative orthogonal matching pursuit: choose few gradients whose weighted mean is near to the mean of all gradients.

Killamsetty et al.: GRAD-MATCH: Gradient Matching based Data Subset Coreset for Efficient Deep Model Training, 2021, algorithm 2, with weights
that are not negative. Each step solves a least squares problem as Lawson and Hanson do (1974), and drops gradients of weight 0.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from modyn.trainer_server.downsampling.coresets.rows import Rows

RIDGE: Final = 0.1
"""λ as a share of the mean squared length of an atom, which is the mean of the diagonal of the Gram matrix."""
NOTHING: Final = 1e-10
"""Correlations and residuals below this share of their initial value count as 0. The limit for float32 atoms is higher, because of rounding
errors."""
PRECISE: Final = 1e-9
"""Largest residual of the normal equations, as a share of their right side."""


class Pursuit(NamedTuple):
    """A result of `pursue`: Σ coefficients · atoms is near to the target."""

    chosen: npt.NDArray[np.int64]
    """(m,), in the order of the choice. m is below the requested size if no other atom brings the sum nearer to the target."""
    coefficients: npt.NDArray[np.float64]
    """(m,), positive."""
    residual: npt.NDArray[np.float64]
    """(d,), the target minus Σ coefficients · atoms."""


def pursue(atoms: Rows, target: npt.NDArray[np.float64], size: int, ridge: float = RIDGE) -> Pursuit:
    """Choose the atom with the largest product with the residual, solve for all coefficients ≥ 0, and repeat until `size` coefficients are not 0.

    Minimizes |target - Σ c_i atom_i|² + λ |c|². Args: atoms: (n, d). target: (d,). size: largest number of atoms. ridge: λ, as a share of the mean
    squared length of an atom.
    """
    squares = np.einsum("ij,ij->i", atoms, atoms, dtype=np.float64)
    support = _Support(atoms, target, min(size, len(atoms)), ridge * float(squares.mean()) if len(atoms) else 0.0)
    refused = squares == 0
    scale = float(np.abs(atoms @ target.astype(atoms.dtype)).max(initial=0.0))
    # Smaller products are rounding errors of the dtype. An atom with such a product would not lower the residual.
    least = max(NOTHING, 4 * float(np.finfo(atoms.dtype).eps)) * scale
    # A step may drop atoms whose coefficients become 0. The bound ends the loop even if the same atoms are added and dropped repeatedly.
    for _ in range(3 * size):
        if len(support.chosen) >= min(size, len(atoms)):
            break
        products = atoms @ support.residual.astype(atoms.dtype)
        products[refused] = -np.inf
        products[support.chosen] = -np.inf
        best = int(np.argmax(products))
        if not products[best] > least:
            break
        # An atom that other atoms already represent, or that would get no weight, is not tried again.
        if not support.add(best):
            refused[best] = True
    return Pursuit(np.array(support.chosen, np.int64), support.coefficients, support.residual)


class _Support:
    """The chosen atoms, their coefficients, and the inverse of their Gram matrix with λ added to its diagonal."""

    def __init__(self, atoms: Rows, target: npt.NDArray[np.float64], size: int, ridge: float) -> None:
        self.chosen: list[int] = []
        self.coefficients = np.empty(0)
        self.residual = target
        self._all = atoms
        self._target = target
        self._ridge = ridge
        self._atoms = np.empty((size, atoms.shape[1]))
        self._inverse = np.empty((size, size))

    def add(self, number: int) -> bool:
        """Add an atom and solve. Returns: whether the atom was added. If not, nothing has changed."""
        count = len(self.chosen)
        atom = self._all[number].astype(np.float64)
        products = self._atoms[:count] @ atom
        inverse = self._inverse[:count, :count]
        solved = inverse @ products
        squared = float(atom @ atom) + self._ridge
        left = squared - float(products @ solved)
        coefficient = float(atom @ self._target) - float(solved @ (self._atoms[:count] @ self._target))
        if not (left > 1e-12 * squared and coefficient > 0):  # the atom is in the span of the others, or gets no weight
            return False
        inverse += np.outer(solved, solved) / left
        self._inverse[:count, count] = self._inverse[count, :count] = -solved / left
        self._inverse[count, count] = 1 / left
        self._atoms[count] = atom
        self.chosen.append(number)
        self._solve(np.append(self.coefficients, 0.0))
        return True

    def _solve(self, before: npt.NDArray[np.float64]) -> None:
        """Move the coefficients towards the best coefficients until one of them reaches 0, drop the atoms whose coefficients are 0, and repeat."""
        while True:
            count = len(self.chosen)
            best = self._best(count)
            if best.min(initial=1.0) > 0:
                break
            falling = best <= 0
            # The fraction of the move to `best` at which each falling coefficient reaches 0. The move ends at the smallest fraction.
            steps = before[falling] / np.maximum(before[falling] - best[falling], np.finfo(np.float64).tiny)
            before = before + steps.min() * (best - before)
            gone = np.flatnonzero(falling)[steps == steps.min()]
            before = np.delete(before, gone)
            # Drop the last position first, so that the earlier positions stay valid.
            for position in gone[::-1]:
                self._drop(int(position))
        self.coefficients = best
        self.residual = self._target - best @ self._atoms[:count]

    def _best(self, count: int) -> npt.NDArray[np.float64]:
        """Solve the normal equations for the coefficients. The inverse is recomputed when its updates have lost precision."""
        atoms = self._atoms[:count]
        products = atoms @ self._target
        for _ in range(2):
            best: npt.NDArray[np.float64] = self._inverse[:count, :count] @ products
            wrong = products - atoms @ (best @ atoms) - self._ridge * best
            if np.abs(wrong).max(initial=0.0) <= PRECISE * np.abs(products).max(initial=0.0):
                break
            self._inverse[:count, :count] = np.linalg.inv(atoms @ atoms.T + self._ridge * np.eye(count))
        return best

    def _drop(self, position: int) -> None:
        count = len(self.chosen)
        inverse = self._inverse[:count, :count]
        column = inverse[position].copy()
        # After this update, the remaining rows and columns are the inverse for the remaining atoms.
        inverse -= np.outer(column, column) / column[position]
        keep = np.delete(np.arange(count), position)
        inverse[: count - 1, : count - 1] = inverse[np.ix_(keep, keep)]
        self._atoms[position : count - 1] = self._atoms[position + 1 : count]
        del self.chosen[position]
