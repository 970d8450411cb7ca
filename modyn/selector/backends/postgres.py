"""Samples as rows in PostgreSQL, one partition a run, for policies that ask in SQL. In and out by binary COPY, without a Python loop.

Rows and count are committed by one transaction. A partition is used by its own name, so that runs do not wait for each other's locks.
"""

from __future__ import annotations

import io
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import psycopg2.extensions
from sqlalchemy.orm import Session

from modyn.errors import CorruptStateError
from modyn.records import Int64Array, LabelArray, SampleBatch
from modyn.selector.backends.base import Held, SampleLog
from modyn.selector.catalogue import RunRecord, extend_run
from modyn.selector.tables import SAMPLES, SCHEMA

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""What binary COPY data starts with; its end is a row of -1 fields."""
_END = b"\xff\xff"


class TableLog(SampleLog):
    """The partition `samples_<number>` of the table `samples`, within the transaction of `session`.

    The run's row counts the samples. Appending requires that the transaction has locked it.
    """

    def __init__(self, run: RunRecord, session: Session) -> None:
        super().__init__(run.run_id)
        self.run = run
        self.session = session

    def held(self) -> Held:
        return Held(self.run.num_samples, self.run.float_labels)

    @property
    def _table(self) -> str:
        return f"{SCHEMA}.{SAMPLES}_{self.run.number}"

    def _cursor(self) -> psycopg2.extensions.cursor:
        connection = self.session.connection().connection
        return cast("psycopg2.extensions.cursor", connection.cursor())

    def create(self) -> None:
        # Attaching a table that exists locks out nobody, while CREATE ... PARTITION OF waits for everybody.
        with self._cursor() as cursor:
            cursor.execute(f"CREATE TABLE {self._table} (LIKE {SCHEMA}.{SAMPLES} INCLUDING ALL)")
            cursor.execute(f"ALTER TABLE {SCHEMA}.{SAMPLES} ATTACH PARTITION {self._table} FOR VALUES IN ({self.run.number})")

    def drop(self) -> None:
        with self._cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {self._table}")

    def write(self, position: int, batch: SampleBatch) -> None:
        label, label_type = ("float_label", ">f8") if batch.labels.dtype.kind == "f" else ("int_label", ">i8")
        columns: list[tuple[str, str, Any]] = [
            ("run_number", ">i4", self.run.number),
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
        label, label_type = ("float_label", ">f8") if self.run.float_labels else ("int_label", ">i8")
        rows = self._rows([("key", ">i8"), ("timestamp", ">i8"), (label, label_type)], start, end)
        labels: LabelArray = rows[label].astype(np.float64) if self.run.float_labels else rows[label].astype(np.int64)
        return SampleBatch(rows["key"].astype(np.int64), rows["timestamp"].astype(np.int64), labels)

    def read_keys(self, start: int, end: int) -> Int64Array:
        return self._rows([("key", ">i8")], start, end)["key"].astype(np.int64)

    def _rows(self, columns: list[tuple[str, str]], start: int, end: int) -> npt.NDArray[np.void]:
        row_type, count = _row_type(columns), max(end - start, 0)
        names = ", ".join(f'"{name}"' for name, _ in columns)
        # Integers only: COPY takes no parameters.
        part = f"run_number = {self.run.number} AND position >= {int(start)} AND position < {int(end)}"
        query = f"SELECT {names} FROM {self._table} WHERE {part} ORDER BY position"
        with io.BytesIO() as data, self._cursor() as cursor:
            cursor.copy_expert(f"COPY ({query}) TO STDOUT (FORMAT binary)", data)
            if data.tell() != len(_SIGNATURE) + count * row_type.itemsize + len(_END):
                raise CorruptStateError(
                    f"table {self._table} does not hold samples {start} to {end} of run '{self.run.run_id}'; "
                    "restore the database from a backup, or delete the run and start it anew"
                )
            return np.frombuffer(data.getvalue(), row_type, count, offset=len(_SIGNATURE))


def _row_type(columns: list[tuple[str, str]]) -> np.dtype[np.void]:
    """A row of binary COPY: the number of fields, then for each its length in bytes and its value, all big-endian."""
    fields = [("fields", ">i2")]
    for name, dtype in columns:
        fields += [(f"{name}_bytes", ">i4"), (name, dtype)]
    return np.dtype(fields)
