"""k-center by farthest-first traversal: choose centers so that the largest distance from a candidate to its nearest center is small.

Gonzalez 1985: the radius is at most twice the smallest possible radius. Sener and Savarese: Active Learning for Convolutional Neural Networks: A
Core-Set Approach, 2018, algorithm 1.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from modyn.trainer_server.downsampling.coresets import Coreset, FloatArray
from modyn.trainer_server.downsampling.coresets.rows import Rows, centred_rows, check_features

CANCELLED: Final = 1e-3
"""Squared distances below this share of the squared lengths are recomputed from differences, because rounding in products dominates such distances.
"""


def k_center(features: FloatArray, size: int) -> Coreset:
    """Choose the candidate nearest to the mean, then repeatedly the candidate farthest from its nearest center. The smallest position wins among
    equal distances.

    Args: features: (n, d). size: number to choose, at most all. Returns: weights of 1; value: the radius, in units of the
    features. Raises InvalidArgumentError: a feature is not finite.
    """
    check_features(features)
    rows, unit = centred_rows(features)
    size = min(size, len(rows))
    chosen = np.empty(size, np.int64)
    squares = np.einsum("ij,ij->i", rows, rows)
    nearest = np.full(len(rows), np.inf, rows.dtype)
    for step in range(size):
        chosen[step] = np.argmax(nearest) if step else np.argmin(squares)
        np.minimum(nearest, _squared_distances(rows, squares, int(chosen[step])), out=nearest)
        # No candidate is chosen twice, even if all remaining distances are 0.
        nearest[chosen[: step + 1]] = -1
    return Coreset.of(chosen, None, unit * float(np.sqrt(max(0.0, nearest.max(initial=0.0)))))


def _squared_distances(rows: Rows, squares: Rows, center: int) -> Rows:
    found: Rows = rows @ (-2 * rows[center])
    lengths = squares + squares[center]
    found += lengths
    cancelled = np.flatnonzero(found < CANCELLED * lengths)
    found[cancelled] = np.square(rows[cancelled] - rows[center]).sum(1)
    return found
