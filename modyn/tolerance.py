"""Comparison of a sum of floating-point numbers with a limit. Only this module decides which differences count as rounding."""

from __future__ import annotations

import math
from typing import Final

TOLERANCE: Final = 1e-9
"""Largest relative difference that counts as rounding. A sum of 10⁶ numbers in float64 has an error of about 10⁻¹⁰ of the largest number."""


def exceeds(total: float, limit: float, unit: float = 1.0) -> bool:
    """Return whether a sum exceeds a limit. A sum that equals the limit up to rounding does not exceed the limit.

    Ten times 0.1 does not exceed 1, and three times 0.1 does not exceed 0.3, in any order of addition. Policies that fire above a threshold use
    this function. Policies that also fire at the threshold use `not exceeds(limit, total)`.

    Args: unit: typical size of a term (1: one sample, one second). The unit matters if terms of both signs have a sum near 0.

    >>> 0.1 + 0.2 > 0.3, exceeds(0.1 + 0.2, 0.3), exceeds(0.301, 0.3)
    (True, False, True)
    """
    return total > limit and not math.isclose(total, limit, rel_tol=TOLERANCE, abs_tol=TOLERANCE * abs(unit))
