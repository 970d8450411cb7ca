"""Choose few samples that represent many, greedily and by features such as embeddings or gradients. Functions take arrays and return positions and
weights.

The modules here do not import policies, models or services. Features are (n, d) arrays of float16, float32 or float64, possibly mapped from a file.
No matrix of all pairs is kept in memory. Data about pairs take at most one byte a pair, for at most `partitioned.MOST_ROWS` candidates at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float16] | npt.NDArray[np.float32] | npt.NDArray[np.float64]


class Coreset(NamedTuple):
    """A choice out of n candidates."""

    positions: npt.NDArray[np.int64]
    """(size,), ascending."""
    weights: npt.NDArray[np.float32]
    """(size,), a weight for each position. The function that returns the coreset defines the meaning of the weights."""
    value: float
    """The value that the function maximizes or minimizes."""

    @classmethod
    def of(cls, chosen: npt.NDArray[np.int64], weights: npt.NDArray[np.float64] | None, value: float) -> Coreset:
        """Sort by position. Args: chosen: (size,), in any order. weights: (size,), weights of `chosen`; None if all weights are 1."""
        order = np.argsort(chosen)
        found = np.ones(len(chosen), np.float32) if weights is None else weights[order].astype(np.float32)
        return cls(chosen[order], found, float(value))
