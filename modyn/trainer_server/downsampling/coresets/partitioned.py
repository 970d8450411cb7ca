"""Choose from very many candidates: first within blocks, then from the choices of the blocks.

The method is GreeDi (Mirzasoleiman et al.: Distributed Submodular Maximization, 2013). Candidates are dealt to blocks at random, each block chooses
separately, and the final set is chosen from all these choices. If these choices are too many for one block, they are dealt out again, so that no
choice has more than MOST_ROWS candidates. The rows of a block are read from the file when the block is processed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from modyn.trainer_server.downsampling.coresets import Coreset, FloatArray
from modyn.trainer_server.downsampling.coresets.rows import check_features

MOST_ROWS: Final = 16_384
"""Largest number of candidates in one choice. The time for each chosen candidate is proportional to the size of its block; larger blocks are more
precise.
"""
BLOCK_ROWS: Final = 4_096
"""Number of candidates in a block, if there are more than MOST_ROWS candidates in all."""
STRIP_ROWS: Final = 16
"""Number of neighbouring rows that go to a block together. With 64 float32 features a row, these rows fill a page of a file."""

Positions = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]
Choose = Callable[[FloatArray, int, Weights, np.random.Generator], Coreset]
"""Takes features (m, d), a size, weights (m,), and a generator; returns chosen rows and their weights. The weight of a row is the number of samples
that the row represents.
"""


class Partitioned(NamedTuple):
    """The chosen candidates, and the values of the blocks, step by step."""

    positions: Positions
    weights: Weights
    values: list[list[float]]


def choose_in_blocks(
    features: FloatArray,
    size: int,
    choose: Choose,
    generator: np.random.Generator,
    among: Positions | None = None,
    most_rows: int = MOST_ROWS,
) -> Partitioned:
    """Choose `size` candidates, at most all, by calls of `choose` with at most `most_rows` candidates.

    If there are more candidates, a first step keeps `size` candidates of each block, as GreeDi does. In all, this step keeps at most `most_rows`
    candidates, but at least 2 · `size`. A step that would keep more than half of all candidates is left out.

    Args: among: positions to choose from, ascending; None for all positions. Returns: positions ascending. Raises InvalidArgumentError: a feature is
    not finite.
    """
    check_features(features, among)
    positions = np.arange(len(features)) if among is None else among
    count = len(positions)
    weights = np.ones(count, np.float32)
    size = min(size, count)
    values: list[list[float]] = []
    kept = max(2 * size, min(most_rows, size * -(-count // BLOCK_ROWS)))
    for wanted in (kept, size) if count > most_rows and 2 * kept <= count else (size,):
        positions, weights, found = _step(features, positions, weights, wanted, choose, generator, most_rows)
        values.append(found)
    return Partitioned(positions, weights, values)


def deal(count: int, num_blocks: int, generator: np.random.Generator) -> Iterator[Positions]:
    """Deal positions 0 … count - 1 to random blocks, in strips of neighbours. Returns: ascending positions of each block."""
    strips = generator.permutation(-(-count // STRIP_ROWS))
    for block in np.array_split(strips, num_blocks):
        positions = (np.sort(block)[:, None] * STRIP_ROWS + np.arange(STRIP_ROWS)).ravel()
        yield positions[positions < count]


def quotas(counts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Divide `size`, at most Σ counts, in proportion to `counts`. Each share is rounded up or down, so that the shares add up to exactly `size`."""
    return np.diff(np.cumsum(counts) * size // max(1, int(counts.sum())), prepend=0)


def _step(
    features: FloatArray,
    positions: Positions,
    weights: Weights,
    size: int,
    choose: Choose,
    generator: np.random.Generator,
    most_rows: int,
) -> tuple[Positions, Weights, list[float]]:
    count = len(positions)
    num_blocks = 1 if count <= most_rows else -(-count // min(BLOCK_ROWS, most_rows))
    blocks = [np.arange(count)] if num_blocks == 1 else list(deal(count, num_blocks, generator))
    shares = quotas(np.array([len(block) for block in blocks]), size)
    chosen = []
    for block, share in zip(blocks, shares, strict=True):
        # A block of all rows needs no copy.
        rows = features if len(block) == len(features) else features[positions[block]]
        found = choose(np.asarray(rows), int(share), weights[block], generator)
        chosen.append((positions[block[found.positions]], found.weights, found.value))
    together = np.concatenate([part[0] for part in chosen])
    order = np.argsort(together)
    return together[order], np.concatenate([part[1] for part in chosen])[order], [part[2] for part in chosen]
