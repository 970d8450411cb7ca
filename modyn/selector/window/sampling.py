"""Draw uniform samples of positions block by block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from modyn.records import Int64Array

BLOCK = 65_536
"""Number of positions that a sampler decides at once. The number must not change, because a seed would then give another sample."""


def sample_positions(population: int, size: int, generator: np.random.Generator, block: int = BLOCK) -> Iterator[Int64Array]:
    """Yield `size` distinct positions of [0, population), each subset equally likely: int64, ascending, at most `block` at a time.

    The function first draws the number of samples in each block of `block` positions, then the positions of these samples. Memory: `block` positions,
    and 16 bytes for each block, which are 24 KB for a population of a hundred million. Raises ValueError unless 0 <= size <= population.

    >>> [block.tolist() for block in sample_positions(10, 10, np.random.default_rng(0))]
    [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]
    """
    if not 0 <= size <= population:
        raise ValueError(f"cannot draw {size} distinct positions from {population}")
    lengths = np.full(-(-population // block), block, np.int64)
    if population % block:
        lengths[-1] = population % block
    for index, (length, count) in enumerate(zip(lengths.tolist(), _counts(lengths, size, generator).tolist(), strict=True)):
        if count:
            yield index * block + _in_block(length, count, generator)


def _counts(lengths: Int64Array, size: int, generator: np.random.Generator) -> Int64Array:
    """Draw `size` times without replacement from urns of these lengths. Returns the number of draws from each urn.

    If each position is chosen with the same probability, the sample is uniform and has a random size. Random positions are then added or removed
    until the size is `size`, and the sample stays uniform. NumPy's hypergeometric draw would need one call for each block, and supports at most 10^9
    positions.
    """
    population = int(lengths.sum())
    if size in (0, population):
        return lengths if size else np.zeros_like(lengths)
    counts = generator.binomial(lengths, size / population).astype(np.int64)
    surplus = int(counts.sum()) - size
    if surplus > 0:
        counts -= _draw(counts, surplus, generator)
    elif surplus < 0:
        counts += _draw(lengths - counts, -surplus, generator)
    return counts


def _draw(urns: Int64Array, size: int, generator: np.random.Generator) -> Int64Array:
    """Draw `size` balls without replacement. Returns the number of balls from each urn. Memory grows with `size`, which is small here, because the
    draw only corrects the size of a sample.
    """
    ends = np.cumsum(urns)
    balls = generator.choice(int(ends[-1]), size, replace=False, shuffle=False)
    return np.bincount(np.searchsorted(ends, balls, side="right"), minlength=len(urns)).astype(np.int64)


def _in_block(length: int, count: int, generator: np.random.Generator) -> Int64Array:
    if 2 * count <= length:
        return np.sort(generator.choice(length, count, replace=False, shuffle=False)).astype(np.int64, copy=False)
    # Drawing the positions that are left out takes less time.
    chosen = np.ones(length, np.bool_)
    chosen[generator.choice(length, length - count, replace=False, shuffle=False)] = False
    return np.flatnonzero(chosen)
