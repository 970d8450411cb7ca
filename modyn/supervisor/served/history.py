"""Counts of the predictions that the models of each run have served, by minute, and for older predictions by hour and by day."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from sqlalchemy import ColumnElement, delete, insert, select
from sqlalchemy.orm import Session

from modyn.errors import ConflictError, ModynError, NotFoundError
from modyn.latencies import merged
from modyn.records import VersionUse
from modyn.rpc.logs import get_logger
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.queries import from_row, run_row
from modyn.supervisor.journal.records import ServedInterval, to_row
from modyn.supervisor.journal.tables import SERVED

MINUTE, HOUR, DAY = 60, 3_600, 86_400
WIDENED: Final = ((MINUTE, DAY, HOUR), (HOUR, 90 * DAY, DAY))
"""Triples (width, age, wider), in seconds: intervals of length `width` that are older than `age` are joined to intervals of length `wider`."""
FLUSH_S: Final = 10.0
"""Seconds between two writes. If the supervisor is killed, the counts since the last write are lost."""

_ROWS_PER_PAGE: Final = 200
"""Number of rows read together; the page is extended to the end of a day."""
_ORDER: Final = (SERVED.c.start, SERVED.c.width, SERVED.c.model_id, SERVED.c.role)
_LOG = get_logger("supervisor")


class ServedHistory:
    """Counts the reports of prediction servers, and writes the counts to the journal. Each method may be called from any thread.

    Each version and role has one row for each interval in which a server used the version, for any number of servers and requests. The length of an
    interval is a minute in the newest day, an hour in the newest 90 days, and a day for older counts.

    Args: now: seconds since 1970.
    """

    def __init__(self, journal: Journal, now: Callable[[], float] = time.time) -> None:
        self._journal, self._now = journal, now
        self._lock = threading.Lock()  # Protects `_unwritten`.
        # Held during a flush, so that the flush in `each` waits for a flush of another thread, whose counts `each` must return.
        self._flushing = threading.Lock()
        self._unwritten: dict[str, list[ServedInterval]] = {}

    def add(self, run_id: str, versions: Iterable[VersionUse]) -> None:
        """Count the report of one server."""
        now = self._now()
        start = int(now) // MINUTE * MINUTE
        new = [ServedInterval(start, MINUTE, use.model_id, use.role, now, now, use.latencies) for use in versions]
        with self._lock:
            self._unwritten[run_id] = joined([*self._unwritten.get(run_id, ()), *new])

    def flush(self) -> None:
        """Write the counts; counts of removed runs are dropped.

        Raises: the last error of a run whose counts could not be written; the next flush writes these counts.
        """
        with self._flushing:
            self._flush()

    def each(self, run_id: str) -> Iterator[ServedInterval]:
        """Yield the counts of a run until now, in order of time, read day by day. Raises: NotFoundError: unknown run. Other errors: see `flush`."""
        self.flush()
        with self._journal.database.session() as session:
            run_row(session, run_id)
        begin: int | None = 0
        while begin is not None:
            with self._journal.database.session() as session:  # The session ends before the caller consumes the page.
                page, begin = _days(session, run_id, begin)
            yield from page

    def _flush(self) -> None:
        with self._lock:
            unwritten, self._unwritten = self._unwritten, {}
        failed: ModynError | None = None
        for run_id, intervals in unwritten.items():
            try:
                with self._journal.write(run_id) as write:
                    add_intervals(write.session, run_id, intervals, self._now())
            except (NotFoundError, ConflictError) as error:
                _LOG.info("served_requests_not_kept", run_id=run_id, reason=error.message)
            except ModynError as error:
                failed = error
                with self._lock:  # The counts are put back and added to later reports.
                    self._unwritten[run_id] = joined([*intervals, *self._unwritten.get(run_id, ())])
        if failed is not None:
            raise failed


def joined(intervals: Iterable[ServedInterval]) -> list[ServedInterval]:
    """Add up intervals with the same start, width, version and role; return the sums in this order."""
    return [_sum(list(of_one)) for _, of_one in groupby(sorted(intervals, key=_key), _key)]


def widened(interval: ServedInterval, width: int) -> ServedInterval:
    """Return the interval with start and width of the wider interval that contains it."""
    return replace(interval, start=interval.start // width * width, width=width)


def add_intervals(session: Session, run_id: str, intervals: Sequence[ServedInterval], now: float) -> None:
    """Add counts to the database, and join old intervals to wider intervals. The caller's transaction holds the lock of the run."""
    of_run = SERVED.c.run_id == run_id
    changed = list(intervals)
    # The loop goes from the smallest width to the largest, so that one call can widen an old interval several times.
    for width, age, wider in WIDENED:
        before = int(now - age) // wider * wider
        is_old = (of_run, SERVED.c.width == width, SERVED.c.start < before)
        changed += _read(session, *is_old)
        session.execute(delete(SERVED).where(*is_old))
        changed = [widened(of, wider) if of.width == width and of.start < before else of for of in changed]
    # The stored intervals with these starts are replaced by their sums with the changed intervals.
    meant = (of_run, SERVED.c.start.in_({interval.start for interval in changed}))
    rows = [{"run_id": run_id, **to_row(interval, SERVED)} for interval in joined([*_read(session, *meant), *changed])]
    session.execute(delete(SERVED).where(*meant))
    if rows:
        session.execute(insert(SERVED), rows)


def _days(session: Session, run_id: str, begin: int) -> tuple[list[ServedInterval], int | None]:
    """Read a page from `begin`, the start of a day. Return the page with the start of the next page; the start is None after the last page.

    A page has whole days and is read by one statement. An interval that becomes part of a wider interval during the read stays within its day, and is
    neither missed nor read twice.
    """
    rest = (SERVED.c.run_id == run_id, SERVED.c.start >= begin)
    last = session.scalar(select(SERVED.c.start).where(*rest).order_by(SERVED.c.start).offset(_ROWS_PER_PAGE - 1).limit(1))
    if last is None:
        return _read(session, *rest), None
    end = last // DAY * DAY + DAY
    return _read(session, *rest, SERVED.c.start < end), end


def _read(session: Session, *where: ColumnElement[bool]) -> list[ServedInterval]:
    rows = session.execute(select(SERVED).where(*where).order_by(*_ORDER)).mappings()
    return [
        # Keys in JSON are strings.
        from_row({**row, "latencies": {int(bucket): number for bucket, number in row["latencies"].items()}}, ServedInterval)
        for row in rows
    ]


def _key(interval: ServedInterval) -> tuple[int, int, int, str]:
    """Return the sort key for the order `_ORDER`."""
    return interval.start, interval.width, interval.model_id, str(interval.role)


def _sum(parts: Sequence[ServedInterval]) -> ServedInterval:
    first_at, last_at = min(part.first_at for part in parts), max(part.last_at for part in parts)
    return replace(parts[0], first_at=first_at, last_at=last_at, latencies=merged(part.latencies for part in parts))
