"""Samples that earlier triggers have used, as one bit for each position of the run's stream in a file of the policy's state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from modyn._core import StratifiedDraw
from modyn.columnar import ColumnWriter
from modyn.records import Int64Array
from modyn.selector.window.selection_window import Selection, SelectionWindow
from modyn.selector.window.state_files import StateFiles
from modyn.selector.window.strata import Strata, count_strata, draw_from_strata, new_seed

Bits = npt.NDArray[np.uint8]

_NAME: Final = "used"
_PIECE: Final = 1 << 18
"""Number of bytes of bits that are written at once."""


class UsedSamples:
    """The samples that were selected for earlier triggers, and the newly selected samples.

    Samples are marked by their positions in the stream, so that deletions do not move marks. Marks before a window are dropped, because windows only
    move forward.
    """

    def __init__(self, files: StateFiles, window: SelectionWindow) -> None:
        """Args: files: files of the policy; the file of the previous trigger is opened. window: window of the selection."""
        self._files, self._window = files, window
        file = files.open(_NAME)
        # The first byte holds positions 8 · `_first` to 8 · `_first` + 7, the first position in its lowest bit.
        self._first = int(file.meta["first"]) if file else 0
        self._bits: Bits = file.column("bits") if file else np.zeros(0, np.uint8)
        counted = count_strata(self._all_flags, "kinds")
        self.num_used = int(counted.counts[counted.values == 1].sum())
        """Number of samples of the window that earlier triggers used."""
        self.num_unused = len(window) - self.num_used
        """Number of samples of the window that no earlier trigger used."""

    def flags(self, positions: Int64Array) -> Int64Array:
        """Return 1 for each used sample, and 0 for each other sample: int64 (n,). Args: positions: positions in the stream, ascending, int64 (n,)."""
        used = np.zeros(len(positions), np.int64)
        start, end = np.searchsorted(positions, [8 * self._first, 8 * (self._first + len(self._bits))])
        inside = positions[start:end] - 8 * self._first
        used[start:end] = self._bits[inside >> 3] >> (inside & 7).astype(np.uint8) & 1
        return used

    def _all_flags(self) -> Iterator[Int64Array]:
        return map(self.flags, self._window.positions())

    def select(self, unused: int, used: int, generator: np.random.Generator, *, renew: bool = False) -> Selection:
        """Select `unused` unused samples and `used` used samples, uniformly, and mark them as used for the next trigger.

        Args: renew: drop earlier marks, and mark only those selected samples that were used before.
        """
        kinds = Strata(np.arange(2), np.array([self.num_unused, self.num_used], np.int64))
        sizes, seed = np.array([unused, used], np.int64), new_seed(generator)
        if len(self._window):
            # Both draws have the same seed, and thus choose the same samples: first to mark them, then to select them.
            self._write(kinds.draw(sizes, seed), renew)
        return draw_from_strata(self._window, self._all_flags, kinds, sizes, seed)

    def _write(self, draw: StratifiedDraw, renew: bool) -> None:
        """Write the file for the next trigger, with the drawn samples."""
        window = self._window
        first, last = (int(window.reader.positions(at, at + 1)[0]) >> 3 for at in (window.start, window.end - 1))
        with self._files.writer(_NAME, {"bits": (np.uint8, last + 1 - first)}) as writer:
            writer.meta["first"] = first
            noted = _BitWriter(writer, first, None if renew else self)
            for positions in window.positions():
                flags = self.flags(positions)
                chosen = draw.next(flags)
                # With `renew`, only drawn samples that were used before are marked. The byte of the last position is written later, because later
                # positions may set bits in this byte.
                noted.add(positions[chosen[flags[chosen] == 1] if renew else chosen], int(positions[-1]) >> 3)
            noted.add(np.zeros(0, np.int64), last + 1)

    def bits(self, first: int, last: int) -> Bits:
        """Return a copy of bytes [first, last) of the bits of the whole stream."""
        found = np.zeros(last - first, np.uint8)
        begin, end = max(first, self._first), min(last, self._first + len(self._bits))
        if begin < end:
            found[begin - first : end - first] = self._bits[begin - self._first : end - self._first]
        return found


class _BitWriter:
    """Writes a column of bits chunk by chunk. Bits are set in the order of positions."""

    def __init__(self, writer: ColumnWriter, first: int, before: UsedSamples | None) -> None:
        """Args: first: first byte of the column in the stream's bits. before: earlier samples, whose bits stay set."""
        self._writer, self._done, self._before = writer, first, before
        self._held = np.zeros(0, np.int64)
        """Positions to set in bytes that are not written yet."""

    def add(self, positions: Int64Array, end: int) -> None:
        """Set bits at later positions, ascending, and write all bytes before `end`."""
        held = np.concatenate([self._held, positions])
        while self._done < end:
            stop = min(self._done + _PIECE, end)
            bits = self._before.bits(self._done, stop) if self._before else np.zeros(stop - self._done, np.uint8)
            now = held[: np.searchsorted(held, 8 * stop)]
            np.bitwise_or.at(bits, (now >> 3) - self._done, np.left_shift(1, now & 7).astype(np.uint8))
            self._writer.append("bits", bits)
            held, self._done = held[len(now) :], stop
        self._held = held
