"""Rows of runs and of their trigger sets in PostgreSQL, and queries for these rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import JSON, ColumnElement, TableClause, column, select, table, update
from sqlalchemy.orm import Session

from modyn.errors import NotFoundError
from modyn.json_codec import adapter
from modyn.records import RunId, RunRegistration, SelectionSummary, TriggerSetInfo
from modyn.selector.selection import build_selection
from modyn.selector.window.state_files import References

SCHEMA = "selector"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One row of `runs`.

    data: section `data` of the pipeline, or None if the run was registered without this section. num_rows: number of samples copied into the run's
    own table, if its strategy needs a table. online: section `online` of the pipeline, or None. deleting: whether the deletion of the run has begun.
    `deleting` is set before files are removed. If a crash interrupts the deletion, the next start of the selector finishes the deletion.
    """

    number: int
    run_id: RunId
    dataset: str
    selection_strategy: dict[str, Any]
    seed: int
    data: dict[str, Any] | None
    num_rows: int
    deleting: bool
    dataset_identity: str
    online: dict[str, Any] | None

    @property
    def registration(self) -> RunRegistration:
        """The arguments with which the run was registered."""
        return RunRegistration(
            self.run_id, self.dataset, self.selection_strategy, self.seed, self.data, self.dataset_identity, self.online
        )

    @property
    def in_database(self) -> bool:
        """Whether the run's samples are also stored as rows."""
        return bool(self.selection_strategy.get("storage_backend") == "database")


@dataclass(frozen=True, slots=True)
class TriggerSetRecord:
    """One row of `triggers`, without the number of the run."""

    trigger_id: int
    num_samples: int
    num_keys: int
    partition_size: int
    keys_checksum: str
    policy_state: dict[str, Any]
    num_deleted: int
    """Number of deleted samples of the dataset when the set was selected. The number identifies the deletions that the set leaves out."""
    state_files: References
    """Maps the policy's name of each state file to the file's name on disk and the SHA-256 of its header."""
    online: bool = False
    """Whether the set consists of steps of proactive training. Such a set has the `policy_state` and `state_files` of the previous set."""

    @property
    def state_file_names(self) -> set[str]:
        """Names of the files that the next trigger needs."""
        return {file["file"] for file in self.state_files.values()}

    def info(self, run: RunRecord) -> TriggerSetInfo:
        """Convert the row to the record for other services. Args: run: run of the set."""
        feedback = () if self.online else build_selection(run.selection_strategy).feedback
        return TriggerSetInfo(
            run.run_id, self.trigger_id, self.num_keys, self.partition_size, self.keys_checksum, run.dataset_identity, feedback
        )


def _table(name: str, columns: Iterable[str], json: Collection[str]) -> TableClause:
    """Describe a table for queries; the migrations create it. Args: json: columns that hold JSON."""
    return table(name, *(column(c, JSON if c in json else None) for c in columns), schema=SCHEMA)


RUNS = _table("runs", [field.name for field in fields(RunRecord)], ("selection_strategy", "data", "online"))
_TRIGGER_COLUMNS = tuple(field.name for field in fields(TriggerSetRecord))
TRIGGERS = _table("triggers", ("run_number", "summary", *_TRIGGER_COLUMNS), ("policy_state", "state_files", "summary"))


def find_run(session: Session, run_id: RunId, *, lock: bool = False) -> RunRecord | None:
    """Return the run; None if the run is unknown. Args: lock: exclude changes by other transactions until this transaction ends."""
    query = select(RUNS).where(RUNS.c.run_id == run_id)
    row = session.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else RunRecord(**row._mapping)


def get_run(session: Session, run_id: RunId, *, lock: bool = False) -> RunRecord:
    """Return the run.

    Args: lock: see `find_run`.
    Raises: NotFoundError: the run is unknown or being deleted.
    """
    run = find_run(session, run_id, lock=lock)
    if run is None or run.deleting:
        raise NotFoundError(f"the selector knows no run '{run_id}'; register it first")
    return run


def update_run(session: Session, run: RunRecord, **columns: object) -> None:
    """Change columns of the run's row."""
    session.execute(update(RUNS).where(RUNS.c.number == run.number).values(columns))


def find_trigger(session: Session, run: RunRecord, trigger_id: int) -> TriggerSetRecord | None:
    """Return the run's trigger set `trigger_id`, or None."""
    return _find_trigger(session, TRIGGERS.c.run_number == run.number, TRIGGERS.c.trigger_id == trigger_id)


def find_newest_trigger(session: Session, run: RunRecord) -> TriggerSetRecord | None:
    """Return the run's newest trigger set, or None. The numbers of trigger sets have no gaps."""
    return _find_trigger(session, TRIGGERS.c.run_number == run.number)


def find_retrainings(session: Session, run: RunRecord, trigger_id: int) -> tuple[list[int], list[int]]:
    """Return the run's triggers before `trigger_id`, in order and without online triggers, and the number of samples that each trigger covers."""
    earlier = TRIGGERS.c.run_number == run.number, TRIGGERS.c.trigger_id < trigger_id, ~TRIGGERS.c.online
    query = select(TRIGGERS.c.trigger_id, TRIGGERS.c.num_samples).where(*earlier).order_by(TRIGGERS.c.trigger_id)
    rows = session.execute(query).all()
    return [int(row.trigger_id) for row in rows], [int(row.num_samples) for row in rows]


def tail_end(session: Session, run: RunRecord, tail_triggers: int) -> int:
    """Return the number of samples that an earlier trigger covers: the trigger `tail_triggers` steps before the newest. Return 0 without such a
    trigger. Online triggers do not count.
    """
    query = select(TRIGGERS.c.num_samples).where(TRIGGERS.c.run_number == run.number, ~TRIGGERS.c.online)
    return session.scalar(query.order_by(TRIGGERS.c.trigger_id.desc()).offset(tail_triggers).limit(1)) or 0


def find_summary(session: Session, run: RunRecord, trigger_id: int) -> SelectionSummary | None:
    """Return the stored summary of a trigger, or None if no summary was computed yet."""
    query = select(TRIGGERS.c.summary).where(TRIGGERS.c.run_number == run.number, TRIGGERS.c.trigger_id == trigger_id)
    kept = session.scalar(query)
    summary: SelectionSummary | None = None if kept is None else adapter(SelectionSummary).validate_python(kept)
    return summary


def keep_summary(session: Session, run: RunRecord, summary: SelectionSummary) -> None:
    """Store the summary of a trigger; a deleted trigger gets no summary."""
    which = TRIGGERS.c.run_number == run.number, TRIGGERS.c.trigger_id == summary.trigger_id
    session.execute(update(TRIGGERS).where(*which).values(summary=asdict(summary)))


def _find_trigger(session: Session, *where: ColumnElement[bool]) -> TriggerSetRecord | None:
    columns = [TRIGGERS.c[name] for name in _TRIGGER_COLUMNS]
    row = session.execute(select(*columns).where(*where).order_by(TRIGGERS.c.trigger_id.desc()).limit(1)).one_or_none()
    return None if row is None else TriggerSetRecord(**row._mapping)
