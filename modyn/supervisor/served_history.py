"""What was served of each run, over time: counted by the minute, and by the hour and the day as it grows old."""

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
from modyn.supervisor.journal import Journal
from modyn.supervisor.journal_queries import from_row, run_row
from modyn.supervisor.records import ServedInterval, to_row
from modyn.supervisor.tables import SERVED

MINUTE, HOUR, DAY = 60, 3_600, 86_400
WIDENED: Final = ((MINUTE, DAY, HOUR), (HOUR, 90 * DAY, DAY))
"""(width, age, wider): intervals of a width are part of wider ones when these ended so many seconds ago."""
FLUSH_S: Final = 10.0
"""Between two writes: so much is lost when the supervisor is killed."""

_ROWS_PER_PAGE: Final = 200
"""At least so many, up to the end of a day."""
_ORDER: Final = (SERVED.c.start, SERVED.c.width, SERVED.c.model_id, SERVED.c.role)
_LOG = get_logger("supervisor")


class ServedHistory:
    """Counts what servers of predictions report, and writes it to the journal. Safe to call from any thread.

    Each version and role has one row for an interval in which a server used it, whatever the number of servers and requests: a minute for the newest
    day, an hour for the newest 90 days, a day before them.

    Args: now: seconds since 1970.
    """

    def __init__(self, journal: Journal, now: Callable[[], float] = time.time) -> None:
        self._journal, self._now = journal, now
        self._lock = threading.Lock()  # Protects what is not written.
        self._flushing = threading.Lock()  # One flush at a time: `each` finds what another thread is about to write.
        self._unwritten: dict[str, list[ServedInterval]] = {}

    def add(self, run_id: str, versions: Iterable[VersionUse]) -> None:
        """Count what one server reports."""
        now = self._now()
        start = int(now) // MINUTE * MINUTE
        new = [ServedInterval(start, MINUTE, use.model_id, use.role, now, now, use.latencies) for use in versions]
        with self._lock:
            self._unwritten[run_id] = joined([*self._unwritten.get(run_id, ()), *new])

    def flush(self) -> None:
        """Write what was counted. What is of a run that is gone is dropped.

        Raises: the last error of a run whose counts could not be written; they are written the next time.
        """
        with self._flushing:
            self._flush()

    def each(self, run_id: str) -> Iterator[ServedInterval]:
        """Yield what was served of a run until now, in order of time, read by days. Raises: NotFoundError: there is no such run. As `flush`."""
        self.flush()
        with self._journal.database.session() as session:
            run_row(session, run_id)
        begin: int | None = 0
        while begin is not None:
            with self._journal.database.session() as session:  # not held while a page is consumed
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
                with self._lock:
                    self._unwritten[run_id] = joined([*intervals, *self._unwritten.get(run_id, ())])
        if failed is not None:
            raise failed


def joined(intervals: Iterable[ServedInterval]) -> list[ServedInterval]:
    """Add up intervals of one start, width, version and role, in order of these."""
    return [_sum(list(of_one)) for _, of_one in groupby(sorted(intervals, key=_key), _key)]


def widened(interval: ServedInterval, width: int) -> ServedInterval:
    """An interval as a part of the wider one that it lies in."""
    return replace(interval, start=interval.start // width * width, width=width)


def add_intervals(session: Session, run_id: str, intervals: Sequence[ServedInterval], now: float) -> None:
    """Add counts to those in the database, and widen what is old enough. The caller's transaction holds the lock of the run."""
    of_run = SERVED.c.run_id == run_id
    changed = list(intervals)
    for width, age, wider in WIDENED:
        before = int(now - age) // wider * wider
        is_old = (of_run, SERVED.c.width == width, SERVED.c.start < before)
        changed += _read(session, *is_old)
        session.execute(delete(SERVED).where(*is_old))
        changed = [widened(of, wider) if of.width == width and of.start < before else of for of in changed]
    meant = (of_run, SERVED.c.start.in_({interval.start for interval in changed}))
    rows = [{"run_id": run_id, **to_row(interval, SERVED)} for interval in joined([*_read(session, *meant), *changed])]
    session.execute(delete(SERVED).where(*meant))
    if rows:
        session.execute(insert(SERVED), rows)


def _days(session: Session, run_id: str, begin: int) -> tuple[list[ServedInterval], int | None]:
    """Read about a page from `begin` on, which is that of a day, and return also where the next one begins; None: this is the last one.

    Whole days, each by one statement: intervals become wider ones of the same day, so none is missed or comes twice that does so between two pages.
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
        # Names in JSON are texts.
        from_row({**row, "latencies": {int(bucket): number for bucket, number in row["latencies"].items()}}, ServedInterval)
        for row in rows
    ]


def _key(interval: ServedInterval) -> tuple[int, int, int, str]:
    """As `_ORDER`."""
    return interval.start, interval.width, interval.model_id, str(interval.role)


def _sum(parts: Sequence[ServedInterval]) -> ServedInterval:
    first_at, last_at = min(part.first_at for part in parts), max(part.last_at for part in parts)
    return replace(parts[0], first_at=first_at, last_at=last_at, latencies=merged(part.latencies for part in parts))
