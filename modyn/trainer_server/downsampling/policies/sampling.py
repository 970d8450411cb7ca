"""Draw positions by scores: inclusion probabilities, systematic sampling, the highest scores, quotas of classes. Pure functions of arrays."""

from __future__ import annotations

from typing import Final

import numpy as np

from modyn.records import BoolArray, Float32Array, Float64Array, Int64Array

NO_CLASS: Final = -(2**63)
"""The label of a candidate without a class: labels are not classes, no pass has read them, or the loss ignores the label."""


def inclusion_probabilities(
    scores: Float32Array, size: int, uniform_share: float = 0.0, usable: BoolArray | None = None
) -> Float64Array:
    """Return for each of N candidates the probability to be drawn, if `size` < N are drawn: proportional to its score, at most 1, float64 (N,).

    With a uniform share λ, probabilities are proportional to (1 - λ) sᵢ / Σ s + λ / M, for the M usable candidates. Each probability is then at least
    min(1, λ size / M), and each weight at most M / (λ N). Unusable candidates keep their score, which must be 0.

    The excess above 1 is shared among the other candidates until no probability exceeds 1, so that the sum is `size`. If fewer than `size` candidates
    have a score above 0, these candidates have probability 1, and the candidates of score 0 have equal probabilities. Otherwise candidates of score 0
    have probability 0. Infinite scores count as the highest finite score.

    Args: scores: (N,), at least 0, without NaN. usable: bool (N,); None if all candidates are usable.

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
    # Scale the scores, so that no sum overflows, and no quotient underflows for tiny scores.
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
    """Replace finite scores by numbers proportional to the inclusion probabilities."""
    if (most := wanted.max(initial=0.0)) > 0:
        wanted /= most  # The sum would otherwise overflow for large scores.
        wanted *= (1 - uniform_share) / float(wanted.sum())
    if usable is None:
        wanted += uniform_share / max(1, len(wanted))
    else:
        np.add(wanted, uniform_share / max(1, int(np.count_nonzero(usable))), out=wanted, where=usable)


def systematic_sample(probabilities: Float64Array, size: int, generator: np.random.Generator) -> Int64Array:
    """Draw `size` candidates without replacement, each with exactly its probability: positions, int64 (size,), ascending.

    Systematic sampling in random order (Madow: On the Theory of Systematic Sampling, II, 1949): the probabilities form consecutive intervals in a
    random order, and the points u, u + 1, u + 2, …, with a random u in [0, 1), fall into the intervals of the drawn candidates. Args: probabilities:
    (N,), with sum `size`.
    """
    certain = np.flatnonzero(probabilities >= 1.0)
    order = generator.permutation(np.flatnonzero((probabilities > 0.0) & (probabilities < 1.0)))
    rest = size - len(certain)
    if not rest:
        return certain
    ends = np.cumsum(probabilities[order])
    ends *= rest / ends[-1]  # scale the sum to `rest`, apart from rounding
    points = generator.random() + np.arange(rest)
    drawn = order[np.searchsorted(ends[:-1], points, side="right")]
    return np.sort(np.concatenate([certain, drawn]))


def sample_by_scores(
    scores: Float32Array, size: int, generator: np.random.Generator, uniform_share: float = 0.0, usable: BoolArray | None = None
) -> tuple[Int64Array, Float32Array]:
    """Draw `size` of N candidates by `inclusion_probabilities` πᵢ. Return their positions, and weights k / (N πᵢ). The mean of wᵢ xᵢ over the drawn
    candidates estimates the mean of x over all candidates without bias (Horvitz and Thompson, 1952) if x is 0 for candidates of probability 0."""
    probabilities = inclusion_probabilities(scores, size, uniform_share, usable)
    positions = systematic_sample(probabilities, size, generator)
    return positions, (size / (len(scores) * probabilities[positions])).astype(np.float32)


def highest(scores: Float32Array, size: int, generator: np.random.Generator) -> Int64Array:
    """Return the positions of the `size` highest of N > size scores, (N,): int64, ascending. Ties at the lowest returned score are drawn at random.

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
    """Divide `size` places among classes, int64 (c,): in proportion to their samples, but at least one place each if there are enough places.

    Classes whose share is below one place get one place, and the other classes share the rest in proportion. Shares are rounded up for the largest
    remainders. A draw decides between equal remainders. No class gets more places than samples. Args: counts: samples of each class, at least 1,
    whose sum is at least `size`.

    >>> class_quotas(np.array([90, 9, 1]), 10, np.random.default_rng(0))
    array([8, 1, 1])
    """
    raised = np.zeros(len(counts), np.bool_)
    # The comparison uses integers, because shares of large sets would be rounded.
    while size >= len(counts) and (small := ~raised & (counts * (size - raised.sum()) < counts.sum(where=~raised))).any():
        raised |= small
    places = size - int(raised.sum())
    quotas, remainders = np.divmod(np.where(raised, 0, counts) * places, max(1, int(counts.sum(where=~raised))))
    by_remainder = np.lexsort((generator.random(len(counts)), -remainders))
    quotas[by_remainder[: places - int(quotas.sum())]] += 1
    found: Int64Array = np.where(raised, 1, quotas)
    return found
