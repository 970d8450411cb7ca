"""The stream of a run as rows in PostgreSQL, for policies that ask in SQL: a copy of its log, made behind the back of who informs.

Rows lie in the order of arrival, so a block range index finds a range of positions, at a thousandth of what a B-tree costs to keep.
Rows and their count are committed by one transaction, and who needs them all copies first what is missing.
"""

from __future__ import annotations

import io
from typing import Any, cast

import numpy as np
import psycopg2.extensions
from sqlalchemy.orm import Session

from modyn.records import SampleBatch
from modyn.selector.catalogue import RunRecord, set_rows
from modyn.selector.sample_log import SampleLog
from modyn.selector.tables import SCHEMA, samples_table

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""What binary COPY data starts with; its end is a row of -1 fields."""
_END = b"\xff\xff"
ROWS_AT_ONCE = 131_072
"""Rows that are copied with one statement: bounds the memory that it takes."""


class SampleTable:
    """The table `samples_<number of the run>`, within the transaction of `session`, which has locked the run's row: it counts the rows."""

    def __init__(self, run: RunRecord, session: Session) -> None:
        self._run = run
        self._session = session
        self._name = f"{SCHEMA}.{samples_table(run.number)}"

    def create(self) -> None:
        with self._cursor() as cursor:
            cursor.execute(
                f'CREATE TABLE {self._name} (position bigint NOT NULL, key bigint NOT NULL, "timestamp" bigint NOT NULL, '
                "int_label bigint, float_label double precision)"
            )
            cursor.execute(f"CREATE INDEX {self._index} ON {self._name} USING brin (position)")

    def drop(self) -> None:
        """Removes the table."""
        with self._cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {self._name}")

    def copy(self, log: SampleLog, most: int | None = None) -> int:
        """Copies what the log holds and the table does not, at most `most` rows; how many are still missing."""
        held = log.held().num_samples
        end = held if most is None else min(held, self._run.num_rows + most)
        for first in range(self._run.num_rows, end, ROWS_AT_ONCE):
            self._insert(first, log.read(first, min(first + ROWS_AT_ONCE, end)))
        if end > self._run.num_rows:
            set_rows(self._session, self._run, end)
        return held - end

    def complete_index(self) -> None:
        """Without it, what was copied since the last time is scanned for every range of positions."""
        with self._cursor() as cursor:
            cursor.execute(f"SELECT brin_summarize_new_values('{SCHEMA}.{self._index}')")

    def _insert(self, position: int, batch: SampleBatch) -> None:
        label, label_type = ("float_label", ">f8") if batch.labels.dtype.kind == "f" else ("int_label", ">i8")
        columns: list[tuple[str, str, Any]] = [
            ("position", ">i8", np.arange(position, position + len(batch))),
            ("key", ">i8", batch.keys),
            ("timestamp", ">i8", batch.timestamps),
            (label, label_type, batch.labels),
        ]
        rows = np.empty(len(batch), _row_type([(name, dtype) for name, dtype, _ in columns]))
        rows["fields"] = len(columns)
        for name, dtype, values in columns:
            rows[f"{name}_bytes"] = np.dtype(dtype).itemsize
            rows[name] = values
        names = ", ".join(f'"{name}"' for name, _, _ in columns)
        with self._cursor() as cursor:
            data = io.BytesIO(b"".join((_SIGNATURE, rows.tobytes(), _END)))
            cursor.copy_expert(f"COPY {self._name} ({names}) FROM STDIN (FORMAT binary)", data)

    @property
    def _index(self) -> str:
        return f"{samples_table(self._run.number)}_position"

    def _cursor(self) -> psycopg2.extensions.cursor:
        connection = self._session.connection().connection
        return cast("psycopg2.extensions.cursor", connection.cursor())


def _row_type(columns: list[tuple[str, str]]) -> np.dtype[np.void]:
    """A row of binary COPY: the number of fields, then for each its length in bytes and its value, all big-endian."""
    fields = [("fields", ">i2")]
    for name, dtype in columns:
        fields += [(f"{name}_bytes", ">i4"), (name, dtype)]
    return np.dtype(fields)
