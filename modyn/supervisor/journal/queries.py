"""Reads of the journal: runs, triggers, events, and the snapshot from which an executor starts. Columns become fields of the same name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_type_hints

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    RowMapping,
    Select,
    Text,
    and_,
    cast,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from modyn.db.engine import Database
from modyn.errors import CorruptStateError, NotFoundError
from modyn.json_codec import JsonRecord
from modyn.records import DeletedSamples, RunId
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.journal.records import RequestedEvaluation, Run, TriggerRecord
from modyn.supervisor.journal.run_events import RunEvent, detail_from_json
from modyn.supervisor.journal.states import TERMINAL, RunState, TriggerState
from modyn.supervisor.journal.tables import CHECKS, CURSORS, EVALUATIONS, EVENTS, RUNS, STEPS, TRIGGERS
from modyn.supervisor.journal.work_clock import stage_seconds
from modyn.supervisor.triggers.base import CheckRecord

CURSOR_VERSION = 1
"""Format of the rows of `cursors`. A release refuses to continue a run whose cursor has another version."""
EVENTS_PER_PAGE = 500
"""Number of events that one query reads. A full page means that the journal may have more events."""
_ROWS_PER_PAGE = 200
"""Number of rows read in one transaction. A run may have more triggers and checks than fit into memory."""
_NO_CHECK = (-1, -1)
"""Positions before every check, for a run without a cursor. See `known` in `JournalQueries.snapshot`."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The state of a run in the journal, from which an executor continues the run."""

    run: Run
    file_name: str
    selection_seed: int
    end_key: int | None
    """See `NewRun`, also for `end_label` and the identities."""
    end_label: int | None
    dataset_identity: str
    evaluation_identities: Mapping[str, str]
    finish_requested: bool
    """Whether the run must end its stream at the cursor, and then make the final evaluations."""
    cursor: Cursor
    policy_state: dict[str, Any] | None
    """State of the trigger policy; None if the run has not received a batch."""
    triggers: tuple[TriggerRecord, ...]
    checks: tuple[CheckRecord, ...]
    """Checks after the cursor, in order. A resumed run replays their verdicts. Checks of `online.trigger` start at the cursor's position; the state
    of this policy shows which of the checks the state already includes.
    """
    evaluated: frozenset[tuple[int, str]]
    """(trigger, name) of the evaluations that are finished."""
    failed: frozenset[tuple[int, str]]
    """(trigger, name) of the run's own evaluations that failed or never ended, without requested evaluations."""


class JournalQueries:
    """Queries of the journal. Every query about a run raises NotFoundError if there is no such run."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def runs(self) -> list[Run]:
        """List all runs, oldest first."""
        return list(self.each_run())

    def each_run(self, *, with_pipelines: bool = True, states: Collection[RunState] = frozenset(RunState)) -> Iterator[Run]:
        """Yield all runs that are in one of the states, oldest first. The rows are read in pages.

        Args: with_pipelines: fill the fields `yaml` and `pipeline`, which are empty otherwise.
        """
        query, after = (_RUN_QUERY if with_pipelines else _BRIEF_RUN_QUERY).order_by(RUNS.c.number).limit(_ROWS_PER_PAGE), 0
        while True:
            with self.database.session() as session:  # The session ends before the caller consumes the page.
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
        """List the runs with a model, oldest first, whose stream has reached these samples or whose evaluations use their dataset."""
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
        """List the runs whose removal has begun but not ended."""
        with self.database.session() as session:
            return list(session.scalars(select(RUNS.c.run_id).where(RUNS.c.removing).order_by(RUNS.c.number)))

    def newest_models(self, run_id: str) -> set[int]:
        """Return the models that a run needs to continue: the newest model (the next parent) and the newest model of a retraining (for policies)."""
        query = select(TRIGGERS.c.model_id).where(TRIGGERS.c.run_id == run_id, TRIGGERS.c.model_id.is_not(None))
        newest = query.order_by(TRIGGERS.c.trigger_id.desc()).limit(1)
        with self.database.session() as session:
            return {*session.scalars(newest), *session.scalars(newest.where(~TRIGGERS.c.online))}

    def active_runs_from(self, model_ids: Collection[int]) -> list[str]:
        """List the runs that have not finished and start with one of these models (`training.initial_model_id`)."""
        initial = RUNS.c.pipeline["training"]["initial_model_id"].astext
        query = select(RUNS.c.run_id).where(RUNS.c.state != str(RunState.FINISHED), initial.in_([str(i) for i in model_ids]))
        with self.database.session() as session:
            return list(session.scalars(query.order_by(RUNS.c.number)))

    def snapshot(self, run_id: str) -> RunSnapshot:
        """Return the state of a run that survives a restart. Raises: CorruptStateError: this release cannot read the cursor of the run."""
        with self.database.session() as session:
            row = run_row(session, run_id)
            cursor = session.execute(select(CURSORS).where(CURSORS.c.run_id == run_id)).mappings().one_or_none()
            triggers = _triggers(session, run_id)
            # Indexed by `CheckRecord.online`: the last position whose checks are already part of the policy's state.
            known = _NO_CHECK if cursor is None else (cursor["last_check"], cursor["position"] - 1)
            checks = tuple(
                check for check in _checks(session, run_id, (min(known), True)) if check.position > known[check.online]
            )
            is_evaluation = (STEPS.c.run_id == run_id, STEPS.c.step == "evaluate")
            steps = select(STEPS.c.trigger_id, STEPS.c.name).where(*is_evaluation)
            evaluated = _evaluated(session, run_id)
            of_run = steps.join(RUNS, RUNS.c.run_id == STEPS.c.run_id).where(_OWN, _FAILED)
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
        """Return (trigger, name) of the run's finished evaluations."""
        with self.database.session() as session:
            return _evaluated(session, run_id)

    def triggers(self, run_id: str) -> tuple[TriggerRecord, ...]:
        """Return the run's triggers in order. Raises: NotFoundError: there is no such run."""
        return tuple(self.each_trigger(run_id))

    def each_trigger(self, run_id: str, first: int = 0, *, with_losses: bool = True) -> Iterator[TriggerRecord]:
        """Yield the run's triggers in order, read page by page. Raises: NotFoundError: there is no such run.

        Args: first: id of the first trigger. with_losses: include all losses in `training_result`; these lists are long.
        """
        with self.database.session() as session:
            run_row(session, run_id)
        after = first - 1
        while True:
            with self.database.session() as session:  # The session ends before the caller consumes the page.
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
            with self.database.session() as session:  # The session ends before the caller consumes the page.
                page = _checks(session, run_id, after, _ROWS_PER_PAGE)
            yield from page
            if len(page) < _ROWS_PER_PAGE:
                return
            after = page[-1].position, page[-1].online

    def evaluation(self, run_id: str, number: int) -> RequestedEvaluation:
        """Return the request `number` for evaluations of a run. Raises: NotFoundError."""
        with self.database.session() as session:
            run_row(session, run_id)
            query = select(EVALUATIONS).where(EVALUATIONS.c.run_id == run_id, EVALUATIONS.c.number == number)
            row = session.execute(query).mappings().one_or_none()
        if row is None:
            raise NotFoundError(f"run {run_id} has no requested evaluations {number}; `modyn evaluate {run_id}` asks for some")
        return from_row(row, RequestedEvaluation)

    def evaluations(self, run_id: str) -> list[RequestedEvaluation]:
        """List the requests for evaluations of a run, oldest first. Raises: NotFoundError: there is no such run."""
        with self.database.session() as session:
            run_row(session, run_id)
            query = select(EVALUATIONS).where(EVALUATIONS.c.run_id == run_id).order_by(EVALUATIONS.c.number)
            return [from_row(row, RequestedEvaluation) for row in session.execute(query).mappings()]

    def open_evaluations(self) -> list[RequestedEvaluation]:
        """List the requests for evaluations that have not ended, of all runs, oldest first."""
        with self.database.session() as session:
            query = select(EVALUATIONS).where(EVALUATIONS.c.finished_at.is_(None)).order_by(EVALUATIONS.c.submitted_at)
            return [from_row(row, RequestedEvaluation) for row in session.execute(query).mappings()]

    def first_event(self, run_id: str, newest: int | None = None) -> int:
        """Return the sequence number of the oldest kept event, or of the oldest of the `newest` events; 1 if no event is kept."""
        query = select(EVENTS.c.seq).where(EVENTS.c.run_id == run_id)
        with self.database.session() as session:
            place = None if newest is None else query.order_by(EVENTS.c.seq.desc()).offset(max(newest, 1) - 1).limit(1)
            seq = None if place is None else session.scalar(place)
            return (session.scalar(query.order_by(EVENTS.c.seq).limit(1)) or 1) if seq is None else seq

    def last_seq(self, run_id: str, before: float) -> int:
        """Return the sequence number of the run's last event before a time in seconds since 1970; 0 if there is no such event."""
        with self.database.session() as session:
            of_run = select(func.max(EVENTS.c.seq)).where(EVENTS.c.run_id == run_id, EVENTS.c.time < before)
            return int(session.scalar(of_run) or 0)

    def events(
        self, run_id: str, after_seq: int, limit: int = EVENTS_PER_PAGE, evaluation: int | None = None
    ) -> tuple[list[RunEvent], bool]:
        """Return at most `limit` events after `after_seq`, and whether the run is terminal and has no more events.

        Args: evaluation: `RequestedEvaluation.number` of a request. The second value is then about this request instead of the run.

        Raises: NotFoundError.
        """
        with self.database.session() as session:
            # The state is read first, so that the second query sees all events up to this state.
            state = session.scalar(select(RUNS.c.state).where(RUNS.c.run_id == run_id))
            if state is None:
                raise unknown_run(run_id)
            ended = RunState(state) in TERMINAL
            if evaluation is not None:
                which = (EVALUATIONS.c.run_id == run_id, EVALUATIONS.c.number == evaluation)
                ended = session.scalar(select(EVALUATIONS.c.finished_at).where(*which)) is not None
            query = select(EVENTS).where(EVENTS.c.run_id == run_id, EVENTS.c.seq > after_seq).order_by(EVENTS.c.seq).limit(limit)
            events = [
                RunEvent(row.seq, row.time, row.trigger_id, detail_from_json(row.kind, row.detail))
                for row in session.execute(query)
            ]
        return events, ended and len(events) < limit


def from_row(row: RowMapping | Mapping[str, Any], kind: type[R]) -> R:
    """Make a record of the dataclass `kind` from the columns that have the names of its fields."""
    hints = {name: hint for name, hint in _hints(kind).items() if name in row}
    return kind(**{name: _from_column(row[name], hint) for name, hint in hints.items()})


def _from_column(value: Any, hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, JsonRecord):
        return hint.from_mapping(value)
    return hint(value) if isinstance(hint, type) and issubclass(hint, Enum) else value


def unknown_run(run_id: str) -> NotFoundError:
    """Build the error for a run id that is not in the journal."""
    return NotFoundError(f"there is no run '{run_id}'; `modyn ps` lists those that exist")


_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)

_TRAINED_ON = func.coalesce(cast(TRIGGERS.c.training_result["num_samples"].astext, BigInteger), TRIGGERS.c.num_keys)
_TRIGGER_COUNTS = (
    select(
        TRIGGERS.c.run_id,
        func.count().label("num_triggers"),
        # In PostgreSQL, the sum of bigint values has the type numeric.
        cast(func.sum(_TRAINED_ON).filter(TRIGGERS.c.state == str(TriggerState.TRAINED)), BigInteger).label("trained"),
        func.max(TRIGGERS.c.position).label("trigger_position"),
    )
    .group_by(TRIGGERS.c.run_id)
    .subquery()
)


def _is_own(steps: FromClause) -> ColumnElement[bool]:
    return steps.c.name.not_like("%/request %")


_OWN = _is_own(STEPS)
"""SQL condition for the run's own evaluations, by the last part of `EvaluationTask.step_name`; requested evaluations do not match."""
# In a terminal run, a started evaluation of the run's own counts as failed: the evaluation never ended, or repeats a failed evaluation.
_FAILED = or_(STEPS.c.state == "failed", and_(STEPS.c.state == "started", _OWN, RUNS.c.state.in_([str(s) for s in TERMINAL])))

_MADE = STEPS.alias("made")
# The run's own evaluations never repeat each other, because each has other intervals. The scores of a failed request are present if the run has
# made these scores, or if another request made these scores after the end of the run, when all intervals were known.
_MADE_AGAIN = and_(_MADE.c.finished_at > func.coalesce(STEPS.c.finished_at, STEPS.c.started_at), not_(and_(_OWN, _is_own(_MADE))))
_MADE_BEFORE = and_(not_(_OWN), or_(_is_own(_MADE), _MADE.c.started_at >= RUNS.c.finished_at))
_MISSING_EVALUATIONS = (
    select(func.count())
    .select_from(STEPS)
    .where(STEPS.c.run_id == RUNS.c.run_id, STEPS.c.step == "evaluate", _FAILED)
    .where(
        ~exists()
        .where(
            _MADE.c.run_id == STEPS.c.run_id,
            _MADE.c.trigger_id == STEPS.c.trigger_id,
            _MADE.c.step == "evaluate",
            _MADE.c.state == "finished",
            *(_MADE.c.detail[name].astext == STEPS.c.detail[name].astext for name in ("handler", "dataset")),
            or_(_MADE_AGAIN, _MADE_BEFORE),
        )
        .correlate(STEPS, RUNS)
    )
    .correlate(RUNS)
    .scalar_subquery()
)
"""The number of failed evaluations of a run whose scores are missing."""

_LONG_OF_RUN = ("yaml", "pipeline")
_LONG_OF_TRAINING = ("losses", "epoch_losses", "validation_losses")


def _run_query(*columns: Any) -> Select[Any]:
    # The newest trigger may have a later position than the stored cursor.
    position = func.greatest(func.coalesce(CURSORS.c.position, 0), func.coalesce(_TRIGGER_COUNTS.c.trigger_position, 0))
    counts = (
        _MISSING_EVALUATIONS.label("failed_evaluations"),
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
    """Read checks in order. Args: after: position and `online` of the previous check; at one position, `online.trigger` comes second."""
    order = CHECKS.c.position, CHECKS.c.online
    query = select(CHECKS).where(CHECKS.c.run_id == run_id, tuple_(*order) > after).order_by(*order)
    rows = session.execute(query.limit(limit)).mappings()
    return tuple(CheckRecord.from_mapping(dict(row)) for row in rows)


def _triggers(
    session: Session, run_id: str, after: int = -1, limit: int | None = None, *, with_losses: bool = True
) -> tuple[TriggerRecord, ...]:
    columns: dict[str, Any] = {column.name: column for column in TRIGGERS.c}
    # PostgreSQL removes the long lists, so that they are not sent.
    if not with_losses:
        for name in _LONG_OF_TRAINING:
            columns["training_result"] = columns["training_result"].op("-", return_type=JSONB())(literal(name, Text))
        columns["training_result"] = columns["training_result"].label("training_result")
    query = select(*columns.values()).where(TRIGGERS.c.run_id == run_id, TRIGGERS.c.trigger_id > after)
    rows = session.execute(query.order_by(TRIGGERS.c.trigger_id).limit(limit)).mappings().all()
    if not rows:
        return ()
    seconds: dict[int, dict[str, float]] = {}
    # A step of a trigger may have several rows, which differ in `name`. The database adds their seconds.
    worked = cast(STEPS.c.detail["seconds"].astext, Double)
    steps = (
        select(STEPS.c.trigger_id, STEPS.c.step, func.sum(worked))
        .where(STEPS.c.run_id == run_id, STEPS.c.state == "finished")
        .where(STEPS.c.trigger_id.between(rows[0]["trigger_id"], rows[-1]["trigger_id"]))
        .group_by(STEPS.c.trigger_id, STEPS.c.step)
    )
    for trigger_id, step, of_step in session.execute(steps):
        seconds.setdefault(trigger_id, {})[step] = of_step
    triggers = (from_row({**row, "seconds": seconds.get(row["trigger_id"], {})}, TriggerRecord) for row in rows)
    return tuple(replace(trigger, seconds=stage_seconds(trigger.seconds, trigger.training_result)) for trigger in triggers)
