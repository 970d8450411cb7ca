"""The option `storage_backend: database`: a run's samples as rows in PostgreSQL, for policies that select with SQL.

The rows are a copy of the run's log, made in the background. Rows and their count are committed by one transaction, and a trigger first
copies the rows that are missing, so a policy sees all of them. There is no index: a B-tree costs more than the rows. As rows lie in the
order of arrival, a policy that asks for ranges of positions creates a BRIN index of its own.
"""

from __future__ import annotations

import io
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np
import psycopg2.extensions
from sqlalchemy.orm import Session

from modyn.selector.catalogue import RunRecord, set_rows
from modyn.selector.sample_log import SampleLog
from modyn.selector.tables import SCHEMA, samples_table

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""Start of binary COPY data; its end is a row of -1 fields."""
_END = b"\xff\xff"
_ROWS_PER_CHUNK = 65_536
"""Rows that are encoded at once: 3.3 MB of COPY data, of which two are held."""
_BYTES_PER_READ = 1 << 20


class SampleRows:
    """The table `samples_<number of the run>` within the transaction of `session`, which must hold the lock on the run's row."""

    def __init__(self, run: RunRecord, session: Session) -> None:
        self._run = run
        self._session = session
        self._name = f"{SCHEMA}.{samples_table(run.number)}"

    def create(self) -> None:
        """Create the table, empty."""
        with self._cursor() as cursor:
            cursor.execute(
                f'CREATE TABLE {self._name} (position bigint NOT NULL, key bigint NOT NULL, "timestamp" bigint NOT NULL, '
                "int_label bigint, float_label double precision)"
            )

    def drop(self) -> None:
        """Drop the table if it exists."""
        with self._cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {self._name}")

    def copy(self, log: SampleLog, most: int | None = None) -> int:
        """Copy at most `most` rows (None: all) that the log holds and the table does not; return how many are still missing."""
        held, start = log.state(), self._run.num_rows
        end = held.num_samples if most is None else min(held.num_samples, start + most)
        if end > start:
            names = ", ".join(f'"{name}"' for name, _ in _columns(held.float_labels))
            with self._cursor() as cursor, _Rows(log, start, end) as rows:
                cursor.copy_expert(f"COPY {self._name} ({names}) FROM STDIN (FORMAT binary)", rows, size=_BYTES_PER_READ)
            set_rows(self._session, self._run, end)
        return held.num_samples - end

    def _cursor(self) -> psycopg2.extensions.cursor:
        connection = self._session.connection().connection
        return cast("psycopg2.extensions.cursor", connection.cursor())


class _Rows(io.RawIOBase):
    """Samples [start, end) of a log as a file of binary COPY data. A thread encodes rows while PostgreSQL reads those before."""

    def __init__(self, log: SampleLog, start: int, end: int) -> None:
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="rows")
        cuts = [*range(start, end, _ROWS_PER_CHUNK), end]
        self._parts = (partial(_encode, log, first, last) for first, last in pairwise(cuts))
        self._next: Future[bytes] | None = self._encode_next()
        self._rest = memoryview(_SIGNATURE)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        if not self._rest and self._next is not None:
            self._rest = memoryview(self._next.result())
            self._next = self._encode_next() if len(self._rest) > len(_END) else None
        target = memoryview(buffer)
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._encoder.shutdown(cancel_futures=True)
        super().close()

    def _encode_next(self) -> Future[bytes]:
        return self._encoder.submit(next(self._parts, lambda: _END))


def _encode(log: SampleLog, start: int, end: int) -> bytes:
    samples = log.read(start, end)
    columns = _columns(samples.labels.dtype.kind == "f")
    # A row is the number of its fields, then for each its length in bytes and its value.
    fields = [field for name, dtype in columns for field in ((f"{name}_bytes", ">i4"), (name, dtype))]
    rows = np.empty(len(samples), np.dtype([("fields", ">i2"), *fields]))
    rows["fields"] = len(columns)
    values = (np.arange(start, end), samples.keys, samples.timestamps, samples.labels)
    for (name, dtype), column in zip(columns, values, strict=True):
        rows[f"{name}_bytes"] = np.dtype(dtype).itemsize
        rows[name] = column
    return rows.tobytes()


def _columns(float_labels: bool | None) -> list[tuple[str, str]]:
    """Column names and their types in COPY data, big-endian."""
    label = ("float_label", ">f8") if float_labels else ("int_label", ">i8")
    return [("position", ">i8"), ("key", ">i8"), ("timestamp", ">i8"), label]
