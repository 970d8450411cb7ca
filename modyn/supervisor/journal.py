"""The durable record of all runs, in PostgreSQL: states, cursors, triggers, steps and events. Reads: journal_queries.py.

Every write is one transaction that holds the lock of its run's row, so that an event and the change that it reports are both there or
neither. Writes may be repeated when it is not known whether they arrived: the second one changes nothing.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sqlalchemy import Table, func, insert, select, text, update
from sqlalchemy.orm import Session

from modyn.db.engine import Database
from modyn.errors import ConflictError
from modyn.json_codec import sanitize
from modyn.records import RunId
from modyn.supervisor.journal_queries import JournalQueries, unknown_run
from modyn.supervisor.records import EventKind, NewRun, Run, RunEvent
from modyn.supervisor.states import TERMINAL, RunState, check_transition
from modyn.supervisor.tables import EVENTS, RUNS


@dataclass
class Write:
    """One transaction on a run: the changes of its row and the events that report them."""

    session: Session
    run_id: str
    state: RunState
    last_seq: int
    changes: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def become(self, to: RunState, **detail: str) -> None:
        """Change the run's state and record the event; nothing happens if it is in `to` already. Raises: ConflictError."""
        if to == self.state:
            return
        check_transition(self.run_id, self.state, to)
        self.state = to
        detail = {name: sanitize(value) for name, value in detail.items()}
        self.changes |= {"state": str(to), "finished_at": time.time() if to in TERMINAL else None, **detail}
        self.event(EventKind.RUN_STATE, {"state": str(to), **{name: value for name, value in detail.items() if value}})

    def event(self, kind: EventKind, detail: Mapping[str, Any], trigger_id: int | None = None) -> None:
        """Add an event with the next sequence number, written when the transaction commits."""
        # Also text that JSON would keep as it is: watchers get it through protobuf.
        cleaned = {name: sanitize(value) if isinstance(value, str) else value for name, value in detail.items()}
        event = RunEvent(self.last_seq + len(self.events) + 1, time.time(), kind, trigger_id, cleaned)
        self.events.append({"run_id": self.run_id, **to_row(event, EVENTS)})


class Journal(JournalQueries):
    """All runs of an installation. `committed` is called with the run's id after every write that left an event."""

    def __init__(self, database: Database, committed: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(database)
        self._committed = committed

    def create(self, new: NewRun) -> Run:
        """Accept a run. Its id is the pipeline's name and a number that no other run has."""
        with self.database.session() as session:
            session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('supervisor/create', 0))"))
            number = 1 + (session.scalar(select(func.max(RUNS.c.number))) or 0)
            run_id = RunId(f"{slug(new.pipeline_name)}-{number:04d}")
            values = to_row(new, RUNS)
            values |= {name: sanitize(values[name]) for name in ("pipeline_name", "file_name")}
            values |= {"run_id": run_id, "number": number, "state": str(RunState.SUBMITTED), "submitted_at": time.time()}
            session.execute(insert(RUNS).values(values))
        with self.write(run_id) as write:
            write.event(EventKind.RUN_STATE, {"state": str(RunState.SUBMITTED)})
        return self.run(run_id)

    def claim(self, run_id: str) -> int:
        """Begin a new attempt to execute the run and return its number; the attempts before it can no longer write."""
        with self.database.session() as session:
            claim = update(RUNS).where(RUNS.c.run_id == run_id).values(attempt=RUNS.c.attempt + 1).returning(RUNS.c.attempt)
            attempt = session.execute(claim).scalar()
        if attempt is None:
            raise unknown_run(run_id)
        return int(attempt)

    def become(self, run_id: str, to: RunState, **detail: str) -> Run:
        """Change the state from outside the run's executor."""
        with self.write(run_id) as write:
            write.become(to, **detail)
        return self.run(run_id)

    def submit_again(self, run_id: str, manual_handlers: Sequence[str] | None = None) -> Run:
        """Queue a terminal run once more: to go on, or to evaluate `manual_handlers` when it is finished."""
        with self.write(run_id) as write:
            if (write.state is RunState.FINISHED) != (manual_handlers is not None):
                wanted = "nothing to resume" if write.state is RunState.FINISHED else "resume it first"
                raise ConflictError(f"run {run_id} is {write.state}: {wanted}")
            write.become(RunState.SUBMITTED)
            write.changes |= {"error": "", "error_reason": ""}
            write.changes |= {"message": ""} if manual_handlers is None else {"manual_handlers": list(manual_handlers)}
        return self.run(run_id)

    @contextmanager
    def write(self, run_id: str, attempt: int | None = None) -> Iterator[Write]:
        """Open one transaction on a run. Raises ConflictError when another attempt than `attempt` executes it now."""
        with self.database.session() as session:
            # The row lock orders all writes of the run, and with them the numbers of its events.
            query = select(RUNS.c.state, RUNS.c.attempt, RUNS.c.last_seq).where(RUNS.c.run_id == run_id).with_for_update()
            row = session.execute(query).one_or_none()
            if row is None:
                raise unknown_run(run_id)
            if attempt is not None and row.attempt != attempt:
                raise ConflictError(f"run {run_id} has been taken over by another supervisor (attempt {row.attempt})")
            write = Write(session, run_id, RunState(row.state), row.last_seq)
            yield write
            if write.events:
                session.execute(insert(EVENTS), write.events)
                write.changes["last_seq"] = write.last_seq + len(write.events)
            if write.changes:
                session.execute(update(RUNS).where(RUNS.c.run_id == run_id).values(**write.changes))
        if write.events:
            self._committed(run_id)


def to_row(record: Any, table: Table) -> dict[str, Any]:
    """The values of a dataclass for the columns of `table` that have the names of its fields."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record) if field.name in table.c}
    return {name: str(value) if isinstance(value, Enum) else value for name, value in values.items()}


def slug(name: str) -> str:
    """`name` as the start of a run's id, which is used as a file name.

    >>> slug("Digits, 10 years!")
    'digits-10-years'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "run"
