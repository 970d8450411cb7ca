"""Cache of compared values in the memory of a worker. With this cache, a sample passes through a model once for all questions about drift."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modyn.errors import DataError
from modyn.records import Float32Array, Int64Array

_BLOCK: Final = 4096
"""Number of rows that are moved at once."""
_RECENT: Final = 4000
"""Number of ticks after which a row counts as unused: 2,000 questions of two windows each, because many policies may share a session."""


class ValueTable:
    """Rows of float32 by key, in one growing array, with the tick of the last use of each row. The table is not thread-safe."""

    def __init__(self) -> None:
        self._rows: Float32Array = np.empty((0, 0), np.float32)
        self._num = 0
        # `_keys`: key of each row. `_by_key`: positions of the rows, ordered by key.
        self._keys: Int64Array = np.empty(0, np.int64)
        self._used: Int64Array = np.empty(0, np.int64)
        self._by_key: Int64Array = np.empty(0, np.int64)
        self._added: list[Int64Array] = []

    def __len__(self) -> int:
        return self._num

    @property
    def row_bytes(self) -> int:
        """Return the size of one row in bytes; 0 before the first row."""
        return 4 * int(self._rows.shape[1])

    @property
    def num_bytes(self) -> int:
        """Return the size of all rows in bytes."""
        return self._rows.nbytes

    def missing(self, keys: Int64Array) -> Int64Array:
        """Return the keys, int64 (n,), that have no row."""
        return keys[self._positions(keys) < 0]

    def add(self, keys: Int64Array, rows: Float32Array) -> None:
        """Append rows, (n, d), for keys without a row. The rows are found only after a call of `index`.

        Raises DataError: the width differs from earlier rows.
        """
        if not self._num:
            self._rows = np.empty((0, rows.shape[1]), np.float32)
        if rows.shape[1] != self._rows.shape[1]:
            raise DataError(
                f"samples of different widths cannot be compared: sample {keys[0]} has {rows.shape[1]} values, and others have {self._rows.shape[1]}"
            )
        if self._num + len(rows) > len(self._rows):
            # The array is resized in place if the system supports this, because a copy would double the memory.
            room = max(len(rows), self._num // 4)
            self._rows.resize((self._num + room, rows.shape[1]), refcheck=False)
        self._rows[self._num : self._num + len(rows)] = rows
        self._num += len(rows)
        self._added.append(keys)

    def index(self) -> None:
        """Index the rows that were added since the last call."""
        self._keys = np.concatenate([self._keys, *self._added])
        self._added = []
        self._used = np.concatenate([self._used, np.zeros(self._num - len(self._used), np.int64)])
        self._by_key = np.argsort(self._keys, kind="stable")
        self._rows.resize((self._num, self._rows.shape[1]), refcheck=False)

    def found(self, keys: Int64Array, now: int) -> NDArray[np.bool_]:
        """Return for each key whether the key has a row, bool (n,), and mark the found rows as used. Args: now: larger than in all earlier calls."""
        positions = self._positions(keys)
        self._used[positions[positions >= 0]] = now
        return positions >= 0

    def take(self, keys: Int64Array) -> Float32Array:
        """Return copies of the rows of the keys, (n, d), in the order of the keys. All keys must have a row."""
        return self._rows[self._positions(keys)]

    def keep_newest(self, number: int) -> None:
        """Remove all rows except the `number` most recently used rows."""
        kept = np.sort(np.argsort(self._used, kind="stable")[max(0, self._num - number) :])
        # Rows move towards the start, so that no row is overwritten before it is moved.
        for first in range(0, len(kept), _BLOCK):
            self._rows[first : first + len(kept[first : first + _BLOCK])] = self._rows[kept[first : first + _BLOCK]]
        self._num, self._keys, self._used = len(kept), self._keys[kept], self._used[kept]
        self.index()

    def num_used_since(self, moment: int) -> int:
        """Return the number of rows that were used at tick `moment` or later."""
        return int((self._used >= moment).sum())

    def _positions(self, keys: Int64Array) -> NDArray[np.int64]:
        """Return the position of the row of each key; -1 if the key has no row."""
        if not len(self._by_key):
            return np.full(len(keys), -1, np.int64)
        ordered = self._keys[self._by_key]
        found = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
        return np.where(ordered[found] == keys, self._by_key[found], -1)


class KeptValues:
    """The tables of a session, by the source of their rows: a model, the decoding of samples, and the kind of values. The tables are not thread-safe.

    During a question, the size may exceed the limit. Afterwards `trim` enforces the limit.
    """

    def __init__(self, recent: int = _RECENT) -> None:
        """Args: recent: number of ticks after which an unused row may be removed."""
        self._recent = recent
        self._tables: OrderedDict[Hashable, ValueTable] = OrderedDict()
        self.clock = 0
        """Number of the last `tick`."""

    def table(self, made_by: Hashable) -> ValueTable:
        """Return the table of this source, which is created if needed. The table counts as used now."""
        found = self._tables.setdefault(made_by, ValueTable())
        self._tables.move_to_end(made_by)
        return found

    def tick(self) -> int:
        """Return a number that is larger than all earlier ticks."""
        self.clock += 1
        return self.clock

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self._tables)

    @property
    def num_bytes(self) -> int:
        """Return the size of all rows in bytes."""
        return sum(table.num_bytes for table in self._tables.values())

    def trim(self, limit: int, since: int) -> None:
        """Remove rows until at most `limit` bytes are used.

        Tables without recent use, such as the tables of earlier models, are removed first. Rows without recent use are removed if they are more than
        half of a table, because lookup time grows with the number of rows. Then the least recently used tables are removed. The last table is cut to
        three quarters of the limit, but rows used at tick `since` or later stay if they fit.
        """
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
                # A quarter of the space stays free, so that the next questions do not trim again at once.
                fitting = limit // table.row_bytes
                table.keep_newest(min(fitting, max(fitting * 3 // 4, table.num_used_since(since))))
