"""Uniform samples of positions, drawn block by block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from modyn.records import Int64Array

BLOCK = 65_536
"""Positions that a sampler decides on at once. Fixed, because a seed means the same sample only as long as this stays."""


def sample_positions(population: int, size: int, generator: np.random.Generator, block: int = BLOCK) -> Iterator[Int64Array]:
    """Yield `size` distinct positions of [0, population), each subset equally likely: int64, ascending, at most `block` at a time.

    Draws first how many fall into each `block` neighbouring positions, then which ones. Memory: `block` positions and 16 bytes a block,
    so 24 KB for a hundred million. Raises ValueError unless 0 <= size <= population.

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
    """Draw how many of `size` draws without replacement fall into urns of these lengths.

    A coin flip per position, all with one probability, gives a uniform sample of random size; taking random ones out or in until `size`
    is met keeps it uniform. NumPy's own hypergeometric draw would need one call a block and ends at 10^9 positions.
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
    """Draw how many of `size` balls, drawn without replacement, come from each of the urns. Memory grows with `size`, a small correction."""
    ends = np.cumsum(urns)
    balls = generator.choice(int(ends[-1]), size, replace=False, shuffle=False)
    return np.bincount(np.searchsorted(ends, balls, side="right"), minlength=len(urns)).astype(np.int64)


def _in_block(length: int, count: int, generator: np.random.Generator) -> Int64Array:
    if 2 * count <= length:
        return np.sort(generator.choice(length, count, replace=False, shuffle=False)).astype(np.int64, copy=False)
    # Drawing the positions that stay out is shorter.
    chosen = np.ones(length, np.bool_)
    chosen[generator.choice(length, length - count, replace=False, shuffle=False)] = False
    return np.flatnonzero(chosen)
