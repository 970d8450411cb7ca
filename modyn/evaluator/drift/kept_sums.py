"""Sums over pairs of samples, part by part, kept from question to question: most of what a window holds the window before held too.

A window is cut into parts of at most `PART` samples. The sum of a kernel over the pairs of two parts is computed of these two alone, whatever
windows they are in and whatever was asked before: so a distance is the same number whether its sums are kept or made anew.
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
"""Samples of a part, at most. Of larger ones more pairs are made anew at each check, and smaller ones take more calls for as many pairs."""
_LIMIT: Final = 50_000
"""Numbers that are made before those that nothing has asked for meanwhile are dropped: some 10 MB."""
_HELD_BYTES: Final = 2**26
"""Of rows, and of squared distances, that are held for further questions of one pass."""
_FLOAT32_UNITS: Final = (1e-15, 1e15)
"""Between these, squares of what is as long as a unit are numbers in float32."""

Kernel = Callable[[torch.Tensor, float], torch.Tensor]
"""From squared distances, (n, m), and the length that counts as 1, to values in a tensor of its own."""


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


class _Rows(NamedTuple):
    """Rows of a part, (n, d), and the squared length of each, (n,)."""

    values: torch.Tensor
    squares: torch.Tensor
    largest: float
    """Of the squared lengths."""


class _Place(NamedTuple):
    """A part of a window."""

    window: PartedWindow
    number: int

    @property
    def part(self) -> PartOfWindow:
        """Its name and size."""
        return self.window.parts[self.number]


def _in_order(a: _Place, b: _Place) -> tuple[_Place, _Place]:
    return (b, a) if b.part.name < a.part.name else (a, b)


class HeldBlocks:
    """Rows of parts, and squared distances between them, for all questions of one pass: kernels of several widths are made of the same ones."""

    def __init__(self, limit: int = _HELD_BYTES) -> None:
        """Args: limit: bytes of either; the oldest are dropped."""
        self._limit = limit
        self._rows: OrderedDict[bytes, _Rows] = OrderedDict()
        self._squares: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._num_bytes = [0, 0]

    def rows(self, place: _Place, dtype: torch.dtype) -> _Rows:
        """Rows of a part in that precision."""
        name = b"%d" % dtype.itemsize + place.part.name
        if name not in self._rows:
            # A copy, which begins where memory is aligned: products of the same numbers elsewhere may differ in the last bits.
            values = place.window.read(place.number).to(dtype, copy=True)
            squares = (values * values).sum(1)
            self._rows[name] = _Rows(values, squares, float(squares.max()))
            self._num_bytes[0] += values.nbytes
            while self._num_bytes[0] > self._limit and len(self._rows) > 1:
                self._num_bytes[0] -= self._rows.popitem(last=False)[1].values.nbytes
        return self._rows[name]

    def squares(self, a: _Place, b: _Place, dtype: torch.dtype) -> torch.Tensor:
        """Squared distances of two parts, (n, m), as |a|² + |b|² - 2 a b in that precision; 0 where they would be less than what rounds away."""
        name = b"%d" % dtype.itemsize + a.part.name + b.part.name
        if name not in self._squares:
            of_a, of_b = self.rows(a, dtype), self.rows(b, dtype)
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
    """Sums that are kept, and what they are made of."""

    kept: KeptSums
    held: HeldBlocks = field(default_factory=HeldBlocks)

    def pair_sums(self, x: PartedWindow, y: PartedWindow, kernel: Kernel, name: bytes, unit: float) -> PairSums:
        """The sums of `pairs.pair_sums` over the samples of two windows.

        Args: name: of the kernel, the same for no other. unit: the length that the kernel takes as 1.
        """
        prefix = name + struct.pack("<d", unit)
        within_x, within_y = (self._within(window, kernel, prefix, unit) for window in (x, y))
        of_x, of_y = ([_Place(window, number) for number in range(len(window.parts))] for window in (x, y))
        between = sum(self._of_parts(a, b, kernel, prefix, unit) for a in of_x for b in of_y)
        return PairSums(*(torch.tensor(value, dtype=torch.float64) for value in (within_x, within_y, between)))

    def median_squared_distance(self, window: PartedWindow) -> float | None:
        """The lower median of the squared distances between different samples, of those that the sums within the window need too.

        None: float32 does not tell it, or there is one sample: `pairs.median_squared_distance` is to be asked.
        """
        places, found, largest = [_Place(window, number) for number in range(len(window.parts))], [], 0.0
        for number, a in enumerate(places):
            largest = max(largest, self.held.rows(a, torch.float32).largest)
            for b in places[number:]:
                if a is b:
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
        smallest, most = _FLOAT32_UNITS
        return median if smallest < median**0.5 < most and largest <= FLOAT32_SQUARE * median else None

    def _within(self, window: PartedWindow, kernel: Kernel, prefix: bytes, unit: float) -> float:
        places, total = [_Place(window, number) for number in range(len(window.parts))], 0.0
        for number, a in enumerate(places):
            total += self.kept.get(prefix + a.part.name, partial(self._make, a, a, kernel, unit, with_itself=False))
            total += 2 * sum(self._of_parts(a, b, kernel, prefix, unit) for b in places[number + 1 :])
        return total

    def _of_parts(self, a: _Place, b: _Place, kernel: Kernel, prefix: bytes, unit: float) -> float:
        """The sum over all pairs of a sample of one part and one of the other."""
        a, b = _in_order(a, b)  # both orders are one number
        return self.kept.get(prefix + a.part.name + b.part.name, partial(self._make, a, b, kernel, unit))

    def _make(self, a: _Place, b: _Place, kernel: Kernel, unit: float, *, with_itself: bool = True) -> float:
        values = self._values(a, b, kernel, unit)
        if not with_itself:
            values.fill_diagonal_(0)
        return float(values.sum(dtype=torch.float64))

    def _values(self, a: _Place, b: _Place, kernel: Kernel, unit: float) -> torch.Tensor:
        """The kernel of all pairs, (n, m), of squared distances that are computed as precisely as they need it: see `pairs.py`."""
        smallest, largest = _FLOAT32_UNITS
        for dtype, most in ((torch.float32, FLOAT32_SQUARE), (torch.float64, FLOAT64_SQUARE)):
            if dtype is torch.float64 or smallest < unit < largest:
                of_both = max(self.held.rows(place, dtype).largest for place in (a, b))
                if of_both <= most * unit**2:
                    return kernel(self.held.squares(a, b, dtype), unit)
        rows_a, rows_b = (self.held.rows(place, torch.float64).values / unit for place in (a, b))
        return kernel(torch.cdist(rows_a, rows_b, compute_mode="donot_use_mm_for_euclid_dist").square_(), 1.0)
