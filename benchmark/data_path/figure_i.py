"""Informing, triggering and reading of keys as rows in PostgreSQL against psycopg2 copying the same rows into one plain table.

The plain table has neither index nor constraint, and lies in the same server. Its rows come from NumPy as binary COPY, which is the fastest
way known to us; each batch is a transaction, as with the selector. Nothing is read back from it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from time import perf_counter

import numpy as np
import psycopg2

from benchmark.data_path.figure import Case, Figure, Measured, Setting, Side
from benchmark.data_path.installation import installation
from benchmark.data_path.selector_side import parts, selector_side, stream
from modyn.records import SampleBatch

_COLUMNS = ("position", "key", "timestamp", "label")
_ROW = np.dtype([("fields", ">i2")] + [field for name in _COLUMNS for field in ((f"{name}_bytes", ">i4"), (name, ">i8"))])
_HEADER, _TRAILER = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"


def copy_side(url: str, samples: SampleBatch) -> Side:
    def run(ready: Callable[[], None]) -> Measured:
        with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS plain")
            cursor.execute('CREATE TABLE plain (position bigint, key bigint, "timestamp" bigint, label bigint)')
            connection.commit()
            ready()
            began = perf_counter()
            for position, part in parts(samples):
                rows = np.empty(len(part), _ROW)
                rows["fields"] = len(_COLUMNS)
                values = (np.arange(position, position + len(part)), part.keys, part.timestamps, part.labels)
                for name, column in zip(_COLUMNS, values, strict=True):
                    rows[f"{name}_bytes"] = 8
                    rows[name] = column
                data = io.BytesIO(b"".join((_HEADER, rows.tobytes(), _TRAILER)))
                cursor.copy_expert("COPY plain FROM STDIN (FORMAT binary)", data)
                connection.commit()
            seconds = perf_counter() - began
            cursor.execute("SELECT count(*) FROM plain")
            found = cursor.fetchone()
            if found != (len(samples),):
                raise RuntimeError(f"the table holds {found} rows, not {len(samples)}")
            cursor.execute("DROP TABLE plain")
            connection.commit()
        return Measured(len(samples) / seconds)

    return Side("psycopg2 COPY", run)


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    samples = stream(setting.samples, "random")
    with installation(setting.folder) as services:
        ours = selector_side(services.config, samples, "database")
        theirs = copy_side(services.config.resolved_database_url(), samples)
        yield [Case("keys random", 0.7, ours, theirs, cold=False)]


FIGURE = Figure(
    "i",
    "inform, trigger and read keys, PostgreSQL, against psycopg2 copying the same rows into one plain table",
    "keys/s",
    samples=10_000_000,
    smoke_samples=150_000,
    prepare=prepare,
)
