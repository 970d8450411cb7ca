"""Reads of the journal: runs, triggers, events, and the snapshot that an executor starts from. Rows become records by field name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_type_hints

from sqlalchemy import BigInteger, Double, RowMapping, cast, func, select
from sqlalchemy.orm import Session

from modyn.db.engine import Database
from modyn.errors import CorruptStateError, NotFoundError
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.records import Run, RunEvent, TriggerRecord
from modyn.supervisor.states import TERMINAL, RunState, TriggerState
from modyn.supervisor.tables import CHECKS, CURSORS, EVENTS, RUNS, STEPS, TRIGGERS
from modyn.supervisor.triggers.base import CheckRecord
from modyn.supervisor.work_clock import stage_seconds

CURSOR_VERSION = 1
EVENTS_PER_PAGE = 500

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The state of a run in the journal: everything that an executor needs to go on with it."""

    run: Run
    file_name: str
    selection_seed: int
    end_key: int | None
    """As in `NewRun`, and `dataset_identity`."""
    dataset_identity: str
    manual_handlers: Sequence[str] | None
    """Set: the run is finished and these handlers are to be evaluated; empty: all manual ones."""
    cursor: Cursor
    policy_state: dict[str, Any] | None
    """None: the run has not seen a batch."""
    triggers: tuple[TriggerRecord, ...]
    checks: tuple[CheckRecord, ...]
    """Those behind the cursor, in order: verdicts to be replayed."""
    evaluated: frozenset[tuple[int, str]]
    """(trigger, name) of the evaluations that are finished."""


class JournalQueries:
    """What the journal holds. Every query raises NotFoundError for an unknown run."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def runs(self) -> list[Run]:
        """List all runs, oldest first."""
        with self.database.session() as session:
            return [from_row(row, Run) for row in session.execute(_RUN_QUERY.order_by(RUNS.c.number)).mappings()]

    def run(self, run_id: str) -> Run:
        """Return a run. Raises: NotFoundError."""
        with self.database.session() as session:
            return from_row(_run_row(session, run_id), Run)

    def snapshot(self, run_id: str) -> RunSnapshot:
        """Return all of a run that survives a restart. Raises CorruptStateError when this release cannot read its cursor."""
        with self.database.session() as session:
            row = _run_row(session, run_id)
            cursor = session.execute(select(CURSORS).where(CURSORS.c.run_id == run_id)).mappings().one_or_none()
            triggers = _triggers(session, run_id)
            checks = _checks(session, run_id, -1 if cursor is None else cursor["last_check"])
            query = select(STEPS.c.trigger_id, STEPS.c.name).where(
                STEPS.c.run_id == run_id, STEPS.c.step == "evaluate", STEPS.c.state == "finished"
            )
            evaluated = frozenset((int(trigger_id), str(name)) for trigger_id, name in session.execute(query))
        if cursor is not None and cursor["version"] != CURSOR_VERSION:
            raise CorruptStateError(
                f"the journal of run {run_id} has version {cursor['version']}, this release reads {CURSOR_VERSION}; "
                "resume the run with the release that started it"
            )
        return RunSnapshot(
            run=from_row(row, Run),
            file_name=row["file_name"],
            selection_seed=row["selection_seed"],
            end_key=row["end_key"],
            dataset_identity=row["dataset_identity"],
            manual_handlers=row["manual_handlers"],
            cursor=Cursor() if cursor is None else from_row(cursor, Cursor),
            policy_state=None if cursor is None else dict(cursor["policy_state"]),
            triggers=triggers,
            checks=checks,
            evaluated=evaluated,
        )

    def triggers(self, run_id: str) -> tuple[TriggerRecord, ...]:
        """Return the run's triggers in order. Raises: NotFoundError: there is no such run."""
        with self.database.session() as session:
            _run_row(session, run_id)
            return _triggers(session, run_id)

    def checks(self, run_id: str) -> tuple[CheckRecord, ...]:
        """Return the run's journalled checks in order. Raises: NotFoundError: there is no such run."""
        with self.database.session() as session:
            _run_row(session, run_id)
            return _checks(session, run_id)

    def events(self, run_id: str, after_seq: int, limit: int = EVENTS_PER_PAGE) -> tuple[list[RunEvent], bool]:
        """Return at most `limit` events after `after_seq`, and whether these are the last: the run is terminal and has no more.

        Raises: NotFoundError.
        """
        with self.database.session() as session:
            # The state first: the events up to it, whichever it is, are visible to the second query.
            state = session.scalar(select(RUNS.c.state).where(RUNS.c.run_id == run_id))
            if state is None:
                raise unknown_run(run_id)
            query = select(EVENTS).where(EVENTS.c.run_id == run_id, EVENTS.c.seq > after_seq).order_by(EVENTS.c.seq).limit(limit)
            events = [from_row(row, RunEvent) for row in session.execute(query).mappings()]
        return events, RunState(state) in TERMINAL and len(events) < limit


def from_row(row: RowMapping | Mapping[str, Any], kind: type[R]) -> R:
    """Make a record of the dataclass `kind` from the columns that have the names of its fields."""
    hints = {name: hint for name, hint in _hints(kind).items() if name in row}
    is_enum = {name: isinstance(hint, type) and issubclass(hint, Enum) for name, hint in hints.items()}
    return kind(**{name: hint(row[name]) if is_enum[name] else row[name] for name, hint in hints.items()})


def unknown_run(run_id: str) -> NotFoundError:
    """Build the error for a run id that is not in the journal."""
    return NotFoundError(f"there is no run '{run_id}'; `modyn ps` lists those that exist")


_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)

_BY_TIMES = STEPS.c.finished_at - STEPS.c.started_at
_TRAINED_ON = func.coalesce(cast(TRIGGERS.c.training_result["num_samples"].astext, BigInteger), TRIGGERS.c.num_keys)
_TRIGGER_COUNTS = (
    select(
        TRIGGERS.c.run_id,
        func.count().label("num_triggers"),
        # The sum of bigint is numeric in PostgreSQL.
        cast(func.sum(_TRAINED_ON).filter(TRIGGERS.c.state == str(TriggerState.TRAINED)), BigInteger).label("trained"),
        func.max(TRIGGERS.c.position).label("trigger_position"),
    )
    .group_by(TRIGGERS.c.run_id)
    .subquery()
)
_RUN_QUERY = (
    select(
        RUNS,
        func.greatest(func.coalesce(CURSORS.c.position, 0), func.coalesce(_TRIGGER_COUNTS.c.trigger_position, 0)).label(
            "num_samples"
        ),
        func.coalesce(_TRIGGER_COUNTS.c.num_triggers, 0).label("num_triggers"),
        func.coalesce(_TRIGGER_COUNTS.c.trained, 0).label("samples_trained"),
    )
    .outerjoin(CURSORS, CURSORS.c.run_id == RUNS.c.run_id)
    .outerjoin(_TRIGGER_COUNTS, _TRIGGER_COUNTS.c.run_id == RUNS.c.run_id)
)


def _run_row(session: Session, run_id: str) -> RowMapping:
    row = session.execute(_RUN_QUERY.where(RUNS.c.run_id == run_id)).mappings().one_or_none()
    if row is None:
        raise unknown_run(run_id)
    return row


def _checks(session: Session, run_id: str, after: int = -1) -> tuple[CheckRecord, ...]:
    query = select(CHECKS).where(CHECKS.c.run_id == run_id, CHECKS.c.position > after).order_by(CHECKS.c.position)
    return tuple(from_row(row, CheckRecord) for row in session.execute(query).mappings())


def _triggers(session: Session, run_id: str) -> tuple[TriggerRecord, ...]:
    seconds: dict[int, dict[str, float]] = {}
    worked = cast(STEPS.c.detail["seconds"].astext, Double)
    steps = (
        # Steps that were journalled before seconds were: by their times, which a clock that was set back makes negative.
        select(STEPS.c.trigger_id, STEPS.c.step, func.sum(func.coalesce(worked, func.greatest(_BY_TIMES, 0.0))))
        .where(STEPS.c.run_id == run_id, STEPS.c.state == "finished")
        .group_by(STEPS.c.trigger_id, STEPS.c.step)
    )
    for trigger_id, step, of_step in session.execute(steps):
        seconds.setdefault(trigger_id, {})[step] = of_step
    rows = session.execute(select(TRIGGERS).where(TRIGGERS.c.run_id == run_id).order_by(TRIGGERS.c.trigger_id)).mappings()
    return tuple(
        from_row({**row, "seconds": stage_seconds(seconds.get(row["trigger_id"], {}), row["training_result"])}, TriggerRecord)
        for row in rows
    )
