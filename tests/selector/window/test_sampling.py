"""The sampler: a subset of exactly the size asked for, every subset equally likely, in memory that does not grow with it."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from modyn.selector.window.sampling import BLOCK, _counts, sample_positions


def drawn(population: int, size: int, seed: int) -> list[int]:
    blocks = list(sample_positions(population, size, np.random.default_rng(seed)))
    return np.concatenate([np.empty(0, np.int64), *blocks]).tolist()  # type: ignore[no-any-return]


@given(population=st.integers(0, 3 * BLOCK + 5), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_exactly_size_distinct_ascending_positions(population: int, share: float, seed: int) -> None:
    size = round(population * share)
    found = np.array(drawn(population, size, seed), np.int64)
    assert len(found) == size
    assert (np.diff(found) > 0).all()
    assert not size or (found[0] >= 0 and found[-1] < population)
    assert found.tolist() == drawn(population, size, seed)


@pytest.mark.parametrize(("population", "size"), [(5, 6), (5, -1), (0, 1)])
def test_a_size_that_cannot_be_is_refused(population: int, size: int) -> None:
    with pytest.raises(ValueError, match="cannot draw"):
        list(sample_positions(population, size, np.random.default_rng(0)))


def test_every_subset_is_equally_likely_across_blocks() -> None:
    """The test counts all 35 subsets of 3 out of 7 samples in blocks of 2: a bias between or within blocks would be visible."""
    counts: dict[tuple[int, ...], int] = {}
    generator = np.random.default_rng(5)
    for _ in range(7000):
        subset = tuple(np.concatenate(list(sample_positions(7, 3, generator, block=2))).tolist())
        counts[subset] = counts.get(subset, 0) + 1
    assert len(counts) == 35
    assert stats.chisquare(list(counts.values())).pvalue > 0.001


def test_block_counts_follow_the_hypergeometric_distribution() -> None:
    lengths = np.array([30, 50, 20], np.int64)
    generator = np.random.default_rng(9)
    found = np.array([_counts(lengths, 40, generator) for _ in range(4000)])
    assert (found.sum(axis=1) == 40).all()
    values = np.arange(41)
    expected = stats.hypergeom(100, 50, 40).pmf(values) * len(found)
    likely = expected > 20
    observed = np.bincount(found[:, 1], minlength=41)[likely]
    assert stats.chisquare(observed, expected[likely] * observed.sum() / expected[likely].sum()).pvalue > 0.001


@pytest.mark.parametrize("size", [1000, 25_000_000, 49_999_000])
def test_memory_does_not_grow_with_fifty_million_keys(size: int) -> None:
    generator = np.random.default_rng(1)
    tracemalloc.start()
    try:
        blocks = sample_positions(50_000_000, size, generator)
        for _ in range(20):
            next(blocks)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20


def test_there_is_no_limit_at_a_billion() -> None:
    first = next(sample_positions(3_000_000_000, 1_500_000_000, np.random.default_rng(2)))
    assert 0.45 * BLOCK < len(first) < 0.55 * BLOCK
