"""What is compared of samples, kept in the memory of a worker between questions about drift: each sample is passed once through a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modyn.errors import DataError
from modyn.records import Float32Array, Int64Array

_BLOCK: Final = 4096
"""Rows that are moved at once."""
_RECENT: Final = 4000
"""Ticks: 2,000 questions of two windows each. Many policies may ask in turn."""


class ValueTable:
    """Rows of float32 by key, in one array that grows, and when each was asked for last. Not for threads."""

    def __init__(self) -> None:
        self._rows: Float32Array = np.empty((0, 0), np.float32)
        self._num = 0
        # Of the rows, in their order; and the positions of the rows, by key.
        self._keys: Int64Array = np.empty(0, np.int64)
        self._used: Int64Array = np.empty(0, np.int64)
        self._by_key: Int64Array = np.empty(0, np.int64)
        self._added: list[Int64Array] = []

    def __len__(self) -> int:
        return self._num

    @property
    def row_bytes(self) -> int:
        """Size of one row in bytes; 0 before the first."""
        return 4 * int(self._rows.shape[1])

    @property
    def num_bytes(self) -> int:
        """Size of all rows in bytes."""
        return self._rows.nbytes

    def missing(self, keys: Int64Array) -> Int64Array:
        """Those of `keys`, int64 (n,), that have no row."""
        return keys[self._positions(keys) < 0]

    def add(self, keys: Int64Array, rows: Float32Array) -> None:
        """Append rows, (n, d), of keys that have none. They are found from the next `index` on.

        Raises DataError: earlier rows have another width.
        """
        if not self._num:
            self._rows = np.empty((0, rows.shape[1]), np.float32)
        if rows.shape[1] != self._rows.shape[1]:
            raise DataError(
                f"samples of different widths cannot be compared: sample {keys[0]} has {rows.shape[1]} values, and others have {self._rows.shape[1]}"
            )
        if self._num + len(rows) > len(self._rows):
            # In place where the system can: a copy would take the memory twice.
            room = max(len(rows), self._num // 4)
            self._rows.resize((self._num + room, rows.shape[1]), refcheck=False)
        self._rows[self._num : self._num + len(rows)] = rows
        self._num += len(rows)
        self._added.append(keys)

    def index(self) -> None:
        """Make what was added since the last call be found."""
        self._keys = np.concatenate([self._keys, *self._added])
        self._added = []
        self._used = np.concatenate([self._used, np.zeros(self._num - len(self._used), np.int64)])
        self._by_key = np.argsort(self._keys, kind="stable")
        self._rows.resize((self._num, self._rows.shape[1]), refcheck=False)

    def found(self, keys: Int64Array, now: int) -> NDArray[np.bool_]:
        """For each key, whether it has a row, bool (n,); those rows count as asked for. Args: now: larger than in all calls before."""
        positions = self._positions(keys)
        self._used[positions[positions >= 0]] = now
        return positions >= 0

    def take(self, keys: Int64Array) -> Float32Array:
        """Copies of the rows of the keys, which all have one, (n, d), in their order."""
        return self._rows[self._positions(keys)]

    def keep_newest(self, number: int) -> None:
        """Remove all but the `number` rows that were asked for last."""
        kept = np.sort(np.argsort(self._used, kind="stable")[max(0, self._num - number) :])
        for first in range(0, len(kept), _BLOCK):  # towards the start: nothing that is still needed is overwritten
            self._rows[first : first + len(kept[first : first + _BLOCK])] = self._rows[kept[first : first + _BLOCK]]
        self._num, self._keys, self._used = len(kept), self._keys[kept], self._used[kept]
        self.index()

    def num_used_since(self, moment: int) -> int:
        """Rows that were asked for at `moment` or later."""
        return int((self._used >= moment).sum())

    def _positions(self, keys: Int64Array) -> NDArray[np.int64]:
        """Where the row of each key lies; -1: nowhere."""
        if not len(self._by_key):
            return np.full(len(keys), -1, np.int64)
        ordered = self._keys[self._by_key]
        found = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
        return np.where(ordered[found] == keys, self._by_key[found], -1)


class KeptValues:
    """The tables of a session, by what made their rows: a model, the decoding of samples, and what is taken of them. Not for threads.

    Within one question all rows that it needs are there. `trim` removes at its end what is over a limit: first whole tables, then rows of the
    last table, each time those that were asked for least recently.
    """

    def __init__(self, recent: int = _RECENT) -> None:
        """Args: recent: ticks for which a row is kept that nothing asks for."""
        self._recent = recent
        self._tables: OrderedDict[Hashable, ValueTable] = OrderedDict()
        self.clock = 0
        """Number of the last `tick`."""

    def table(self, made_by: Hashable) -> ValueTable:
        """The table of this maker, perhaps a new one; it counts as used now."""
        found = self._tables.setdefault(made_by, ValueTable())
        self._tables.move_to_end(made_by)
        return found

    def tick(self) -> int:
        """A number that is larger than those before."""
        self.clock += 1
        return self.clock

    def __len__(self) -> int:
        """How many tables there are."""
        return len(self._tables)

    @property
    def num_bytes(self) -> int:
        """Size of all rows in bytes."""
        return sum(table.num_bytes for table in self._tables.values())

    def trim(self, limit: int, since: int) -> None:
        """Remove what is over `limit` bytes. Of the last table so much that some room is left, but not what was asked for at `since` or later,
        as far as that fits. Remove also what no question has asked for recently, where that is most of a table: to find a row takes time that
        grows with their number; and tables of which nothing was, so that those of earlier models end."""
        for name, table in list(self._tables.items()):
            recent = table.num_used_since(self.clock - self._recent)
            if not recent and name != next(reversed(self._tables)):
                del self._tables[name]
            elif len(table) > 2 * recent + _BLOCK:
                table.keep_newest(recent)
        while self.num_bytes > limit and len(self._tables) > 1:
            self._tables.popitem(last=False)
        for table in self._tables.values():
            if table.num_bytes > limit:
                fitting = limit // table.row_bytes
                table.keep_newest(min(fitting, max(fitting * 3 // 4, table.num_used_since(since))))
