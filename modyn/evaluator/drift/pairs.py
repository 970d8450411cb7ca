"""Sums over all pairs of samples, computed block by block without the matrix of all pairs, for metrics based on pairs.

Two sets of 50,000 samples have 5 · 10⁹ pairs; only one block of `BLOCK` · `BLOCK` is in memory.

Squared distances are computed as |a|² + |b|² - 2 a b. The rounding error grows with the norms |a| and |b|, not with the distance. Samples are
therefore centred at the middle of their set and divided by a typical length (`unit`). float64 is used if some samples are far from the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import torch

from modyn.evaluator.drift.middle import evenly_spaced, middle

BLOCK: Final = 512
"""Number of rows of a block. Larger blocks do not fit the cache of a CPU. Other devices use twice this size, because each block needs several calls.
"""
TYPICAL_ROWS: Final = 128
"""Number of rows from which a typical distance is computed."""
FLOAT32_SQUARE: Final = 100.0
"""Largest squared length of a row, in units, for products in float32: squared distances are then exact to about 1e-5."""
FLOAT64_SQUARE: Final = 1e10
"""Largest squared length of a row, in units, for products in float64. For longer rows, differences are squared directly, which is much slower."""
INDICATOR_BYTES: Final = 2**27
"""Number of bytes of the indicators of a group of permutations. The kernel is computed again for each group."""

Kernel = Callable[[torch.Tensor], torch.Tensor]
"""Function that converts squared Euclidean distances, (a, b), in squared units, into kernel values of the same shape, perhaps in place."""


class PairSums(NamedTuple):
    """Sums of the kernel over pairs of different samples, float64. within_x: sum over ordered pairs (i, j), i ≠ j, of the first set."""

    within_x: torch.Tensor
    within_y: torch.Tensor
    between: torch.Tensor


def pair_sums(x: torch.Tensor, y: torch.Tensor, kernel: Kernel, unit: float = 1.0) -> PairSums:
    """Compute the sums within x, within y, and between x and y. Args: x: (n, d). y: (m, d). unit: the length that the kernel treats as 1."""
    zero = torch.zeros((), dtype=torch.float64, device=x.device)
    sums = {(0, 0): zero.clone(), (1, 1): zero.clone(), (0, 1): zero.clone()}
    for a, b, values in _blocks(x, y, kernel, unit):
        sums[a.side, b.side] += _orders(a, b) * values.sum(dtype=torch.float64)
    return PairSums(sums[0, 0], sums[1, 1], sums[0, 1])


def permuted_pair_sums(
    x: torch.Tensor, y: torch.Tensor, kernel: Kernel, num: int, generator: torch.Generator, unit: float = 1.0
) -> PairSums:
    """Compute the three sums of the actual sets and of `num` random divisions of all samples into sets of n and m. Each field has shape (num + 1,).

    The sums of a division are quadratic forms zᵀ K z of the division's indicator z. All divisions together therefore need only one product of the
    kernel K with a matrix of indicators.

    Args: x: (n, d). y: (m, d). generator: random generator on the CPU. unit: the length that the kernel treats as 1.
    """
    n, total = len(x), len(x) + len(y)
    at_once = max(1, INDICATOR_BYTES // total)
    found = []
    for first in range(0, num + 1, at_once):
        indicators = torch.zeros(total, min(at_once, num + 1 - first), dtype=torch.bool)
        for column in range(indicators.shape[1]):
            # Division 0 consists of the actual sets.
            chosen = torch.randperm(total, generator=generator)[:n] if first + column else torch.arange(n)
            indicators[chosen, column] = True
        found.append(_divided_sums(x, y, kernel, unit, indicators.to(x.device)))
    return PairSums(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _divided_sums(x: torch.Tensor, y: torch.Tensor, kernel: Kernel, unit: float, indicators: torch.Tensor) -> PairSums:
    """Compute the three sums of each division. Args: indicators: bool (n + m, divisions), whether a sample is in the first set."""
    within_x = torch.zeros(indicators.shape[1], dtype=torch.float64, device=x.device)
    with_any = within_x.clone()  # Sums over pairs of a sample of the first set and any sample.
    everything = within_x.new_zeros(())
    offsets = (0, len(x))
    for a, b, values in _blocks(x, y, kernel, unit):
        # The values of a block with itself contain each pair in both orders; the values of two different blocks contain each pair once.
        both = 1 if a == b else 2
        of_a, of_b = (
            indicators[offsets[part.side] + part.first : offsets[part.side] + part.last].to(values.dtype) for part in (a, b)
        )
        within_x += both * (values @ of_b).mul_(of_a).sum(0, dtype=torch.float64)
        with_any += values.sum(1, dtype=torch.float64) @ of_a.double()
        if a != b:
            with_any += values.sum(0, dtype=torch.float64) @ of_b.double()
        everything += both * values.sum(dtype=torch.float64)
    # Pairs within the second set are all pairs without a sample of the first set, by inclusion and exclusion.
    return PairSums(within_x, everything - 2 * with_any + within_x, with_any - within_x)


def permutation_p_value(distances: torch.Tensor) -> float:
    """Return the share of divisions whose distance is at least the distance of the first division, which is counted too: (1 + #) / (1 + num).

    Distances that are equal up to rounding count as equal; a set with few distinct samples gives many equal distances. Args: distances: (num + 1,).
    """
    return int((distances >= distances[0] - 1e-9).sum()) / len(distances)


def typical_distances(x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Return the median and the smallest distance between unequal rows of x. If all rows of x are equal, use both sets; if all rows of both sets are
    equal, return 1. At most `TYPICAL_ROWS` rows of each set are used. Args: x: (n, d). y: (m, d).
    """
    for rows in (evenly_spaced(x, TYPICAL_ROWS), torch.cat([evenly_spaced(part, TYPICAL_ROWS) for part in (x, y)])):
        distances = torch.pdist(rows.double())
        distances = distances[distances > 0]
        if len(distances):
            return float(distances.median()), float(distances.min())
    return 1.0, 1.0


def has_unequal(rows: torch.Tensor) -> bool:
    """Return whether `typical_distances` finds unequal rows among these rows, (n, d), and therefore needs no second set."""
    few = evenly_spaced(rows, TYPICAL_ROWS)
    return bool((few != few[0]).any())


def median_squared_distance(rows: torch.Tensor, unit: float = 1.0) -> float:
    """Return the lower median of the squared distances between different rows. Use this function for at most a few thousand rows, because the
    distances of all pairs are in memory.

    Args: rows: (n, d), n ≥ 2. unit: a length near the median.
    """
    num = len(rows)
    space = _Space((rows,), unit)
    pairs = torch.empty(num * (num - 1) // 2, dtype=space.dtype, device=rows.device)
    done = 0
    for first in range(0, num, BLOCK):
        for i, squares in enumerate(space.squared_distances(rows[first : first + BLOCK], rows[first:])):
            pairs[done : done + num - first - i - 1] = squares[i + 1 :]
            done += num - first - i - 1
    where = (len(pairs) - 1) // 2
    if pairs.is_cuda:
        return float(pairs.kthvalue(where + 1).values) * unit**2
    values = pairs.numpy()
    values.partition(where)  # The partition is in place, because kthvalue needs four times the memory.
    return float(values[where]) * unit**2


class _Rows(NamedTuple):
    """Rows [first, last) of the first set (side 0) or the second (side 1)."""

    side: int
    first: int
    last: int


def _orders(a: _Rows, b: _Rows) -> int:
    """Return the factor for the sums of two blocks. `_blocks` yields two different blocks of one set once, but their pairs count in both orders."""
    return 2 if a.side == b.side and a.first != b.first else 1


def _blocks(x: torch.Tensor, y: torch.Tensor, kernel: Kernel, unit: float) -> Iterator[tuple[_Rows, _Rows, torch.Tensor]]:
    """Yield each unordered pair of blocks once, with the values of all pairs in these blocks. The value of a sample with itself is 0."""
    sets = (x, y)
    size = BLOCK if x.device.type == "cpu" else 2 * BLOCK
    blocks = [
        [_Rows(side, first, min(first + size, len(rows))) for first in range(0, len(rows), size)]
        for side, rows in enumerate(sets)
    ]
    for side_a, side_b in ((0, 0), (1, 1), (0, 1)):
        # Pairs within a set are centred at the middle of this set. If the sets are far apart, centring y at the middle of x would lose digits of y.
        space = _Space((x, y) if side_a != side_b else (sets[side_a],), unit)
        for a in blocks[side_a]:
            for b in blocks[side_b]:
                if side_a == side_b and b.first < a.first:
                    continue
                values = kernel(space.squared_distances(sets[side_a][a.first : a.last], sets[side_b][b.first : b.last]))
                if a == b:
                    values.fill_diagonal_(0)
                yield a, b, values


class _Space:
    """Computes distances between rows of several sets in multiples of `unit`. All rows are centred at the middle of the first set."""

    def __init__(self, sets: tuple[torch.Tensor, ...], unit: float) -> None:
        """Args: sets: (n, d) each, float32."""
        self._middle = middle(sets[0])
        self._unit = unit
        self.dtype = torch.float64
        self._by_products = True
        largest = max(self._largest_square(rows) for rows in sets)
        if largest <= FLOAT32_SQUARE and unit > 1e-30:  # 1 / unit is finite in float32
            self.dtype = torch.float32
        self._by_products = largest <= FLOAT64_SQUARE
        # This factor reduces the norms by the bound of their rounding errors, so that equal rows have distance 0.
        self._shrunk = 1 - torch.finfo(self.dtype).eps * (4 + sets[0].shape[1] ** 0.5 / 2)

    def squared_distances(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return squared distances in squared units, (len(a), len(b)); 0 where rounding errors would dominate."""
        a, b = self._placed(a), self._placed(b)
        if not self._by_products:
            return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_()
        norms = ((a * a).sum(1) * self._shrunk).unsqueeze(1) + (b * b).sum(1) * self._shrunk
        return torch.addmm(norms, a, b.T, alpha=-2, out=norms).clamp_(min=0)

    def _largest_square(self, rows: torch.Tensor) -> float:
        blocks = (rows[first : first + BLOCK] for first in range(0, len(rows), BLOCK))
        return max(float(self._placed(block).square_().sum(1).max()) for block in blocks)

    def _placed(self, rows: torch.Tensor) -> torch.Tensor:
        # The dtype is changed first, because numbers far from the middle would overflow float32 when they are divided by the unit.
        return (rows.to(self.dtype) - self._middle.to(self.dtype)).mul_(1 / self._unit)
