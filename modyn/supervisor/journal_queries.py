"""Reads of the journal: runs, triggers, events, and the snapshot that an executor starts from. Rows become records by field name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_type_hints

from sqlalchemy import BigInteger, Double, RowMapping, Select, Text, and_, cast, exists, func, literal, or_, select, tuple_
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from modyn.db.engine import Database
from modyn.errors import CorruptStateError, NotFoundError
from modyn.records import DeletedSamples, RunId
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.missing_evaluations import FAILED, MISSING_EVALUATIONS, OWN
from modyn.supervisor.records import RequestedEvaluation, Run, RunEvent, TriggerRecord
from modyn.supervisor.states import TERMINAL, RunState, TriggerState
from modyn.supervisor.tables import CHECKS, CURSORS, EVALUATIONS, EVENTS, RUNS, STEPS, TRIGGERS
from modyn.supervisor.triggers.base import CheckRecord
from modyn.supervisor.work_clock import stage_seconds

CURSOR_VERSION = 1
EVENTS_PER_PAGE = 500
_ROWS_PER_PAGE = 200
_NO_CHECK = (-1, -1)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The state of a run in the journal: everything that an executor needs to go on with it."""

    run: Run
    file_name: str
    selection_seed: int
    end_key: int | None
    """See `NewRun`, also for `end_label` and the identities."""
    end_label: int | None
    dataset_identity: str
    evaluation_identities: Mapping[str, str]
    finish_requested: bool
    """The run is to end its stream where it stands, and to make its final evaluations."""
    cursor: Cursor
    policy_state: dict[str, Any] | None
    """None: the run has not seen a batch."""
    triggers: tuple[TriggerRecord, ...]
    checks: tuple[CheckRecord, ...]
    """Those behind the cursor, in order: verdicts to be replayed. Of `online.trigger` from its position on: the state of that policy says which of
    them it knows."""
    evaluated: frozenset[tuple[int, str]]
    """(trigger, name) of the evaluations that are finished."""
    failed: frozenset[tuple[int, str]]
    """(trigger, name) of the run's own evaluations that failed, or that nothing brought to an end; not of those that were requested."""


class JournalQueries:
    """What the journal holds. Every query raises NotFoundError for an unknown run."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def runs(self) -> list[Run]:
        """List all runs, oldest first."""
        return list(self.each_run())

    def each_run(self, *, with_pipelines: bool = True, states: Collection[RunState] = frozenset(RunState)) -> Iterator[Run]:
        """Yield all runs in one of the states, oldest first, read page by page.

        Args: with_pipelines: also `yaml` and `pipeline`, which are empty otherwise.
        """
        query, after = (_RUN_QUERY if with_pipelines else _BRIEF_RUN_QUERY).order_by(RUNS.c.number).limit(_ROWS_PER_PAGE), 0
        while True:
            with self.database.session() as session:  # not held while a page is consumed
                page = query.where(RUNS.c.number > after, RUNS.c.state.in_([str(state) for state in states]))
                rows = session.execute(page).mappings().all()
            yield from (from_row(row, Run) for row in rows)
            if len(rows) < _ROWS_PER_PAGE:
                return
            after = rows[-1]["number"]

    def run(self, run_id: str) -> Run:
        """Return a run. Raises: NotFoundError."""
        with self.database.session() as session:
            return from_row(run_row(session, run_id), Run)

    def users_of(self, samples: DeletedSamples) -> list[RunId]:
        """List the runs that have made a model, and have read as far as these samples in their stream or evaluate on the dataset, oldest first."""
        if samples.first_key is None:
            return []
        read_until = func.coalesce(RUNS.c.end_key, CURSORS.c.last_key + 1)
        trains = and_(RUNS.c.dataset_identity == samples.identity, read_until > samples.first_key)
        evaluates = RUNS.c.evaluation_identities[samples.dataset].astext == samples.identity
        has_model = exists().where(TRIGGERS.c.run_id == RUNS.c.run_id, TRIGGERS.c.model_id.is_not(None))
        query = select(RUNS.c.run_id).outerjoin(CURSORS, CURSORS.c.run_id == RUNS.c.run_id).order_by(RUNS.c.number)
        with self.database.session() as session:
            return [RunId(run_id) for run_id in session.scalars(query.where(or_(trains, evaluates), has_model, ~RUNS.c.removing))]

    def is_removing(self, run_id: str) -> bool:
        """Return whether `modyn rm` has begun to remove the run. Raises: NotFoundError."""
        with self.database.session() as session:
            return bool(run_row(session, run_id)["removing"])

    def runs_in_removal(self) -> list[str]:
        """List the runs whose removal has begun and not ended."""
        with self.database.session() as session:
            return list(session.scalars(select(RUNS.c.run_id).where(RUNS.c.removing).order_by(RUNS.c.number)))

    def newest_models(self, run_id: str) -> set[int]:
        """Return the models of a run that it needs to go on: the newest, from which the next training may, and the newest that is not of proactive
        steps, which trigger policies look at."""
        query = select(TRIGGERS.c.model_id).where(TRIGGERS.c.run_id == run_id, TRIGGERS.c.model_id.is_not(None))
        newest = query.order_by(TRIGGERS.c.trigger_id.desc()).limit(1)
        with self.database.session() as session:
            return {*session.scalars(newest), *session.scalars(newest.where(~TRIGGERS.c.online))}

    def active_runs_from(self, model_ids: Collection[int]) -> list[str]:
        """List the runs that have not finished and begin with one of these models (`training.initial_model_id`)."""
        initial = RUNS.c.pipeline["training"]["initial_model_id"].astext
        query = select(RUNS.c.run_id).where(RUNS.c.state != str(RunState.FINISHED), initial.in_([str(i) for i in model_ids]))
        with self.database.session() as session:
            return list(session.scalars(query.order_by(RUNS.c.number)))

    def snapshot(self, run_id: str) -> RunSnapshot:
        """Return all of a run that survives a restart. Raises CorruptStateError when this release cannot read its cursor."""
        with self.database.session() as session:
            row = run_row(session, run_id)
            cursor = session.execute(select(CURSORS).where(CURSORS.c.run_id == run_id)).mappings().one_or_none()
            triggers = _triggers(session, run_id)
            known = _NO_CHECK if cursor is None else (cursor["last_check"], cursor["position"] - 1)
            checks = tuple(
                check for check in _checks(session, run_id, (min(known), True)) if check.position > known[check.online]
            )
            is_evaluation = (STEPS.c.run_id == run_id, STEPS.c.step == "evaluate")
            steps = select(STEPS.c.trigger_id, STEPS.c.name).where(*is_evaluation)
            evaluated = _evaluated(session, run_id)
            of_run = steps.join(RUNS, RUNS.c.run_id == STEPS.c.run_id).where(OWN, FAILED)
            failed = {(int(t), str(name)) for t, name in session.execute(of_run)}
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
            end_label=row["end_label"],
            dataset_identity=row["dataset_identity"],
            evaluation_identities=row["evaluation_identities"],
            finish_requested=row["finish_requested"],
            cursor=Cursor() if cursor is None else from_row(cursor, Cursor),
            policy_state=None if cursor is None else dict(cursor["policy_state"]),
            triggers=triggers,
            checks=checks,
            evaluated=evaluated,
            failed=frozenset(failed),
        )

    def evaluated(self, run_id: str) -> frozenset[tuple[int, str]]:
        """Return (trigger, name) of the run's evaluations that are finished."""
        with self.database.session() as session:
            return _evaluated(session, run_id)

    def triggers(self, run_id: str) -> tuple[TriggerRecord, ...]:
        """Return the run's triggers in order. Raises: NotFoundError: there is no such run."""
        return tuple(self.each_trigger(run_id))

    def each_trigger(self, run_id: str, first: int = 0, *, with_losses: bool = True) -> Iterator[TriggerRecord]:
        """Yield the run's triggers in order, read page by page. Raises: NotFoundError: there is no such run.

        Args: first: id of the first of them. with_losses: also all losses in their `training_result`, which are long.
        """
        with self.database.session() as session:
            run_row(session, run_id)
        after = first - 1
        while True:
            with self.database.session() as session:  # not held while a page is consumed
                page = _triggers(session, run_id, after, _ROWS_PER_PAGE, with_losses=with_losses)
            yield from page
            if len(page) < _ROWS_PER_PAGE:
                return
            after = page[-1].trigger_id

    def checks(self, run_id: str) -> tuple[CheckRecord, ...]:
        """Return the run's journalled checks in order. Raises: NotFoundError: there is no such run."""
        return tuple(self.each_check(run_id))

    def each_check(self, run_id: str) -> Iterator[CheckRecord]:
        """Yield the run's journalled checks in order, read page by page. Raises: NotFoundError: there is no such run."""
        with self.database.session() as session:
            run_row(session, run_id)
        after = (-1, True)
        while True:
            with self.database.session() as session:  # not held while a page is consumed
                page = _checks(session, run_id, after, _ROWS_PER_PAGE)
            yield from page
            if len(page) < _ROWS_PER_PAGE:
                return
            after = page[-1].position, page[-1].online

    def evaluation(self, run_id: str, number: int) -> RequestedEvaluation:
        """Return the requested evaluations `number` of a run. Raises: NotFoundError."""
        with self.database.session() as session:
            run_row(session, run_id)
            query = select(EVALUATIONS).where(EVALUATIONS.c.run_id == run_id, EVALUATIONS.c.number == number)
            row = session.execute(query).mappings().one_or_none()
        if row is None:
            raise NotFoundError(f"run {run_id} has no requested evaluations {number}; `modyn evaluate {run_id}` asks for some")
        return from_row(row, RequestedEvaluation)

    def evaluations(self, run_id: str) -> list[RequestedEvaluation]:
        """List the evaluations of a run that were asked for, oldest first. Raises: NotFoundError: there is no such run."""
        with self.database.session() as session:
            run_row(session, run_id)
            query = select(EVALUATIONS).where(EVALUATIONS.c.run_id == run_id).order_by(EVALUATIONS.c.number)
            return [from_row(row, RequestedEvaluation) for row in session.execute(query).mappings()]

    def open_evaluations(self) -> list[RequestedEvaluation]:
        """List the requested evaluations of all runs that have not ended, oldest first."""
        with self.database.session() as session:
            query = select(EVALUATIONS).where(EVALUATIONS.c.finished_at.is_(None)).order_by(EVALUATIONS.c.submitted_at)
            return [from_row(row, RequestedEvaluation) for row in session.execute(query).mappings()]

    def first_event(self, run_id: str, newest: int | None = None) -> int:
        """Return the number of the oldest event that is kept; of the newest so many, if `newest` is given. 1 if there is none."""
        query = select(EVENTS.c.seq).where(EVENTS.c.run_id == run_id)
        with self.database.session() as session:
            place = None if newest is None else query.order_by(EVENTS.c.seq.desc()).offset(max(newest, 1) - 1).limit(1)
            seq = None if place is None else session.scalar(place)
            return (session.scalar(query.order_by(EVENTS.c.seq).limit(1)) or 1) if seq is None else seq

    def last_seq(self, run_id: str, before: float) -> int:
        """Return the number of the run's last event before a time in seconds since 1970; 0: there is none."""
        with self.database.session() as session:
            of_run = select(func.max(EVENTS.c.seq)).where(EVENTS.c.run_id == run_id, EVENTS.c.time < before)
            return int(session.scalar(of_run) or 0)

    def events(
        self, run_id: str, after_seq: int, limit: int = EVENTS_PER_PAGE, evaluation: int | None = None
    ) -> tuple[list[RunEvent], bool]:
        """Return at most `limit` events after `after_seq`, and whether these are the last: the run is terminal and has no more.

        Args: evaluation: number of requested evaluations, whose end counts instead of the run's.

        Raises: NotFoundError.
        """
        with self.database.session() as session:
            # The state first: the events up to it, whichever it is, are visible to the second query.
            state = session.scalar(select(RUNS.c.state).where(RUNS.c.run_id == run_id))
            if state is None:
                raise unknown_run(run_id)
            ended = RunState(state) in TERMINAL
            if evaluation is not None:
                which = (EVALUATIONS.c.run_id == run_id, EVALUATIONS.c.number == evaluation)
                ended = session.scalar(select(EVALUATIONS.c.finished_at).where(*which)) is not None
            query = select(EVENTS).where(EVENTS.c.run_id == run_id, EVENTS.c.seq > after_seq).order_by(EVENTS.c.seq).limit(limit)
            events = [from_row(row, RunEvent) for row in session.execute(query).mappings()]
        return events, ended and len(events) < limit


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
_LONG_OF_RUN = ("yaml", "pipeline")
_LONG_OF_TRAINING = ("losses", "epoch_losses", "validation_losses")


def _run_query(*columns: Any) -> Select[Any]:
    position = func.greatest(func.coalesce(CURSORS.c.position, 0), func.coalesce(_TRIGGER_COUNTS.c.trigger_position, 0))
    counts = (
        MISSING_EVALUATIONS.label("failed_evaluations"),
        position.label("num_samples"),
        func.coalesce(CURSORS.c.num_waiting, 0).label("num_waiting"),
        func.coalesce(_TRIGGER_COUNTS.c.num_triggers, 0).label("num_triggers"),
        func.coalesce(_TRIGGER_COUNTS.c.trained, 0).label("samples_trained"),
    )
    return (
        select(*columns, *counts)
        .outerjoin_from(RUNS, CURSORS, CURSORS.c.run_id == RUNS.c.run_id)
        .outerjoin(_TRIGGER_COUNTS, _TRIGGER_COUNTS.c.run_id == RUNS.c.run_id)
    )


_RUN_QUERY = _run_query(RUNS)
_BRIEF_RUN_QUERY = _run_query(*(column for column in RUNS.c if column.name not in _LONG_OF_RUN))


def run_row(session: Session, run_id: str) -> RowMapping:
    """Read a run in the caller's transaction. Raises: NotFoundError."""
    row = session.execute(_RUN_QUERY.where(RUNS.c.run_id == run_id)).mappings().one_or_none()
    if row is None:
        raise unknown_run(run_id)
    return row


def _evaluated(session: Session, run_id: str) -> frozenset[tuple[int, str]]:
    finished = (STEPS.c.run_id == run_id, STEPS.c.step == "evaluate", STEPS.c.state == "finished")
    rows = session.execute(select(STEPS.c.trigger_id, STEPS.c.name).where(*finished))
    return frozenset((int(trigger_id), str(name)) for trigger_id, name in rows)


def _checks(session: Session, run_id: str, after: tuple[int, bool], limit: int | None = None) -> tuple[CheckRecord, ...]:
    """Args: after: position, and whether it is of `online.trigger`, whose check is the second at a position."""
    order = CHECKS.c.position, CHECKS.c.online
    query = select(CHECKS).where(CHECKS.c.run_id == run_id, tuple_(*order) > after).order_by(*order)
    return tuple(from_row(row, CheckRecord) for row in session.execute(query.limit(limit)).mappings())


def _triggers(
    session: Session, run_id: str, after: int = -1, limit: int | None = None, *, with_losses: bool = True
) -> tuple[TriggerRecord, ...]:
    columns: dict[str, Any] = {column.name: column for column in TRIGGERS.c}
    if not with_losses:
        for name in _LONG_OF_TRAINING:
            columns["training_result"] = columns["training_result"].op("-", return_type=JSONB())(literal(name, Text))
        columns["training_result"] = columns["training_result"].label("training_result")
    query = select(*columns.values()).where(TRIGGERS.c.run_id == run_id, TRIGGERS.c.trigger_id > after)
    rows = session.execute(query.order_by(TRIGGERS.c.trigger_id).limit(limit)).mappings().all()
    if not rows:
        return ()
    seconds: dict[int, dict[str, float]] = {}
    worked = cast(STEPS.c.detail["seconds"].astext, Double)
    steps = (
        # Steps that were journalled before seconds were: by their times, which a clock that was set back makes negative.
        select(STEPS.c.trigger_id, STEPS.c.step, func.sum(func.coalesce(worked, func.greatest(_BY_TIMES, 0.0))))
        .where(STEPS.c.run_id == run_id, STEPS.c.state == "finished")
        .where(STEPS.c.trigger_id.between(rows[0]["trigger_id"], rows[-1]["trigger_id"]))
        .group_by(STEPS.c.trigger_id, STEPS.c.step)
    )
    for trigger_id, step, of_step in session.execute(steps):
        seconds.setdefault(trigger_id, {})[step] = of_step
    return tuple(
        from_row({**row, "seconds": stage_seconds(seconds.get(row["trigger_id"], {}), row["training_result"])}, TriggerRecord)
        for row in rows
    )
