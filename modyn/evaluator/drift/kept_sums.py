"""Sums over pairs of samples, part by part, kept from question to question: most of what a window holds the window before held too.

A window is cut into parts of at most `PART` samples. The sum of a kernel over the pairs of two parts is computed of these two alone, whatever
windows they are in and whatever was asked before: so a distance is the same number whether its sums are kept or made anew.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import torch

from modyn.evaluator.drift.pairs import FLOAT32_SQUARE, FLOAT64_SQUARE, Kernel, PairSums

PART: Final = 256
"""Samples of a part, at most. Of larger ones more pairs are made anew at each check, and smaller ones take more calls for as many pairs."""
_LIMIT: Final = 50_000
"""Numbers that are made before those that nothing has asked for meanwhile are dropped: some 10 MB."""
_HELD_BYTES: Final = 2**26
"""Of rows, and of squared distances, that are held for further questions of one pass."""
_FLOAT32_UNITS: Final = (1e-15, 1e15)
"""Between these, squares of what is as long as a unit are numbers in float32."""


class PartOfWindow(NamedTuple):
    """Some samples of a window."""

    name: bytes
    """Equal for the same samples with the same values, different for others."""
    size: int


@dataclass(frozen=True, slots=True)
class PartedWindow:
    """The samples of a window, in parts, whose values are read where they are needed."""

    parts: Sequence[PartOfWindow]
    read: Callable[[int], torch.Tensor]
    """Rows of a part, by its number: (size, d) of any numbers. Raises DataError: they cannot be compared."""
    read_all: Callable[[], torch.Tensor]
    """Rows of all of them around the middle of the window, (n, d) float32, in the order that `DriftMetric.compare` is given."""

    @property
    def name(self) -> bytes:
        """As of a part."""
        return b"".join(part.name for part in self.parts)

    def __len__(self) -> int:
        return sum(part.size for part in self.parts)


class KeptSums:
    """Numbers by what they were made of, at most 2 · `limit`: those that were asked for since so many others were made. Not for threads."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._new: dict[bytes, float] = {}
        self._old: dict[bytes, float] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def get(self, name: bytes, make: Callable[[], float]) -> float:
        """The number of this name, made now if it is not kept."""
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


class _Squares(NamedTuple):
    """Squared distances between the samples of two parts, (a, b)."""

    values: torch.Tensor
    largest: float
    """Squared length of the longest row, around the middle of the first part."""


class HeldBlocks:
    """Rows of parts, and squared distances between them, for all questions of one pass: kernels of several widths are made of the same ones."""

    def __init__(self, limit: int = _HELD_BYTES) -> None:
        """Args: limit: bytes of either; the oldest are dropped."""
        self._limit = limit
        self._rows: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._squares: OrderedDict[bytes, _Squares] = OrderedDict()
        self._num_bytes = [0, 0]

    def rows(self, window: PartedWindow, number: int) -> torch.Tensor:
        """Rows of a part, (size, d)."""
        name = window.parts[number].name
        if name not in self._rows:
            self._rows[name] = found = window.read(number)
            self._num_bytes[0] += found.nbytes
            while self._num_bytes[0] > self._limit and len(self._rows) > 1:
                self._num_bytes[0] -= self._rows.popitem(last=False)[1].nbytes
        return self._rows[name]

    def squares(self, a: _Place, b: _Place, dtype: torch.dtype) -> _Squares:
        """Squared distances of two parts by products of that precision."""
        name = b"%d" % dtype.itemsize + a.part.name + b.part.name
        if name not in self._squares:
            self._squares[name] = found = _squares(self.rows(*a), self.rows(*b), dtype)
            self._num_bytes[1] += found.values.nbytes
            while self._num_bytes[1] > self._limit and len(self._squares) > 1:
                self._num_bytes[1] -= self._squares.popitem(last=False)[1].values.nbytes
        return self._squares[name]


class _Place(NamedTuple):
    """A part of a window."""

    window: PartedWindow
    number: int

    @property
    def part(self) -> PartOfWindow:
        """Its name and size."""
        return self.window.parts[self.number]


@dataclass(frozen=True, slots=True)
class SumKeeper:
    """Sums that are kept, and what they are made of."""

    kept: KeptSums
    held: HeldBlocks = field(default_factory=HeldBlocks)

    def pair_sums(self, x: PartedWindow, y: PartedWindow, kernel: Kernel, name: bytes, unit: float) -> PairSums:
        """The sums of `pairs.pair_sums` over the samples of two windows.

        Args: kernel: works in place. name: of the kernel, the same for no other. unit: the length that the kernel takes as 1.
        """
        prefix = name + struct.pack("<d", unit)
        within_x, within_y = (self._within(window, kernel, prefix, unit) for window in (x, y))
        of_x, of_y = ([_Place(window, number) for number in range(len(window.parts))] for window in (x, y))
        between = sum(self._of_parts(a, b, kernel, prefix, unit) for a in of_x for b in of_y)
        return PairSums(*(torch.tensor(value, dtype=torch.float64) for value in (within_x, within_y, between)))

    def _within(self, window: PartedWindow, kernel: Kernel, prefix: bytes, unit: float) -> float:
        places, total = [_Place(window, number) for number in range(len(window.parts))], 0.0
        for number, a in enumerate(places):
            total += self.kept.get(prefix + a.part.name, partial(self._make, a, a, kernel, unit, with_itself=False))
            total += 2 * sum(self._of_parts(a, b, kernel, prefix, unit) for b in places[number + 1 :])
        return total

    def _of_parts(self, a: _Place, b: _Place, kernel: Kernel, prefix: bytes, unit: float) -> float:
        """The sum over all pairs of a sample of one part and one of the other."""
        if b.part.name < a.part.name:  # both orders are one number
            a, b = b, a
        return self.kept.get(prefix + a.part.name + b.part.name, partial(self._make, a, b, kernel, unit))

    def _make(self, a: _Place, b: _Place, kernel: Kernel, unit: float, *, with_itself: bool = True) -> float:
        values = kernel(self._in_units(a, b, unit))
        if not with_itself:
            values.fill_diagonal_(0)
        return float(values.sum(dtype=torch.float64))

    def _in_units(self, a: _Place, b: _Place, unit: float) -> torch.Tensor:
        """Squared distances in squared units, computed as precisely as they need it: see `pairs.py`. A tensor of its own."""
        smallest, largest = _FLOAT32_UNITS
        if smallest < unit < largest:
            found = self.held.squares(a, b, torch.float32)
            if found.largest <= FLOAT32_SQUARE * unit**2:
                return found.values * (1 / unit**2)
        found = self.held.squares(a, b, torch.float64)
        if found.largest <= FLOAT64_SQUARE * unit**2:
            return found.values * (1 / unit**2)
        rows_a, rows_b = _around_first(self.held.rows(*a), self.held.rows(*b), torch.float64)
        return torch.cdist(rows_a / unit, rows_b / unit, compute_mode="donot_use_mm_for_euclid_dist").square_()


def _around_first(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Both around the mean of the first. Args: a: (n, d). b: (m, d)."""
    middle = a.mean(0, dtype=torch.float64)
    return (a.double() - middle).to(dtype), (b.double() - middle).to(dtype)


def _squares(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> _Squares:
    """Squared distances, (n, m), as |a|² + |b|² - 2 a b; 0 where they would be less than what rounds away. Args: a: (n, d). b: (m, d)."""
    a, b = _around_first(a, b, dtype)
    shrunk = 1 - torch.finfo(dtype).eps * (4 + a.shape[1] ** 0.5 / 2)
    of_a, of_b = ((rows * rows).sum(1) for rows in (a, b))
    norms = (of_a * shrunk).unsqueeze(1) + of_b * shrunk
    largest = math.inf if dtype is torch.float32 and not norms.isfinite().all() else float(max(of_a.max(), of_b.max()))
    return _Squares(torch.addmm(norms, a, b.T, alpha=-2, out=norms).clamp_(min=0), largest)
