"""Gradient matching: few gradients whose weighted mean is near to that of all, by non-negative orthogonal matching pursuit.

Killamsetty et al.: GRAD-MATCH: Gradient Matching based Data Subset Coreset for Efficient Deep Model Training, 2021, algorithm 2, with weights
that are not negative: each step solves a least squares problem for these as Lawson and Hanson do (1974), so one that turns out to be 0 goes again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from modyn.trainer_server.coresets.rows import Rows

RIDGE: Final = 0.1
"""λ, as a share of the mean of the Gram matrix' diagonal: the mean squared length of an atom."""
NOTHING: Final = 1e-10
"""What counts as no correlation and as no residual, as a share of those at the start; for float32 atoms, its rounding is more."""
PRECISE: Final = 1e-9
"""How far the normal equations may be missed, as a share of their right side."""


class Pursuit(NamedTuple):
    """What was found: Σ coefficients · atoms is near to the target."""

    chosen: npt.NDArray[np.int64]
    """(m,), in the order of the choice; m may be less than was asked for: no other atom brings the sum nearer."""
    coefficients: npt.NDArray[np.float64]
    """(m,), positive."""
    residual: npt.NDArray[np.float64]
    """(d,), what is left of the target."""


def pursue(atoms: Rows, target: npt.NDArray[np.float64], size: int, ridge: float = RIDGE) -> Pursuit:
    """Choose the atom with the largest product with the residual, solve for all coefficients ≥ 0, and again, until `size` are not 0.

    Minimizes |target - Σ c_i atom_i|² + λ |c|². Args: atoms: (n, d). target: (d,). size: at most so many. ridge: λ, as a share of the mean squared
    length of an atom.
    """
    squares = np.einsum("ij,ij->i", atoms, atoms, dtype=np.float64)
    support = _Support(atoms, target, min(size, len(atoms)), ridge * float(squares.mean()) if len(atoms) else 0.0)
    refused = squares == 0
    scale = float(np.abs(atoms @ target.astype(atoms.dtype)).max(initial=0.0))
    least = max(NOTHING, 4 * float(np.finfo(atoms.dtype).eps)) * scale
    for _ in range(3 * size):
        if len(support.chosen) >= min(size, len(atoms)):
            break
        products = atoms @ support.residual.astype(atoms.dtype)
        products[refused] = -np.inf
        products[support.chosen] = -np.inf
        best = int(np.argmax(products))
        if not products[best] > least:
            break
        if not support.add(best):
            refused[best] = True
    return Pursuit(np.array(support.chosen, np.int64), support.coefficients, support.residual)


class _Support:
    """The atoms that are chosen, their coefficients, and the inverse of their Gram matrix with λ on its diagonal."""

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
        """Add an atom and solve. Returns: whether it stays; if not, nothing has changed."""
        count = len(self.chosen)
        atom = self._all[number].astype(np.float64)
        products = self._atoms[:count] @ atom
        inverse = self._inverse[:count, :count]
        solved = inverse @ products
        squared = float(atom @ atom) + self._ridge
        left = squared - float(products @ solved)
        coefficient = float(atom @ self._target) - float(solved @ (self._atoms[:count] @ self._target))
        if not (left > 1e-12 * squared and coefficient > 0):  # it lies in the span of the others, or would get no weight
            return False
        inverse += np.outer(solved, solved) / left
        self._inverse[:count, count] = self._inverse[count, :count] = -solved / left
        self._inverse[count, count] = 1 / left
        self._atoms[count] = atom
        self.chosen.append(number)
        self._solve(np.append(self.coefficients, 0.0))
        return True

    def _solve(self, before: npt.NDArray[np.float64]) -> None:
        """Go from feasible coefficients towards the best ones as far as none becomes negative, drop what is 0, and again."""
        while True:
            count = len(self.chosen)
            best = self._best(count)
            if best.min(initial=1.0) > 0:
                break
            falling = best <= 0
            steps = before[falling] / np.maximum(before[falling] - best[falling], np.finfo(np.float64).tiny)
            before = before + steps.min() * (best - before)
            gone = np.flatnonzero(falling)[steps == steps.min()]
            before = np.delete(before, gone)
            for position in gone[::-1]:
                self._drop(int(position))
        self.coefficients = best
        self.residual = self._target - best @ self._atoms[:count]

    def _best(self, count: int) -> npt.NDArray[np.float64]:
        """The coefficients that solve the normal equations; with the inverse made anew where its updates have lost precision."""
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
        inverse -= np.outer(column, column) / column[position]
        keep = np.delete(np.arange(count), position)
        inverse[: count - 1, : count - 1] = inverse[np.ix_(keep, keep)]
        self._atoms[position : count - 1] = self._atoms[position + 1 : count]
        del self.chosen[position]
