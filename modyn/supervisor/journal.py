"""The durable record of all runs, in PostgreSQL: states, cursors, triggers, steps and events.

Every write is one transaction that holds the lock of its run's row, so an event and what it tells of are both there or neither. Writes
may be repeated when it is not known whether they arrived: the second one changes nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import RowMapping, func, insert, select, text, update
from sqlalchemy.orm import Session

from modyn.db.engine import Database
from modyn.errors import ConflictError, NotFoundError
from modyn.records import RunId
from modyn.sanitize import sanitize
from modyn.supervisor.client import EventKind, Run, RunEvent, RunMode, TriggerRecord
from modyn.supervisor.evaluation_plan import Cursor
from modyn.supervisor.journal_queries import RUN_QUERY, cursor_from_row, run_from_row, triggers_of
from modyn.supervisor.states import TERMINAL, RunState, check_transition
from modyn.supervisor.tables import CURSORS, EVENTS, RUNS, STEPS

EVENTS_PER_PAGE = 500


@dataclass(frozen=True, slots=True)
class NewRun:
    """What is submitted."""

    pipeline_name: str
    mode: RunMode
    yaml: str
    file_name: str
    pipeline: Mapping[str, Any]
    selection_seed: int
    from_timestamp: int | None = None
    to_timestamp: int | None = None
    max_triggers: int | None = None
    total_samples: int | None = None


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """Everything that a driver needs to go on with a run."""

    run: Run
    file_name: str
    selection_seed: int
    manual_handlers: tuple[str, ...] | None
    """Set: the run is finished and these handlers are to be evaluated; empty: all manual ones."""
    cursor: Cursor
    policy_state: dict[str, Any] | None
    """None: the run has not seen a batch."""
    triggers: tuple[TriggerRecord, ...]
    evaluated: frozenset[tuple[int, str]]
    """(trigger, name) of the evaluations that are finished."""


@dataclass
class Write:
    """One transaction on a run."""

    session: Session
    run_id: str
    state: RunState
    last_seq: int
    changes: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def become(self, to: RunState, **detail: str) -> None:
        if to == self.state:
            return
        check_transition(self.run_id, self.state, to)
        self.state = to
        detail = {name: sanitize(value) for name, value in detail.items()}
        self.changes |= {"state": str(to), "finished_at": time.time() if to in TERMINAL else None, **detail}
        self.event(EventKind.RUN_STATE, {"state": str(to), **{name: value for name, value in detail.items() if value}})

    def event(self, kind: EventKind, detail: Mapping[str, Any], trigger_id: int | None = None) -> None:
        seq = self.last_seq + len(self.events) + 1
        # Also what JSON would keep as it is: watchers get it through protobuf.
        cleaned = {name: sanitize(value) if isinstance(value, str) else value for name, value in detail.items()}
        self.events.append(
            {
                "run_id": self.run_id,
                "seq": seq,
                "time": time.time(),
                "kind": str(kind),
                "trigger_id": trigger_id,
                "detail": cleaned,
            }
        )


class Journal:
    """All runs of an installation. `committed` is called with the run's id after every write that left an event."""

    def __init__(self, database: Database, committed: Callable[[str], None] = lambda _: None) -> None:
        self.database = database
        self._committed = committed

    def create(self, new: NewRun) -> Run:
        """Accepts a run. Its id is the pipeline's name and a number that no other run has."""
        with self.database.session() as session:
            session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('supervisor/create', 0))"))
            number = 1 + (session.scalar(select(func.max(RUNS.c.number))) or 0)
            run_id = RunId(f"{slug(new.pipeline_name)}-{number:04d}")
            session.execute(
                insert(RUNS).values(
                    run_id=run_id,
                    number=number,
                    pipeline_name=sanitize(new.pipeline_name),
                    mode=str(new.mode),
                    state=str(RunState.SUBMITTED),
                    yaml=new.yaml,
                    file_name=sanitize(new.file_name),
                    pipeline=dict(new.pipeline),
                    from_timestamp=new.from_timestamp,
                    to_timestamp=new.to_timestamp,
                    max_triggers=new.max_triggers,
                    total_samples=new.total_samples,
                    selection_seed=new.selection_seed,
                    submitted_at=time.time(),
                )
            )
        with self.write(run_id) as write:
            write.event(EventKind.RUN_STATE, {"state": str(RunState.SUBMITTED)})
        return self.run(run_id)

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        with self.database.session() as session:
            return [run_from_row(row) for row in session.execute(RUN_QUERY.order_by(RUNS.c.number)).mappings()]

    def run(self, run_id: str) -> Run:
        with self.database.session() as session:
            return run_from_row(self._row(session, run_id))

    def snapshot(self, run_id: str) -> RunSnapshot:
        """Raises CorruptStateError when the cursor was written by a release that this one cannot read."""
        with self.database.session() as session:
            row = self._row(session, run_id)
            cursor = session.execute(select(CURSORS).where(CURSORS.c.run_id == run_id)).mappings().one_or_none()
            triggers = triggers_of(session, run_id)
            query = select(STEPS.c.trigger_id, STEPS.c.name).where(
                STEPS.c.run_id == run_id, STEPS.c.step == "evaluate", STEPS.c.state == "finished"
            )
            evaluated = frozenset((int(trigger_id), str(name)) for trigger_id, name in session.execute(query))
        manual = row["manual_handlers"]
        return RunSnapshot(
            run=run_from_row(row),
            file_name=row["file_name"],
            selection_seed=row["selection_seed"],
            manual_handlers=None if manual is None else tuple(manual),
            cursor=Cursor() if cursor is None else cursor_from_row(run_id, cursor),
            policy_state=None if cursor is None else dict(cursor["policy_state"]),
            triggers=triggers,
            evaluated=evaluated,
        )

    def triggers(self, run_id: str) -> tuple[TriggerRecord, ...]:
        with self.database.session() as session:
            self._row(session, run_id)
            return triggers_of(session, run_id)

    def events(self, run_id: str, after_seq: int, limit: int = EVENTS_PER_PAGE) -> tuple[list[RunEvent], bool]:
        """The next events after `after_seq`, and whether these are the last: all that there are of a run at rest."""
        with self.database.session() as session:
            # The state first: whatever it says, the events up to it are there.
            state = session.scalar(select(RUNS.c.state).where(RUNS.c.run_id == run_id))
            if state is None:
                raise _unknown(run_id)
            query = select(EVENTS).where(EVENTS.c.run_id == run_id, EVENTS.c.seq > after_seq).order_by(EVENTS.c.seq).limit(limit)
            rows = session.execute(query).mappings().all()
        events = [RunEvent(row["seq"], row["time"], EventKind(row["kind"]), row["trigger_id"], row["detail"]) for row in rows]
        return events, RunState(state) in TERMINAL and len(events) < limit

    def claim(self, run_id: str) -> int:
        """The number of this attempt to drive the run; whoever drove it before can no longer write."""
        with self.database.session() as session:
            claim = update(RUNS).where(RUNS.c.run_id == run_id).values(attempt=RUNS.c.attempt + 1).returning(RUNS.c.attempt)
            attempt = session.execute(claim).scalar()
        if attempt is None:
            raise _unknown(run_id)
        return int(attempt)

    def become(self, run_id: str, to: RunState, **detail: str) -> Run:
        """A transition from outside the run's driver."""
        with self.write(run_id) as write:
            write.become(to, **detail)
        return self.run(run_id)

    def submit_again(self, run_id: str, manual_handlers: Sequence[str] | None = None) -> Run:
        """Puts a run that is at rest back into line: to go on, or to evaluate `manual_handlers` when it is finished."""
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
        """One transaction on a run. ConflictError when it is driven by somebody else than `attempt`."""
        with self.database.session() as session:
            query = select(RUNS.c.state, RUNS.c.attempt, RUNS.c.last_seq).where(RUNS.c.run_id == run_id).with_for_update()
            row = session.execute(query).one_or_none()
            if row is None:
                raise _unknown(run_id)
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

    def _row(self, session: Session, run_id: str) -> RowMapping:
        row = session.execute(RUN_QUERY.where(RUNS.c.run_id == run_id)).mappings().one_or_none()
        if row is None:
            raise _unknown(run_id)
        return row


def slug(name: str) -> str:
    """`name` as the start of a run's id, which is used as a file name.

    >>> slug("Digits, 10 years!")
    'digits-10-years'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "run"


def _unknown(run_id: str) -> NotFoundError:
    return NotFoundError(f"there is no run '{run_id}'; `modyn ps` lists those that exist")
