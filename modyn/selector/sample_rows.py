"""Store a run's samples as rows in PostgreSQL, for policies that select with SQL (option `storage_backend: database`).

A background thread copies the rows from the run's log. One transaction commits rows together with their count. A trigger first copies the missing
rows, so that a policy sees all rows. The table has no index, because a B-tree would cost more than the rows themselves. Rows are stored in the order
of arrival. A policy that reads ranges of positions can therefore create a BRIN index.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np
import psycopg2.extensions
from sqlalchemy import text
from sqlalchemy.orm import Session

from modyn.errors import ModynError, NotFoundError
from modyn.records import RunId
from modyn.rpc.logs import get_logger
from modyn.selector.labelled_stream import LabelledStream
from modyn.selector.sample_log import SampleLog

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""Start of binary COPY data."""
_COPY_END = b"\xff\xff"
"""End of binary COPY data: -1 in place of a number of fields."""
_ROWS_PER_CHUNK = 65_536
"""Number of rows in an encoded chunk: 3.3 MB of COPY data. Two chunks are in memory at once."""
_BYTES_PER_READ = 1 << 20
"""Number of bytes that psycopg requests from `_CopyData` at once."""


def _samples_table(run_number: int) -> str:
    return f"selector.samples_{run_number}"


def create_rows(session: Session, run_number: int) -> None:
    """Create the empty table of the run in the transaction of `session`. The table must not exist.

    Args: run_number: number of the run in the database, a part of the table's name.
    """
    columns = 'position bigint NOT NULL, key bigint NOT NULL, "timestamp" bigint NOT NULL, int_label bigint, float_label double precision'
    session.execute(text(f"CREATE TABLE {_samples_table(run_number)} ({columns})"))


def drop_rows(session: Session, run_number: int) -> None:
    """Drop the table of the run, if it exists, in the transaction of `session`."""
    session.execute(text(f"DROP TABLE IF EXISTS {_samples_table(run_number)}"))


def copy_rows(session: Session, run_number: int, log: SampleLog | LabelledStream, start: int, most: int | None = None) -> int:
    """Copy at most `most` samples of the log, from position `start` on, into the run's table. None copies all samples. Return the position after the
    last copied sample.

    If the log ends at or before `start`, for example a log from a backup, the result is `start`.

    Args: run_number: see `create_rows`.
    """
    held = log.state()
    end = max(start, held.num_samples if most is None else min(held.num_samples, start + most))
    if end > start:
        names = ", ".join(f'"{name}"' for name, _ in _columns(held.float_labels))
        cursor = cast("psycopg2.extensions.cursor", session.connection().connection.cursor())
        with cursor, _CopyData(log, start, end) as rows:
            copy = f"COPY {_samples_table(run_number)} ({names}) FROM STDIN (FORMAT binary)"
            cursor.copy_expert(copy, rows, size=_BYTES_PER_READ)
    return end


class RowCopier:
    """Calls `copy(run)` on a thread for each run that was passed to `wake`, until `copy` returns False (no rows are left). Runs alternate.

    The thread logs a failure and continues. A trigger that needs the missing rows copies them, and fails if this copy fails. The thread starts with
    the first run. The thread is a daemon: if `stop` is not called, the interpreter does not wait for the thread when it exits.
    """

    def __init__(self, copy: Callable[[RunId], bool]) -> None:
        self._copy = copy
        # Guards the three fields below. `wake` and `stop` notify it; only the thread waits for it.
        self._changed = threading.Condition()
        self._queue: dict[RunId, None] = {}
        """Runs to copy, in order. A dict holds each run once."""
        self._thread: threading.Thread | None = None
        self._stopping = False

    def wake(self, run_id: RunId) -> None:
        """Queue a run, unless the run is queued. If no thread can start, the run stays queued and the next call tries again."""
        with self._changed:
            self._queue[run_id] = None
            if self._thread is None and not self._stopping:
                thread = threading.Thread(target=self._work, name="copy-samples", daemon=True)
                try:
                    thread.start()
                    self._thread = thread
                except RuntimeError as error:
                    get_logger("selector").warning("copies_wait", run_id=run_id, error=str(error))
            self._changed.notify()

    def stop(self) -> None:
        """End the thread after the copy in progress, and drop queued runs. Waits for the thread, because the thread uses the database."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            # The thread was woken above, and ends with the copy in progress.
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                # Wait until `wake` or `stop` notifies.
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if self._stopping:
                    return
                run_id = next(iter(self._queue))
                # The run leaves the queue before the copy, so that samples that arrive meanwhile can queue it again.
                del self._queue[run_id]
            try:
                # A run with more rows goes to the end of the queue, so that a large run does not delay others.
                if self._copy(run_id):
                    self.wake(run_id)
            except NotFoundError:
                get_logger("selector").debug("copy_of_deleted_run", run_id=run_id)
            except ModynError as error:
                get_logger("selector").warning("samples_not_copied", run_id=run_id, error=error.message)
            except Exception:  # noqa: BLE001  (the thread must continue with other runs; the trigger that needs the rows raises it again)
                get_logger("selector").exception("samples_not_copied", run_id=run_id)


class _CopyData(io.RawIOBase):
    """Samples [start, end) of a log as a file of binary COPY data. A thread encodes the next chunk of rows while PostgreSQL reads the previous
    one."""

    def __init__(self, log: SampleLog | LabelledStream, start: int, end: int) -> None:
        # One thread is enough, because `_next` is the only chunk that is being encoded.
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="rows")
        bounds = [*range(start, end, _ROWS_PER_CHUNK), end]
        self._encoded_chunks = (partial(_encode_rows, log, first, last) for first, last in pairwise(bounds))
        self._next: Future[bytes] | None = self._encode_next()
        self._rest = memoryview(_SIGNATURE)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        if not self._rest and self._next is not None:
            self._rest = memoryview(self._next.result())
            # The end of the data is shorter than any chunk of rows. Nothing is encoded after it.
            self._next = self._encode_next() if len(self._rest) > len(_COPY_END) else None
        target = memoryview(buffer)
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        # Wait until the thread has encoded its chunk, because the log may be removed afterwards.
        self._encoder.shutdown(cancel_futures=True)
        super().close()

    def _encode_next(self) -> Future[bytes]:
        return self._encoder.submit(next(self._encoded_chunks, lambda: _COPY_END))


def _encode_rows(log: SampleLog | LabelledStream, start: int, end: int) -> bytes:
    samples = log.read(start, end)
    columns = _columns(samples.labels.dtype.kind == "f")
    # A row is the number of its fields, then the length in bytes and the value of each field.
    fields = [field for name, dtype in columns for field in ((f"{name}_bytes", ">i4"), (name, dtype))]
    rows = np.empty(len(samples), np.dtype([("fields", ">i2"), *fields]))
    rows["fields"] = len(columns)
    values = (np.arange(start, end), samples.keys, samples.timestamps, samples.labels)
    for (name, dtype), column in zip(columns, values, strict=True):
        rows[f"{name}_bytes"] = np.dtype(dtype).itemsize
        rows[name] = column
    return rows.tobytes()


def _columns(float_labels: bool | None) -> list[tuple[str, str]]:
    """Return the names of the table's columns with their types in COPY data, which is big-endian."""
    label = ("float_label", ">f8") if float_labels else ("int_label", ">i8")
    return [("position", ">i8"), ("key", ">i8"), ("timestamp", ">i8"), label]
