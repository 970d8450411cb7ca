"""When a sum of floating-point numbers exceeds a limit: the one place that says how much of a difference is rounding."""

from __future__ import annotations

import math
from typing import Final

TOLERANCE: Final = 1e-9
"""A difference of at most this share of the numbers is rounding: a sum of 10⁶ numbers in float64 is exact to about 10⁻¹⁰ of the largest."""


def exceeds(total: float, limit: float, unit: float = 1.0) -> bool:
    """Return whether a sum lies above a limit. A sum that equals the limit, up to rounding, does not.

    Ten times 0.1 does not exceed 1, and three times 0.1 does not exceed 0.3, in whichever order they are added. Policies that fire above a threshold
    of an accumulated number ask this; those that fire at it ask `not exceeds(limit, total)`.

    Args: unit: the size of what is added (1: one sample, one second). It counts where terms of both signs leave a sum near 0.

    >>> 0.1 + 0.2 > 0.3, exceeds(0.1 + 0.2, 0.3), exceeds(0.301, 0.3)
    (True, False, True)
    """
    return total > limit and not math.isclose(total, limit, rel_tol=TOLERANCE, abs_tol=TOLERANCE * abs(unit))
