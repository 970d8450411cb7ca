"""Strata by a column of the dataset. The value of a sample is read from storage once in a run. Afterwards a state file of the policy contains the
stratum of the sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from modyn.columnar import ColumnWriter
from modyn.records import Int64Array
from modyn.selector.window.selection_window import SelectionContext, SelectionWindow

_NAME: Final = "column"
_AT_ONCE: Final = 1 << 17
"""Largest number of samples whose values are requested at once, and of strata that are written at once (1 MiB)."""


class ColumnStrata:
    """The strata of a window by a column of the dataset. See `Column`.

    A file holds the strata by position in the stream, from the window's start on, so that deletions do not move strata. Earlier strata are dropped,
    because windows only move forward. The number at the position of a deleted sample has no meaning.
    """

    def __init__(self, window: SelectionWindow, context: SelectionContext, column: str) -> None:
        """Read the values that no earlier trigger has read, and write the file. Args: context: context of the trigger. Raises the errors of
        `ReadColumn`."""
        self._window, self._context, self._column = window, context, column
        file = context.files.open(_NAME)
        # `_first` is the stream position of the first stratum in the file.
        self._first = int(file.meta["first"]) if file else 0
        self._strata: Int64Array = file.column("strata") if file else np.zeros(0, np.int64)
        if len(window):
            self._extend()

    def __call__(self) -> Iterator[Int64Array]:
        """Yield the stratum of each sample of the window, int64, in the chunks of the window."""
        return (self._strata[positions - self._first] for positions in self._window.positions())

    def _extend(self) -> None:
        """Write a file with the strata of the whole window, and open it. If the file of the previous trigger has all strata, keep this file."""
        window = self._window
        first, last = (int(window.reader.positions(at, at + 1)[0]) for at in (window.start, window.end - 1))
        if self._first <= first and last < self._first + len(self._strata):
            return
        with self._context.files.writer(_NAME, {"strata": (np.int64, last + 1 - first)}) as writer:
            writer.meta["first"] = first
            done = first
            parts = replace(window, chunk_size=min(window.chunk_size, _AT_ONCE))
            for positions, keys in zip(parts.positions(), parts.all_keys(), strict=True):
                done = _append(writer, done, positions, self._strata_of(positions, keys))
        # The strata are mapped from the written file, because a large window may not fit into memory.
        written = self._context.files.reopen(_NAME)
        self._first, self._strata = first, written.column("strata")

    def _strata_of(self, positions: Int64Array, keys: Int64Array) -> Int64Array:
        """Return the strata of samples. If the file lacks samples, the values of these samples are read. Args: positions, keys: int64 (n,), positions
        ascending."""
        known = int(np.searchsorted(positions, self._first + len(self._strata)))
        # The file is used only if it begins at or before these samples. Otherwise all values are read.
        known = known if known and int(positions[0]) >= self._first else 0
        new = self._context.column(self._column, keys[known:]) if known < len(keys) else keys[:0]
        return np.concatenate([self._strata[positions[:known] - self._first], new])


def _append(writer: ColumnWriter, done: int, positions: Int64Array, strata: Int64Array) -> int:
    """Write the strata of positions from `done` on, 0 for positions without samples. Returns the first position that is not written."""
    end = int(positions[-1]) + 1
    while done < end:
        stop = min(done + _AT_ONCE, end)
        part = np.zeros(stop - done, np.int64)
        start, last = np.searchsorted(positions, [done, stop])
        part[positions[start:last] - done] = strata[start:last]
        writer.append("strata", part)
        done = stop
    return done
