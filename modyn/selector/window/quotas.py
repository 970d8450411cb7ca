"""How many samples each stratum gives: exact integer water-filling. Pure arithmetic, without rounding errors at any size."""

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
    """Divide `budget` samples among strata in proportion to their weights, none getting more than it has.

    There is one level λ for which the shares min(countᵢ, max(least, λ·weightᵢ)) add up to the budget: what a full stratum leaves goes to
    the others by their weights. Shares that are not whole are rounded down, and the samples that are left go one each to the largest
    remainders (Hamilton's method); among equal remainders, the generator decides. The budget is used in full.

    Args:
        counts: samples of each stratum, int64 (n,).
        budget: to divide; more than there are samples gives all of them.
        weights: n integers, not negative, of any size; None: all equal. Strata of weight 0 get samples only when all others are full.
        least: samples that each stratum gets at least, as far as it has them; 0 where that would be more than the budget in all.
        unbiased: what is left goes to strata at random, with probabilities equal to their remainders, so that the expected quotas are the shares.
    Returns: samples of each stratum, int64 (n,), whose sum is the smaller of the budget and all samples.
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
        # Those with a weight get all they have, and the others divide the rest as equals.
        rest = np.where(free, 0, counts)
        return np.where(free, counts, quotas(rest, budget - int(counts[free].sum()), generator, least=least, unbiased=unbiased))
    while True:
        left, total = budget - int(given[~free].sum()), int(weighed[free].sum())
        share = left * weighed  # times 1 / total
        over, under = free & (share > most * total), free & (share < floor * total)
        excess, deficit = (share - most * total)[over].sum(), (floor * total - share)[under].sum()
        # The level can only rise where strata are over their counts by more than others are under their floor, and those stay over; and
        # the other way round.
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

    Args: remainders: Python's integers, of all strata; those in `order` add up to a multiple of `total`.
    """
    # 64 bits more than `total` has: the bias is less than 2^-64.
    at, chosen = int.from_bytes(generator.bytes(total.bit_length() // 8 + 9)) % max(total, 1), list[int]()
    for stratum in order:
        at += remainders[stratum]
        if at >= total:
            at -= total
            chosen.append(stratum)
    return chosen
