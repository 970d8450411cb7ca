"""Informing, triggering and reading of keys as rows in PostgreSQL, compared with psycopg2 copying the same rows into one plain table.

The plain table has neither index nor constraint, and lies in the same server. Its rows come from NumPy as binary COPY, which is the fastest
way known to us. It is filled in two ways, both of which are compared with: each batch is made and then copied, a transaction each; or a thread makes
rows while those before are copied, a million a transaction, which is what the selector does after it has answered. Nothing is
read back from the table, while the selector's triggers wait for its rows, and its partitions are read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import psycopg2

from benchmark.data_path.figure import Case, Figure, Measured, Setting, Side
from benchmark.data_path.installation import installation
from benchmark.data_path.selector_side import parts, selector_side, stream
from modyn.records import SampleBatch

_COLUMNS = ("position", "key", "timestamp", "label")
_ROW = np.dtype([("fields", ">i2")] + [field for name in _COLUMNS for field in ((f"{name}_bytes", ">i4"), (name, ">i8"))])
_HEADER, _TRAILER = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"


_ROWS_A_TRANSACTION = 1 << 20
"""Rows of one transaction, as in the selector's copies."""
_ROWS_AT_ONCE = 65_536


def encoded(samples: SampleBatch, first: int, last: int) -> bytes:
    rows = np.empty(last - first, _ROW)
    rows["fields"] = len(_COLUMNS)
    part = samples.slice(first, last)
    for name, column in zip(_COLUMNS, (np.arange(first, last), part.keys, part.timestamps, part.labels), strict=True):
        rows[f"{name}_bytes"] = 8
        rows[name] = column
    return rows.tobytes()


class MadeAhead(io.RawIOBase):
    """File of the rows [start, end) as binary COPY data. A thread makes rows while earlier ones are read."""

    def __init__(self, maker: Executor, samples: SampleBatch, start: int, end: int) -> None:
        self._maker = maker
        cuts = [*range(start, end, _ROWS_AT_ONCE), end]
        self._parts = (partial(encoded, samples, *cut) for cut in pairwise(cuts))
        self._next: Future[bytes] | None = self._make()
        self._rest = memoryview(_HEADER)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._rest and self._next is not None:
            self._rest = memoryview(self._next.result())
            self._next = self._make() if len(self._rest) > len(_TRAILER) else None
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _make(self) -> Future[bytes]:
        return self._maker.submit(next(self._parts, lambda: _TRAILER))


def _in_series(samples: SampleBatch) -> Iterator[io.IOBase]:
    for position, part in parts(samples):
        yield io.BytesIO(b"".join((_HEADER, encoded(samples, position, position + len(part)), _TRAILER)))


def _made_ahead(samples: SampleBatch) -> Iterator[io.IOBase]:
    with ThreadPoolExecutor(1) as maker:
        for first, last in pairwise([*range(0, len(samples), _ROWS_A_TRANSACTION), len(samples)]):
            yield MadeAhead(maker, samples, first, last)


WAYS: dict[str, Callable[[SampleBatch], Iterator[io.IOBase]]] = {
    "a batch after the other": _in_series,
    "a million rows a transaction, made ahead": _made_ahead,
}
"""Data of the transactions, by way."""


def copy_side(url: str, samples: SampleBatch, way: str) -> Side:
    def run(ready: Callable[[], None]) -> Measured:
        with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS plain")
            cursor.execute('CREATE TABLE plain (position bigint, key bigint, "timestamp" bigint, label bigint)')
            connection.commit()
            ready()
            began = perf_counter()
            for data in WAYS[way](samples):
                cursor.copy_expert("COPY plain FROM STDIN (FORMAT binary)", data, size=1 << 20)
                connection.commit()
            seconds = perf_counter() - began
            cursor.execute("SELECT count(*), sum(key) FROM plain")
            found = cursor.fetchone()
            if found != (len(samples), int(samples.keys.sum())):
                raise RuntimeError(f"the table holds other rows than the {len(samples):,} that were copied: {found}")
            cursor.execute("DROP TABLE plain")
            connection.commit()
        return Measured(len(samples) / seconds)

    return Side(f"psycopg2 COPY, {way}", run)


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    samples = stream(setting.samples, "random")
    with installation(setting.folder) as services:
        ours = selector_side(services, samples, "database")
        url = services.config.resolved_database_url()
        # Not cold: both sides write.
        yield [Case(f"keys random, COPY of {way}", 0.7, ours, copy_side(url, samples, way), cold=False) for way in WAYS]


FIGURE = Figure(
    "i",
    "inform, trigger and read keys, PostgreSQL, against psycopg2 copying the same rows into one plain table",
    "keys/s",
    samples=10_000_000,
    smoke_samples=150_000,
    prepare=prepare,
)
