"""Sums over all pairs of samples, block by block: the matrix of all pairs is never held. For metrics that are made of pairs of samples.

Two sets of 50,000 samples have 5 · 10⁹ pairs; what is held of them is one block of `BLOCK` · `BLOCK`.

Squared distances are |a|² + |b|² - 2 a b, which rounds by the size of the samples, not of the distance. So samples are taken around the
middle of their set and in units of a length that matters (`unit`), and computed in float64 where some lie far out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import torch

from modyn.evaluator.drift.middle import evenly_spaced, middle

BLOCK: Final = 512
"""Rows of a block. On a CPU larger ones leave its cache; on other devices twice as many, for each block costs some calls there."""
TYPICAL_ROWS: Final = 128
"""Rows whose distances say what a typical distance is."""
FLOAT32_SQUARE: Final = 100.0
"""The largest squared length of a row, in units, whose products are computed in float32: squared distances are exact to some 1e-5."""
FLOAT64_SQUARE: Final = 1e10
"""The same for products in float64; of longer rows, differences are squared, which takes far longer."""
INDICATOR_BYTES: Final = 2**27
"""Of the divisions of samples that are summed over at once; the kernel is computed anew for each so many."""

Kernel = Callable[[torch.Tensor], torch.Tensor]
"""From squared Euclidean distances in units, (a, b), to values of the same shape; may work in place."""


class PairSums(NamedTuple):
    """Sums of the kernel over pairs of different samples, float64. within_x: over ordered pairs (i, j), i ≠ j, of the first set."""

    within_x: torch.Tensor
    within_y: torch.Tensor
    between: torch.Tensor


def pair_sums(x: torch.Tensor, y: torch.Tensor, kernel: Kernel, unit: float = 1.0) -> PairSums:
    """The three sums. Args: x: (n, d). y: (m, d). unit: the length that the kernel takes as 1."""
    zero = torch.zeros((), dtype=torch.float64, device=x.device)
    sums = {(0, 0): zero.clone(), (1, 1): zero.clone(), (0, 1): zero.clone()}
    for a, b, values in _blocks(x, y, kernel, unit):
        sums[a.side, b.side] += _orders(a, b) * values.sum(dtype=torch.float64)
    return PairSums(sums[0, 0], sums[1, 1], sums[0, 1])


def permuted_pair_sums(
    x: torch.Tensor, y: torch.Tensor, kernel: Kernel, num: int, generator: torch.Generator, unit: float = 1.0
) -> PairSums:
    """The three sums as they are, and for `num` random divisions of all samples into sets of n and m: each field has shape (num + 1,).

    The sums of a division are quadratic forms zᵀ K z of its indicator z, so many divisions together are one product of the kernel K with a
    matrix of indicators.

    Args: x: (n, d). y: (m, d). generator: of the CPU. unit: the length that the kernel takes as 1.
    """
    n, total = len(x), len(x) + len(y)
    at_once = max(1, INDICATOR_BYTES // total)
    found = []
    for first in range(0, num + 1, at_once):
        indicators = torch.zeros(total, min(at_once, num + 1 - first), dtype=torch.bool)
        for column in range(indicators.shape[1]):
            chosen = torch.randperm(total, generator=generator)[:n] if first + column else torch.arange(n)
            indicators[chosen, column] = True
        found.append(_divided_sums(x, y, kernel, unit, indicators.to(x.device)))
    return PairSums(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _divided_sums(x: torch.Tensor, y: torch.Tensor, kernel: Kernel, unit: float, indicators: torch.Tensor) -> PairSums:
    """The three sums of each division. Args: indicators: bool (n + m, divisions), whether a sample is in the first set."""
    within_x = torch.zeros(indicators.shape[1], dtype=torch.float64, device=x.device)
    with_any = within_x.clone()  # sums over pairs of a sample of the first set and any sample
    everything = within_x.new_zeros(())
    offsets = (0, len(x))
    for a, b, values in _blocks(x, y, kernel, unit):
        both = 1 if a == b else 2
        of_a, of_b = (
            indicators[offsets[part.side] + part.first : offsets[part.side] + part.last].to(values.dtype) for part in (a, b)
        )
        within_x += both * (values @ of_b).mul_(of_a).sum(0, dtype=torch.float64)
        with_any += values.sum(1, dtype=torch.float64) @ of_a.double()
        if a != b:
            with_any += values.sum(0, dtype=torch.float64) @ of_b.double()
        everything += both * values.sum(dtype=torch.float64)
    return PairSums(within_x, everything - 2 * with_any + within_x, with_any - within_x)


def permutation_p_value(distances: torch.Tensor) -> float:
    """The share of divisions whose distance is as large as that of the first one, which counts as one of them: (1 + #) / (1 + num).

    Equal up to rounding counts as equal: with few distinct samples many divisions are. Args: distances: (num + 1,).
    """
    return int((distances >= distances[0] - 1e-9).sum()) / len(distances)


def typical_distances(x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """The median and the least distance between different rows of x that are not equal, or if all are, of both sets; 1 if those are equal too.

    Of few rows. Args: x: (n, d). y: (m, d).
    """
    for rows in (evenly_spaced(x, TYPICAL_ROWS), torch.cat([evenly_spaced(part, TYPICAL_ROWS) for part in (x, y)])):
        distances = torch.pdist(rows.double())
        distances = distances[distances > 0]
        if len(distances):
            return float(distances.median()), float(distances.min())
    return 1.0, 1.0


def has_unequal(rows: torch.Tensor) -> bool:
    """Whether `typical_distances` are those of these rows alone, (n, d)."""
    few = evenly_spaced(rows, TYPICAL_ROWS)
    return bool((few != few[0]).any())


def median_squared_distance(rows: torch.Tensor, unit: float = 1.0) -> float:
    """The lower median of the squared distances between different rows. For at most some thousand rows: each pair is held once.

    Args: rows: (n, d), n ≥ 2. unit: a length near that median, or of what lies near it.
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
    values.partition(where)  # in place: kthvalue takes four times the memory
    return float(values[where]) * unit**2


class _Rows(NamedTuple):
    """Rows [first, last) of the first (side 0) or second set (side 1)."""

    side: int
    first: int
    last: int


def _orders(a: _Rows, b: _Rows) -> int:
    """How often a pair counts: each pair of blocks comes once, and pairs within one set count in both orders."""
    return 2 if a.side == b.side and a.first != b.first else 1


def _blocks(x: torch.Tensor, y: torch.Tensor, kernel: Kernel, unit: float) -> Iterator[tuple[_Rows, _Rows, torch.Tensor]]:
    """Each unordered pair of blocks once, the values of its pairs, and 0 where a sample meets itself."""
    sets = (x, y)
    size = BLOCK if x.device.type == "cpu" else 2 * BLOCK
    blocks = [
        [_Rows(side, first, min(first + size, len(rows))) for first in range(0, len(rows), size)]
        for side, rows in enumerate(sets)
    ]
    for side_a, side_b in ((0, 0), (1, 1), (0, 1)):
        # Those within a set are of rows around its own middle. Where the sets lie far apart, those of y around that of x round away.
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
    """Where distances between rows of some sets are computed: around the middle of the first, in units, as precisely as they need it."""

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
        # Of equal rows, the sum of squares and that of products are so far apart.
        self._shrunk = 1 - torch.finfo(self.dtype).eps * (4 + sets[0].shape[1] ** 0.5 / 2)

    def squared_distances(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """In squared units, (len(a), len(b)); 0 where they would be less than what rounds away."""
        a, b = self._placed(a), self._placed(b)
        if not self._by_products:
            return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_()
        norms = ((a * a).sum(1) * self._shrunk).unsqueeze(1) + (b * b).sum(1) * self._shrunk
        return torch.addmm(norms, a, b.T, alpha=-2, out=norms).clamp_(min=0)

    def _largest_square(self, rows: torch.Tensor) -> float:
        blocks = (rows[first : first + BLOCK] for first in range(0, len(rows), BLOCK))
        return max(float(self._placed(block).square_().sum(1).max()) for block in blocks)

    def _placed(self, rows: torch.Tensor) -> torch.Tensor:
        # Numbers that are far out are not finite in units in float32.
        return (rows.to(self.dtype) - self._middle.to(self.dtype)).mul_(1 / self._unit)
