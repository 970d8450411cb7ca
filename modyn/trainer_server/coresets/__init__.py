"""Which few samples stand for many: greedy choices by features, such as embeddings or gradients. Arrays in, positions and weights out.

Nothing here knows policies, models or services. Features are (n, d) arrays of float16, float32 or float64, which may be mapped from a file. No
matrix of all pairs is ever held: what grows with n² is at most one byte a pair, of at most `partitioned.MOST_ROWS` candidates at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float16] | npt.NDArray[np.float32] | npt.NDArray[np.float64]


class Coreset(NamedTuple):
    """What was chosen of n candidates."""

    positions: npt.NDArray[np.int64]
    """(size,), ascending."""
    weights: npt.NDArray[np.float32]
    """(size,), of each position; what they mean is said by the function that returns them."""
    value: float
    """What the function that returns this maximizes or minimizes."""

    @classmethod
    def of(cls, chosen: npt.NDArray[np.int64], weights: npt.NDArray[np.float64] | None, value: float) -> Coreset:
        """Sorted by position. Args: chosen: (size,), in any order. weights: (size,), of each; none: 1."""
        order = np.argsort(chosen)
        found = np.ones(len(chosen), np.float32) if weights is None else weights[order].astype(np.float32)
        return cls(chosen[order], found, float(value))
