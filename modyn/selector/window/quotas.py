"""Compute the number of samples of each stratum by exact integer water-filling, without rounding errors at any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from modyn.records import Int64Array


def quotas(
    counts: Int64Array,
    budget: int,
    generator: np.random.Generator,
    weights: Sequence[int] | None = None,
    *,
    least: int = 0,
    unbiased: bool = False,
) -> Int64Array:
    """Divide `budget` samples among strata in proportion to their weights. No stratum gets more than its count.

    The share of stratum i is min(countᵢ, max(least, λ·weightᵢ)), with the level λ for which all shares add up to the budget. If a stratum has fewer
    samples than its weight demands, the other strata get the rest, in proportion to their weights. Shares are rounded down. The remaining samples go,
    one each, to the strata with the largest remainders (Hamilton's method). The generator decides among equal remainders. The budget is used in full.

    Args:
        counts: number of samples of each stratum, int64 (n,). budget: number of samples to divide. If the budget exceeds the sum of counts, each
        stratum gets its count. weights: n integers, not negative, of any size. None gives all strata the same weight. Strata of weight 0 get samples
        only if all other strata are full. least: smallest quota of each stratum with at least this number of samples. The option has no effect if
        these quotas together exceed the budget. unbiased: the remaining samples go to random strata with probabilities equal to their remainders, so
        that the expected quotas are the shares.
    Returns: quota of each stratum, int64 (n,). The sum of the quotas is the smaller of the budget and the sum of counts.
    Raises: ValueError: the budget is negative.

    >>> quotas(np.array([2, 50, 3, 100]), 40, np.random.default_rng(0)).tolist()
    [2, 18, 3, 17]
    >>> quotas(np.array([1000, 3, 97]), 110, np.random.default_rng(0), weights=[1000, 3, 97], least=1).tolist()
    [99, 1, 10]
    """
    if budget < 0:
        raise ValueError(f"cannot divide {budget} samples")
    counts = np.asarray(counts, np.int64)
    if budget >= counts.sum():
        return counts.copy()
    # Python's integers do not overflow: weights may have hundreds of bits.
    most, weighed = counts.astype(object), np.array([1] * len(counts) if weights is None else list(weights), object)
    floor = np.minimum(most, least) if int(np.minimum(counts, least).sum()) <= budget else np.zeros_like(most)
    given = floor.copy()
    free = (counts > 0) & (weighed > 0)
    if int(given[~free].sum() + most[free].sum()) < budget:
        # Strata with a positive weight get all their samples, and the other strata divide the rest equally.
        rest = np.where(free, 0, counts)
        return np.where(free, counts, quotas(rest, budget - int(counts[free].sum()), generator, least=least, unbiased=unbiased))
    while True:
        left, total = budget - int(given[~free].sum()), int(weighed[free].sum())
        share = left * weighed  # The share of each stratum, multiplied by `total`: fractions stay exact.
        over, under = free & (share > most * total), free & (share < floor * total)
        excess, deficit = (share - most * total)[over].sum(), (floor * total - share)[under].sum()
        # Fixing strata changes the level λ. If the excess is larger than the deficit, λ rises: strata above their counts stay above their counts, and
        # are fixed now. If the deficit is larger, λ falls: strata below their floors stay below their floors, and are fixed now.
        fixed = (over & (excess >= deficit)) | (under & (deficit >= excess))
        if not fixed.any():
            break
        given = np.where(fixed, np.where(over, most, floor), given)
        free &= ~fixed
    given[free], remainders = share[free] // total, share % max(total, 1)
    order = generator.permutation(np.flatnonzero(free)).tolist()
    if unbiased:
        chosen = _systematic(order, remainders, total, generator)
    else:
        chosen = sorted(order, key=lambda at: remainders[at], reverse=True)[: budget - int(given.sum())]
    given[chosen] += 1
    return given.astype(np.int64)


def _systematic(order: Sequence[int], remainders: Any, total: int, generator: np.random.Generator) -> list[int]:
    """Choose strata, each with probability remainder / total, by systematic sampling in a random order.

    Args: remainders: remainders of all strata, Python integers; the remainders of the strata in `order` add up to a multiple of `total`.
    """
    # The draw has 64 bits more than `total`, so that its bias is less than 2^-64.
    at, chosen = int.from_bytes(generator.bytes(total.bit_length() // 8 + 9)) % max(total, 1), list[int]()
    for stratum in order:
        at += remainders[stratum]
        if at >= total:
            at -= total
            chosen.append(stratum)
    return chosen
