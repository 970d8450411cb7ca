"""Cache of sums over pairs of samples, part by part. Consecutive windows share most samples, so later questions reuse most sums.

A window is cut into parts of at most `PART` samples. The sum of a kernel over the pairs of two parts depends only on these two parts. A distance from
cached sums therefore equals a distance from newly computed sums.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import torch

from modyn.evaluator.drift.pairs import FLOAT32_SQUARE, FLOAT64_SQUARE, PairSums

PART: Final = 256
"""Largest number of samples in a part. With larger parts, each check computes more pairs again. With smaller parts, the same pairs need more calls.
"""
_LIMIT: Final = 50_000
"""Number of new sums after which unused sums are dropped; about 10 MB."""
_HELD_BYTES: Final = 2**26
"""Largest number of bytes of cached rows, and also of cached squared distances, during one job."""
_FLOAT32_UNITS: Final = (1e-15, 1e15)
"""Range of unit lengths whose squares are normal numbers in float32."""

Kernel = Callable[[torch.Tensor, float], torch.Tensor]
"""Function that converts squared distances, (n, m), and the unit length into kernel values in a new tensor."""


class PartOfWindow(NamedTuple):
    """A part of a window: some of the window's samples."""

    name: bytes
    """Name of the part; names are equal only for the same samples with the same values."""
    size: int


@dataclass(frozen=True, slots=True)
class PartedWindow:
    """The samples of a window in parts. The values of a part are read when needed."""

    parts: Sequence[PartOfWindow]
    read: Callable[[int], torch.Tensor]
    """Reads the rows of part i: (size, d) of any numeric dtype. Raises DataError: the values cannot be compared."""
    read_all: Callable[[], torch.Tensor]
    """Reads all rows, centred at the middle of the window, (n, d) float32, in the order that `DriftMetric.compare` expects."""

    @property
    def name(self) -> bytes:
        """Return the name of the whole window, built like the name of a part."""
        return b"".join(part.name for part in self.parts)

    def __len__(self) -> int:
        return sum(part.size for part in self.parts)


class KeptSums:
    """Cache of numbers by the names of their inputs; at most 2 · `limit` numbers. The cache drops a number that was not used while `limit` other
    numbers were computed. The cache is not thread-safe.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._new: dict[bytes, float] = {}
        self._old: dict[bytes, float] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def get(self, name: bytes, make: Callable[[], float]) -> float:
        """Return the number of this name. If the number is not cached, `make` computes it."""
        found = self._new.get(name)
        if found is None:
            found = self._old.pop(name, None)
            self._keep(name, make() if found is None else found)
            return self._new[name]
        return found

    def _keep(self, name: bytes, number: float) -> None:
        if len(self._new) >= self._limit:
            self._old, self._new = self._new, {}
        self._new[name] = number


class _Rows(NamedTuple):
    """The rows of a part, (n, d), and their squared lengths, (n,)."""

    values: torch.Tensor
    squares: torch.Tensor
    largest: float
    """The largest squared length."""


class _Place(NamedTuple):
    """A part, and the index of the part in a window."""

    window: PartedWindow
    number: int

    @property
    def part(self) -> PartOfWindow:
        """Return the name and the size of the part."""
        return self.window.parts[self.number]


def _in_order(a: _Place, b: _Place) -> tuple[_Place, _Place]:
    return (b, a) if b.part.name < a.part.name else (a, b)


class HeldBlocks:
    """Cache of the rows of parts, and of squared distances between these rows, for all pairs of windows of one job. Kernels of several widths share
    the cache.
    """

    def __init__(self, limit: int = _HELD_BYTES) -> None:
        """Args: limit: largest number of bytes of rows, and of distances; the oldest entries are dropped."""
        self._limit = limit
        self._rows: OrderedDict[bytes, _Rows] = OrderedDict()
        self._squares: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._num_bytes = [0, 0]

    def rows(self, place: _Place, dtype: torch.dtype) -> _Rows:
        """Return the rows of a part in this precision."""
        name = b"%d" % dtype.itemsize + place.part.name
        if name not in self._rows:
            # The copy is aligned, because products of the same numbers at another alignment may differ in the last bits.
            values = place.window.read(place.number).to(dtype, copy=True)
            squares = (values * values).sum(1)
            self._rows[name] = _Rows(values, squares, float(squares.max()))
            self._num_bytes[0] += values.nbytes
            while self._num_bytes[0] > self._limit and len(self._rows) > 1:
                self._num_bytes[0] -= self._rows.popitem(last=False)[1].values.nbytes
        return self._rows[name]

    def squares(self, a: _Place, b: _Place, dtype: torch.dtype) -> torch.Tensor:
        """Return the squared distances of two parts, (n, m), as |a|² + |b|² - 2 a b in this precision; 0 where rounding errors would dominate."""
        name = b"%d" % dtype.itemsize + a.part.name + b.part.name
        if name not in self._squares:
            of_a, of_b = self.rows(a, dtype), self.rows(b, dtype)
            # The norms are reduced by the bound of their rounding errors. A distance that is smaller than the errors then becomes 0, not noise.
            shrunk = 1 - torch.finfo(dtype).eps * (4 + of_a.values.shape[1] ** 0.5 / 2)
            norms = (of_a.squares * shrunk).unsqueeze(1) + of_b.squares * shrunk
            found = torch.addmm(norms, of_a.values, of_b.values.T, alpha=-2, out=norms).clamp_(min=0)
            self._squares[name] = found
            self._num_bytes[1] += found.nbytes
            while self._num_bytes[1] > self._limit and len(self._squares) > 1:
                self._num_bytes[1] -= self._squares.popitem(last=False)[1].nbytes
        return self._squares[name]


@dataclass(frozen=True, slots=True)
class SumKeeper:
    """Computes and caches the sums over pairs of samples of two windows."""

    kept: KeptSums
    held: HeldBlocks = field(default_factory=HeldBlocks)

    def pair_sums(self, x: PartedWindow, y: PartedWindow, kernel: Kernel, name: bytes, unit: float) -> PairSums:
        """Return the sums of `pairs.pair_sums` for the samples of two windows.

        Args: name: unique name of the kernel. unit: the length that the kernel treats as 1.
        """
        prefix = name + struct.pack("<d", unit)
        within_x, within_y = (self._within(window, kernel, prefix, unit) for window in (x, y))
        of_x, of_y = ([_Place(window, number) for number in range(len(window.parts))] for window in (x, y))
        between = sum(self._of_parts(a, b, kernel, prefix, unit) for a in of_x for b in of_y)
        return PairSums(*(torch.tensor(value, dtype=torch.float64) for value in (within_x, within_y, between)))

    def median_squared_distance(self, window: PartedWindow) -> float | None:
        """Return the lower median of the squared distances between different samples. The sums within the window use the same distances. Return None
        if float32 is not precise enough or there is only one sample. In this case call `pairs.median_squared_distance`.
        """
        places, found, largest = [_Place(window, number) for number in range(len(window.parts))], [], 0.0
        for number, a in enumerate(places):
            largest = max(largest, self.held.rows(a, torch.float32).largest)
            for b in places[number:]:
                if a is b:
                    # The matrix of one part contains each pair twice, and pairs of a sample with itself. Only entries above the diagonal are used.
                    above = torch.triu_indices(a.part.size, a.part.size, 1)
                    found.append(self.held.squares(a, b, torch.float32)[above[0], above[1]])
                else:
                    found.append(self.held.squares(*_in_order(a, b), torch.float32).reshape(-1))
        pairs = torch.cat(found)
        if not len(pairs):
            return None
        where = (len(pairs) - 1) // 2
        if pairs.is_cuda:
            median = float(pairs.kthvalue(where + 1).values)
        else:
            values = pairs.numpy()
            values.partition(where)
            median = float(values[where])
        # float32 is precise enough if squares neither underflow nor overflow, and rows are not much longer than the typical distance.
        smallest, most = _FLOAT32_UNITS
        return median if smallest < median**0.5 < most and largest <= FLOAT32_SQUARE * median else None

    def _within(self, window: PartedWindow, kernel: Kernel, prefix: bytes, unit: float) -> float:
        places, total = [_Place(window, number) for number in range(len(window.parts))], 0.0
        for number, a in enumerate(places):
            total += self.kept.get(prefix + a.part.name, partial(self._make, a, a, kernel, unit, with_itself=False))
            total += 2 * sum(self._of_parts(a, b, kernel, prefix, unit) for b in places[number + 1 :])
        return total

    def _of_parts(self, a: _Place, b: _Place, kernel: Kernel, prefix: bytes, unit: float) -> float:
        """Return the sum over all pairs with one sample from each part."""
        a, b = _in_order(a, b)  # Both orders have the same sum.
        return self.kept.get(prefix + a.part.name + b.part.name, partial(self._make, a, b, kernel, unit))

    def _make(self, a: _Place, b: _Place, kernel: Kernel, unit: float, *, with_itself: bool = True) -> float:
        values = self._values(a, b, kernel, unit)
        if not with_itself:
            values.fill_diagonal_(0)
        return float(values.sum(dtype=torch.float64))

    def _values(self, a: _Place, b: _Place, kernel: Kernel, unit: float) -> torch.Tensor:
        """Compute the kernel of all pairs, (n, m), with squared distances in the needed precision: see `pairs.py`."""
        smallest, largest = _FLOAT32_UNITS
        for dtype, most in ((torch.float32, FLOAT32_SQUARE), (torch.float64, FLOAT64_SQUARE)):
            if dtype is torch.float64 or smallest < unit < largest:
                of_both = max(self.held.rows(place, dtype).largest for place in (a, b))
                if of_both <= most * unit**2:
                    return kernel(self.held.squares(a, b, dtype), unit)
        rows_a, rows_b = (self.held.rows(place, torch.float64).values / unit for place in (a, b))
        return kernel(torch.cdist(rows_a, rows_b, compute_mode="donot_use_mm_for_euclid_dist").square_(), 1.0)
