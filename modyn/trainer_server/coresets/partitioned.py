"""Choices of very many candidates: block by block, then from what the blocks have chosen.

As GreeDi (Mirzasoleiman et al.: Distributed Submodular Maximization, 2013): candidates are dealt to blocks at random, each block chooses for
itself, and of all that is chosen there the final set is chosen. Where that is still too much for one block, it is dealt out again, so that no
step sees more than MOST_ROWS candidates at once. A block's rows are read from the file when their turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from modyn.trainer_server.coresets import Coreset, FloatArray
from modyn.trainer_server.coresets.rows import check_features

MOST_ROWS: Final = 16_384
"""The most candidates that are chosen from at once. The time for one is in proportion to how many there are in its block; so is precision."""
BLOCK_ROWS: Final = 4_096
"""Of the blocks, where there are more candidates than MOST_ROWS."""
STRIP_ROWS: Final = 16
"""Neighbours that go to a block together: a page of a file of 64 float32 features."""

Positions = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]
Choose = Callable[[FloatArray, int, Weights, np.random.Generator], Coreset]
"""(features (m, d), size, weights (m,) of what each row stands for, generator) → what is chosen of them and what each chosen one stands for."""


class Partitioned(NamedTuple):
    """What was chosen, and the values of the blocks, step by step."""

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
    """Let `choose` choose `size` candidates, or all if there are no more, of at most `most_rows` at a time.

    Where there are more, the first step keeps more than are wanted: as many as `most_rows` where these are few, as GreeDi does, else twice as
    many, unless that is more than half of all.
    Args: among: positions to choose from, ascending; none: all. Returns: positions ascending. Raises InvalidArgumentError: a feature is not finite.
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
    """Positions 0 … count - 1 in blocks at random, strips of neighbours together. Returns: ascending positions of each block."""
    strips = generator.permutation(-(-count // STRIP_ROWS))
    for block in np.array_split(strips, num_blocks):
        positions = (np.sort(block)[:, None] * STRIP_ROWS + np.arange(STRIP_ROWS)).ravel()
        yield positions[positions < count]


def quotas(counts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Shares of `size` in proportion to `counts`, which are at least as many together: each the next integer below or above, their sum exact."""
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
        rows = features if len(block) == len(features) else features[positions[block]]
        found = choose(np.asarray(rows), int(share), weights[block], generator)
        chosen.append((positions[block[found.positions]], found.weights, found.value))
    together = np.concatenate([part[0] for part in chosen])
    order = np.argsort(together)
    return together[order], np.concatenate([part[1] for part in chosen])[order], [part[2] for part in chosen]
