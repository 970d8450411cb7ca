"""How positions are drawn by scores: inclusion probabilities, systematic sampling, the highest scores, quotas of classes. Arrays in and out."""

from __future__ import annotations

from typing import Final

import numpy as np

from modyn.records import BoolArray, Float32Array, Float64Array, Int64Array

NO_CLASS: Final = -(2**63)
"""The label of a candidate where labels are no classes, or no pass has read them, or the loss ignores it."""


def inclusion_probabilities(
    scores: Float32Array, size: int, uniform_share: float = 0.0, usable: BoolArray | None = None
) -> Float64Array:
    """The probability with which each of N candidates is to be among `size` < N, in proportion to its score, but at most 1: float64 (N,).

    With a uniform share λ, in proportion to (1 - λ) sᵢ / Σ s + λ / M, over the M usable ones: then none is below min(1, λ size / M), and no weight
    above M / (λ N). Those that are not usable keep their score, which must be 0.

    What exceeds 1 is capped, and the rest shared anew among the others, until none does: the sum is `size`. Candidates of score 0 get something
    only where fewer than `size` others are: then these are certain, and those equally likely. Infinite scores count as the highest finite one.

    Args: scores: (N,), at least 0, no NaN. usable: bool (N,); None: all are.

    >>> inclusion_probabilities(np.array([0, 1, 1, 2, 12], np.float32), 3)
    array([0. , 0.5, 0.5, 1. , 1. ])
    >>> inclusion_probabilities(np.array([0, 0, 3, 1], np.float32), 1, uniform_share=0.4)
    array([0.1 , 0.1 , 0.55, 0.25])
    >>> inclusion_probabilities(np.array([0, 0, 5], np.float32), 2)
    array([0.5, 0.5, 1. ])
    """
    wanted = scores.astype(np.float64)
    infinite = np.isinf(wanted)
    if infinite.any():
        wanted[infinite] = np.max(wanted, initial=0.0, where=~infinite) or 1.0
    if uniform_share:
        _mix(wanted, uniform_share, usable)
    positive = wanted > 0
    num_positive = int(positive.sum())
    if num_positive <= size:
        return np.where(positive, 1.0, (size - num_positive) / max(1, len(wanted) - num_positive))
    # Of equal size, so that no sum of them overflows, and no quotient underflows where scores are tiny.
    wanted /= wanted.max()
    certain = np.zeros(len(wanted), np.bool_)
    while True:
        rest = size - int(certain.sum())
        total = wanted.sum(where=~certain)
        probabilities: Float64Array = np.where(certain, 1.0, wanted * (rest / total)) if total > 0 else certain.astype(np.float64)
        over = ~certain & (probabilities >= 1.0)
        if not over.any():
            return probabilities
        certain |= over


def _mix(wanted: Float64Array, uniform_share: float, usable: BoolArray | None) -> None:
    """Replace scores, finite ones, by what inclusion probabilities are in proportion to."""
    if (most := wanted.max(initial=0.0)) > 0:
        wanted /= most  # so that no sum of them overflows
        wanted *= (1 - uniform_share) / float(wanted.sum())
    if usable is None:
        wanted += uniform_share / max(1, len(wanted))
    else:
        np.add(wanted, uniform_share / max(1, int(np.count_nonzero(usable))), out=wanted, where=usable)


def systematic_sample(probabilities: Float64Array, size: int, generator: np.random.Generator) -> Int64Array:
    """Draw `size` candidates without replacement, each with exactly its probability: positions, int64 (size,), ascending.

    Systematic sampling in random order (Madow: On the Theory of Systematic Sampling, II, 1949): the probabilities are laid end to end in a random
    order, and the candidates taken on which u, u + 1, u + 2, … fall. Args: probabilities: (N,), which sum to `size`.
    """
    certain = np.flatnonzero(probabilities >= 1.0)
    order = generator.permutation(np.flatnonzero((probabilities > 0.0) & (probabilities < 1.0)))
    rest = size - len(certain)
    if not rest:
        return certain
    ends = np.cumsum(probabilities[order])
    ends *= rest / ends[-1]  # the sum, but for rounding
    points = generator.random() + np.arange(rest)
    drawn = order[np.searchsorted(ends[:-1], points, side="right")]
    return np.sort(np.concatenate([certain, drawn]))


def sample_by_scores(
    scores: Float32Array, size: int, generator: np.random.Generator, uniform_share: float = 0.0, usable: BoolArray | None = None
) -> tuple[Int64Array, Float32Array]:
    """Draw `size` of N candidates by `inclusion_probabilities` πᵢ: their positions, and their weights k / (N πᵢ), by which the mean over the drawn of
    wᵢ xᵢ estimates the mean of x over all candidates without bias (Horvitz and Thompson, 1952), where x is 0 for probabilities of 0."""
    probabilities = inclusion_probabilities(scores, size, uniform_share, usable)
    positions = systematic_sample(probabilities, size, generator)
    return positions, (size / (len(scores) * probabilities[positions])).astype(np.float32)


def highest(scores: Float32Array, size: int, generator: np.random.Generator) -> Int64Array:
    """The positions of the `size` highest of N > size scores, (N,): int64, ascending; drawn among equal ones where not all of them fit.

    >>> highest(np.array([1, 9, 3, 5], np.float32), 2, np.random.default_rng(0))
    array([1, 3])
    """
    least = np.partition(scores, len(scores) - size)[len(scores) - size]
    above = np.flatnonzero(scores > least)
    equal = np.flatnonzero(scores == least)
    if len(above) + len(equal) > size:
        equal = generator.choice(equal, size - len(above), replace=False, shuffle=False)
    return np.sort(np.concatenate([above, equal]))


def class_quotas(counts: Int64Array, size: int, generator: np.random.Generator) -> Int64Array:
    """How many of `size` places each class gets, int64 (c,): by its share of the samples, but at least one where there are places for all.

    Classes whose share is less than one place get one, and the others share the rest in proportion. Fractions go to the largest remainders, drawn
    among equal ones. No class gets more than it has. Args: counts: samples of each class, at least 1, which sum to at least `size`.

    >>> class_quotas(np.array([90, 9, 1]), 10, np.random.default_rng(0))
    array([8, 1, 1])
    """
    raised = np.zeros(len(counts), np.bool_)
    # In whole numbers: shares of large sets would be rounded.
    while size >= len(counts) and (small := ~raised & (counts * (size - raised.sum()) < counts.sum(where=~raised))).any():
        raised |= small
    places = size - int(raised.sum())
    quotas, remainders = np.divmod(np.where(raised, 0, counts) * places, max(1, int(counts.sum(where=~raised))))
    by_remainder = np.lexsort((generator.random(len(counts)), -remainders))
    quotas[by_remainder[: places - int(quotas.sum())]] += 1
    found: Int64Array = np.where(raised, 1, quotas)
    return found
