"""Sums over all pairs of samples, block by block: the matrix of all pairs is never held. For metrics that are made of pairs of samples.

Two sets of 50,000 samples have 5 · 10⁹ pairs; what is held of them is one block of `BLOCK` · `BLOCK`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import torch

BLOCK: Final = 512
"""Rows of a block. On a CPU larger ones leave its cache; on other devices twice as many, for each block costs some calls there."""

Kernel = Callable[[torch.Tensor], torch.Tensor]
"""From squared Euclidean distances, (a, b), to values of the same shape; may work in place."""


class PairSums(NamedTuple):
    """Sums of the kernel over pairs of different samples, float64. within_x: over ordered pairs (i, j), i ≠ j, of the first set."""

    within_x: torch.Tensor
    within_y: torch.Tensor
    between: torch.Tensor


def pair_sums(x: torch.Tensor, y: torch.Tensor, kernel: Kernel) -> PairSums:
    """The three sums. Args: x: (n, d). y: (m, d)."""
    zero = torch.zeros((), dtype=torch.float64, device=x.device)
    sums = {(0, 0): zero.clone(), (1, 1): zero.clone(), (0, 1): zero.clone()}
    for a, b, values in _blocks(x, y, kernel):
        # Each pair of blocks comes once; pairs within one set count in both orders.
        twice = 2 if a.side == b.side and a.first != b.first else 1
        sums[a.side, b.side] += twice * values.sum(dtype=torch.float64)
    return PairSums(sums[0, 0], sums[1, 1], sums[0, 1])


def permuted_pair_sums(x: torch.Tensor, y: torch.Tensor, kernel: Kernel, num: int, generator: torch.Generator) -> PairSums:
    """The three sums as they are, and for `num` random divisions of all samples into sets of n and m: each field has shape (num + 1,).

    The kernel is computed once: the sums of a division are quadratic forms zᵀ K z of its indicator z, so all divisions together are one
    product of K with a matrix of indicators.

    Args: x: (n, d). y: (m, d). generator: of the CPU.
    """
    n, total = len(x), len(x) + len(y)
    indicators = torch.zeros(total, num + 1, dtype=torch.float32)
    indicators[:n, 0] = 1
    for column in range(1, num + 1):
        indicators[torch.randperm(total, generator=generator)[:n], column] = 1
    ones = torch.ones(total, 1)
    z = torch.cat([indicators, ones], 1).to(x.device)
    products = torch.zeros_like(z, dtype=torch.float64)
    offsets = (0, n)
    for a, b, values in _blocks(x, y, kernel):
        rows = slice(offsets[a.side] + a.first, offsets[a.side] + a.last)
        columns = slice(offsets[b.side] + b.first, offsets[b.side] + b.last)
        products[rows] += values @ z[columns]
        if rows != columns:
            products[columns] += values.T @ z[rows]
    chosen = z[:, :-1].double()
    within_x = (chosen * products[:, :-1]).sum(0)
    with_any = (chosen * products[:, -1:]).sum(0)  # sums over pairs of a sample of the first set and any sample
    everything = products[:, -1].sum()
    return PairSums(within_x, everything - 2 * with_any + within_x, with_any - within_x)


def permutation_p_value(distances: torch.Tensor) -> float:
    """The share of divisions whose distance is as large as that of the first one, which counts as one of them: (1 + #) / (1 + num).

    Equal up to rounding counts as equal: with few distinct samples many divisions are. Args: distances: (num + 1,).
    """
    return int((distances >= distances[0] - 1e-9).sum()) / len(distances)


def median_squared_distance(rows: torch.Tensor) -> float:
    """The lower median of the squared distances between different rows, exact. For at most some thousand rows: each pair is held once.

    Args: rows: (n, d), n ≥ 2.
    """
    num = len(rows)
    norms = _squared_norms(rows)
    pairs = torch.empty(num * (num - 1) // 2, dtype=rows.dtype, device=rows.device)
    done = 0
    for first in range(0, num, BLOCK):
        block = slice(first, first + BLOCK)
        for i, squares in enumerate(_squared_distances(rows[block], rows[first:], norms[block], norms[first:])):
            pairs[done : done + num - first - i - 1] = squares[i + 1 :]
            done += num - first - i - 1
    middle = (len(pairs) - 1) // 2
    if pairs.is_cuda:
        return float(pairs.kthvalue(middle + 1).values)
    values = pairs.numpy()
    values.partition(middle)  # in place: kthvalue takes four times the memory
    return float(values[middle])


class _Rows(NamedTuple):
    """Rows [first, last) of the first (side 0) or second set (side 1)."""

    side: int
    first: int
    last: int


def _blocks(x: torch.Tensor, y: torch.Tensor, kernel: Kernel) -> Iterator[tuple[_Rows, _Rows, torch.Tensor]]:
    """Each unordered pair of blocks once, the values of its pairs, and 0 where a sample meets itself."""
    sets = (x, y)
    # Distances within a set are those of rows around their own mean. Where the sets lie far apart, those of y around the mean of x round away.
    around_own = (x, y - y.mean(0))
    size = BLOCK if x.device.type == "cpu" else 2 * BLOCK
    blocks = [
        _Rows(side, first, min(first + size, len(rows))) for side, rows in enumerate(sets) for first in range(0, len(rows), size)
    ]
    norms, own_norms = ([_squared_norms(rows) for rows in of_sets] for of_sets in (sets, around_own))
    for number, a in enumerate(blocks):
        for b in blocks[number:]:
            rows, squares = (around_own, own_norms) if a.side == b.side else (sets, norms)
            of_a, of_b = slice(a.first, a.last), slice(b.first, b.last)
            values = kernel(
                _squared_distances(rows[a.side][of_a], rows[b.side][of_b], squares[a.side][of_a], squares[b.side][of_b])
            )
            if a == b:
                values.fill_diagonal_(0)
            yield a, b, values


def _squared_norms(rows: torch.Tensor) -> torch.Tensor:
    return (rows * rows).sum(1)


def _squared_distances(a: torch.Tensor, b: torch.Tensor, norms_a: torch.Tensor, norms_b: torch.Tensor) -> torch.Tensor:
    """|a|² + |b|² - 2 a b, (len(a), len(b)). The rounding below 0 is cut off; the caller has centred the rows."""
    norms = norms_a.unsqueeze(1) + norms_b
    return torch.addmm(norms, a, b.T, alpha=-2, out=norms).clamp_(min=0)
