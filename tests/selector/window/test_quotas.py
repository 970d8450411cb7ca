"""Quotas of strata against brute force: every way to divide the budget is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.selector.window.quotas import quotas


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def divisions(counts: Sequence[int], budget: int, least: int = 0) -> Iterator[tuple[int, ...]]:
    """Return all possible divisions of the budget."""
    ranges = [range(min(least, count), count + 1) for count in counts]
    return (way for way in product(*ranges) if sum(way) == budget)


def exact_shares(counts: Sequence[int], weights: Sequence[int], budget: int, least: int) -> list[Fraction]:
    """The shares at the level at which they add up to the budget, found by trying the segments between all levels at which one changes its course."""

    def at(level: Fraction) -> list[Fraction]:
        return [
            min(Fraction(count), max(Fraction(min(least, count)), level * weight))
            for count, weight in zip(counts, weights, strict=True)
        ]

    bends = sorted({Fraction(0), *(Fraction(n, w) for c, w in zip(counts, weights, strict=True) for n in (c, min(least, c)))})
    for low, high in pairwise(bends):
        before, after = sum(at(low)), sum(at(high))
        if before <= budget <= after and before < after:
            return at(low + (high - low) * (budget - before) / (after - before))
    return at(bends[0] if sum(at(bends[0])) == budget else bends[-1])


@given(counts=st.lists(st.integers(0, 6), min_size=1, max_size=5), budget=st.integers(0, 25), seed=st.integers(0, 9))
def test_equal_quotas_are_the_fairest_division(counts: list[int], budget: int, seed: int) -> None:
    """The one whose smallest quota is largest, then whose second smallest is, and so on."""
    found = quotas(np.array(counts), budget, generator(seed)).tolist()
    fairest = max(divisions(counts, min(budget, sum(counts))), key=sorted)
    assert sorted(found) == sorted(fairest)
    assert all(quota <= count for quota, count in zip(found, counts, strict=True))


@given(
    strata=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), min_size=1, max_size=4),
    budget=st.integers(0, 24),
    least=st.integers(0, 2),
    seed=st.integers(0, 9),
)
def test_weighted_quotas_are_the_nearest_to_the_exact_shares(
    strata: list[tuple[int, int]], budget: int, least: int, seed: int
) -> None:
    counts, weights = [count for count, _ in strata], [weight for _, weight in strata]
    budget = min(budget, sum(counts))
    found = quotas(np.array(counts), budget, generator(seed), weights, least=least).tolist()
    least = least if sum(min(least, count) for count in counts) <= budget else 0
    shares = exact_shares(counts, weights, budget, least)
    assert sum(shares) == budget

    def distance(way: Sequence[int]) -> Fraction:
        return sum(((quota - share) ** 2 for quota, share in zip(way, shares, strict=True)), Fraction(0))

    assert distance(found) == min(map(distance, divisions(counts, budget, least)))


@given(
    strata=st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 2**200)), max_size=60),
    part=st.fractions(0, 1),
    least=st.integers(0, 3),
)
def test_the_budget_is_used_in_full_and_none_gets_more_than_it_has(
    strata: list[tuple[int, int]], part: Fraction, least: int
) -> None:
    counts, weights = [count for count, _ in strata], [weight for _, weight in strata]
    budget = int(sum(counts) * part)
    for given_weights, unbiased in ((None, False), (None, True), (weights, False), (weights, True)):
        found = quotas(np.array(counts, np.int64), budget, generator(), given_weights, least=least, unbiased=unbiased).tolist()
        assert sum(found) == budget
        floor = least if sum(min(least, count) for count in counts) <= budget else 0
        assert all(min(floor, count) <= quota <= count for quota, count in zip(found, counts, strict=True))
        if given_weights is not None and any(q < c for q, c, w in zip(found, counts, weights, strict=True) if w):
            assert all(
                quota == min(floor, count) for quota, count, weight in zip(found, counts, weights, strict=True) if not weight
            )


def test_without_weight_there_is_a_share_once_the_others_are_full() -> None:
    assert quotas(np.array([10, 5, 10]), 13, generator(), [0, 3, 0]).tolist() == [4, 5, 4]
    assert quotas(np.array([10, 5, 10]), 4, generator(), [0, 3, 0]).tolist() == [0, 4, 0]
    assert quotas(np.array([10, 5, 10]), 6, generator(), [0, 3, 0], least=1).tolist() == [1, 4, 1]


def test_equal_remainders_are_given_to_each_equally_often() -> None:
    """Ten strata, seven samples: each gets one in 7 of 10 draws."""
    draws = np.array([quotas(np.full(10, 50), 7, generator(seed)) for seed in range(2000)])
    assert set(draws.sum(axis=1)) == {7}
    assert set(draws.ravel()) == {0, 1}
    chi_squared = ((draws.sum(axis=0) - 1400) ** 2 / (2000 * 0.7 * 0.3)).sum() * 0.9
    assert chi_squared < 27.9  # p = 0.001 with 9 degrees of freedom


def test_unbiased_quotas_are_the_shares_on_average() -> None:
    """Shares of 3/2, 1/2, 1/4, 7/4 and a full stratum."""
    counts, weights = np.array([9, 9, 9, 9, 2]), [6, 2, 1, 7, 50]
    draws = np.array([quotas(counts, 6, generator(seed), weights, unbiased=True) for seed in range(4000)])
    assert set(draws.sum(axis=1)) == {6}
    assert set(draws[:, 4]) == {2}
    for stratum, (whole, rest) in enumerate([(1, 0.5), (0, 0.5), (0, 0.25), (1, 0.75)]):
        assert set(draws[:, stratum]) == {whole, whole + 1}
        assert abs(draws[:, stratum].mean() - whole - rest) < 4 * (rest * (1 - rest) / 4000) ** 0.5


def test_many_strata_do_not_take_long_and_sums_do_not_overflow() -> None:
    counts = np.arange(1, 200_001) ** 2
    found = quotas(counts, int(counts.sum()) // 3, generator(), least=1)
    assert found.sum() == int(counts.sum()) // 3
    level = found.max()
    assert np.array_equal(found[counts < level - 1], counts[counts < level - 1])
    assert set((level - found[counts >= level]).tolist()) <= {0, 1}


def test_nothing_is_divided_among_none() -> None:
    assert quotas(np.zeros(0, np.int64), 5, generator()).tolist() == []
    assert quotas(np.zeros(3, np.int64), 5, generator(), [0, 1, 2]).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="cannot divide -1 samples"):
        quotas(np.array([3]), -1, generator())
