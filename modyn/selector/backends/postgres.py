"""Samples as rows in PostgreSQL, one table a run, for policies that ask in SQL. In and out by binary COPY, without a Python loop.

Rows lie in the order of arrival, so a block range index finds a range of positions, at a thousandth of what a B-tree costs to keep.
Rows and count are committed by one transaction.
"""

from __future__ import annotations

import io
import struct
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import psycopg2.extensions
from sqlalchemy.orm import Session

from modyn.errors import CorruptStateError
from modyn.records import Int64Array, SampleBatch
from modyn.selector.backends.base import Held, SampleLog
from modyn.selector.catalogue import RunRecord, extend_run
from modyn.selector.tables import SCHEMA, samples_table

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""What binary COPY data starts with; its end is a row of -1 fields."""
_END = b"\xff\xff"
_ARRAY = struct.Struct(">iiiIii")
"""Of an array with one dimension: bytes that follow, dimensions, whether there are nulls, type of the elements, their number, first index."""


class TableLog(SampleLog):
    """The table `samples_<number of the run>`, within the transaction of `session`.

    The run's row counts the samples. Appending requires that the transaction has locked it.
    """

    def __init__(self, run: RunRecord, session: Session) -> None:
        super().__init__(run.run_id)
        self.run = run
        self.session = session
        self._table = f"{SCHEMA}.{samples_table(run.number)}"
        self._index_is_complete = False

    def held(self) -> Held:
        return Held(self.run.num_samples, self.run.float_labels)

    def create(self) -> None:
        with self._cursor() as cursor:
            cursor.execute(
                f'CREATE TABLE {self._table} (position bigint NOT NULL, key bigint NOT NULL, "timestamp" bigint NOT NULL, '
                "int_label bigint, float_label double precision)"
            )
            cursor.execute(f"CREATE INDEX {self._index} ON {self._table} USING brin (position)")

    def drop(self) -> None:
        """Removes the table."""
        with self._cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {self._table}")

    def write(self, position: int, batch: SampleBatch) -> None:
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
            cursor.copy_expert(f"COPY {self._table} ({names}) FROM STDIN (FORMAT binary)", data)
        extend_run(self.session, self.run, position + len(batch), label == "float_label")

    def read(self, start: int, end: int) -> SampleBatch:
        label = ("float_label", ">f8") if self.run.float_labels else ("int_label", ">i8")
        keys, timestamps, labels = self._columns([("key", ">i8"), ("timestamp", ">i8"), label], start, end)
        return SampleBatch(keys, timestamps, labels)

    def read_keys(self, start: int, end: int) -> Int64Array:
        keys: Int64Array = self._columns([("key", ">i8")], start, end)[0]
        return keys

    def _columns(self, columns: list[tuple[str, str]], start: int, end: int) -> list[npt.NDArray[Any]]:
        """Rows [start, end), one array a column. Arrays are made by PostgreSQL: rows of few fields cost it three times as much."""
        count = max(end - start, 0)
        if not count:
            return [np.empty(0, np.dtype(dtype).newbyteorder("=")) for _, dtype in columns]
        self._complete_index()
        wanted = [("position", ">i8"), *columns]
        arrays = ", ".join(f'array_agg("{name}")' for name, _ in wanted)
        # Integers only: COPY takes no parameters.
        query = f"SELECT {arrays} FROM {self._table} WHERE position >= {int(start)} AND position < {int(end)}"
        with io.BytesIO() as data, self._cursor() as cursor:
            cursor.copy_expert(f"COPY ({query}) TO STDOUT (FORMAT binary)", data)
            positions, *values = _arrays(data.getvalue(), [dtype for _, dtype in wanted])
        if np.any(positions[1:] <= positions[:-1]):
            # Rows lie in order, unless the space of a failed append was used again.
            order = np.argsort(positions, kind="stable")
            positions, values = positions[order], [column[order] for column in values]
        if len(positions) != count or positions[0] != start or np.any(positions[1:] - positions[:-1] != 1):
            raise CorruptStateError(
                f"table {self._table} does not hold samples {start} to {end} of run '{self.run.run_id}'; "
                "restore the database from a backup, or delete the run and start it anew"
            )
        return values

    def _complete_index(self) -> None:
        """Without it, what was appended since the last time is scanned for every range."""
        if not self._index_is_complete:
            with self._cursor() as cursor:
                cursor.execute(f"SELECT brin_summarize_new_values('{SCHEMA}.{self._index}')")
            self._index_is_complete = True

    @property
    def _index(self) -> str:
        return f"{samples_table(self.run.number)}_position"

    def _cursor(self) -> psycopg2.extensions.cursor:
        connection = self.session.connection().connection
        return cast("psycopg2.extensions.cursor", connection.cursor())


def _row_type(columns: list[tuple[str, str]]) -> np.dtype[np.void]:
    """A row of binary COPY: the number of fields, then for each its length in bytes and its value, all big-endian."""
    fields = [("fields", ">i2")]
    for name, dtype in columns:
        fields += [(f"{name}_bytes", ">i4"), (name, dtype)]
    return np.dtype(fields)


def _arrays(data: bytes, dtypes: list[str]) -> list[npt.NDArray[Any]]:
    """The arrays of the one row of binary COPY data; no elements where it has NULL, which is what array_agg makes of no rows."""
    found: list[npt.NDArray[Any]] = []
    offset = len(_SIGNATURE) + 2
    for dtype in dtypes:
        native = np.dtype(dtype).newbyteorder("=")
        if data[offset : offset + 4] == b"\xff" * 4:
            found.append(np.empty(0, native))
            offset += 4
            continue
        num_bytes, _, _, _, count, _ = _ARRAY.unpack_from(data, offset)
        elements = np.frombuffer(data, np.dtype([("num_bytes", ">i4"), ("value", dtype)]), count, offset + _ARRAY.size)
        found.append(elements["value"].astype(native))
        offset += 4 + num_bytes
    return found
