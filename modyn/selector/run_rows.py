"""The rows of runs and of their trigger sets in PostgreSQL, and their look-up."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import JSON, ColumnElement, TableClause, column, select, table, update
from sqlalchemy.orm import Session

from modyn.errors import NotFoundError
from modyn.records import ClassCount, RunId, SelectionSummary, TriggerSetInfo
from modyn.selector.selection import build_selection
from modyn.selector.window.state_files import References

SCHEMA = "selector"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One row of `runs`.

    data: that section of the pipeline, if the run was registered with it. num_rows: samples copied into the run's own table, if its
    strategy asks for one. online: that section of the pipeline, if it has one. deleting: set before files are removed,
    so that a deletion that a crash cut off is finished at the next start.
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
    def in_database(self) -> bool:
        """Whether its samples are also kept as rows."""
        return bool(self.selection_strategy.get("storage_backend") == "database")


@dataclass(frozen=True, slots=True)
class TriggerSetRecord:
    """One row of `triggers`, without the number of its run."""

    trigger_id: int
    num_samples: int
    num_keys: int
    partition_size: int
    keys_checksum: str
    policy_state: dict[str, Any]
    num_deleted: int
    """Deleted samples of the dataset when it was selected: the version of the deletions that it heeds."""
    state_files: References
    """Name and checksum of each file that belongs to the state of the policy, by the policy's name for it."""
    online: bool = False
    """Whether it is the steps of proactive training: state and files of the selection strategy are those of the trigger before."""

    @property
    def state_file_names(self) -> set[str]:
        """Names of the files that the next trigger needs."""
        return {file["file"] for file in self.state_files.values()}

    def info(self, run: RunRecord) -> TriggerSetInfo:
        """What other services see of this trigger set, as one of `run`."""
        feedback = () if self.online else build_selection(run.selection_strategy).feedback
        return TriggerSetInfo(
            run.run_id, self.trigger_id, self.num_keys, self.partition_size, self.keys_checksum, run.dataset_identity, feedback
        )


def _table(name: str, columns: Iterable[str], json: Collection[str]) -> TableClause:
    """A table for queries; the migrations create it. Args: json: which of the columns hold JSON."""
    return table(name, *(column(c, JSON if c in json else None) for c in columns), schema=SCHEMA)


RUNS = _table("runs", [field.name for field in fields(RunRecord)], ("selection_strategy", "data", "online"))
_TRIGGER_COLUMNS = tuple(field.name for field in fields(TriggerSetRecord))
TRIGGERS = _table("triggers", ("run_number", "summary", *_TRIGGER_COLUMNS), ("policy_state", "state_files", "summary"))


def find_run(session: Session, run_id: RunId, *, lock: bool = False) -> RunRecord | None:
    """Return the run, if it is known. Args: lock: exclude changes by others until the transaction ends."""
    query = select(RUNS).where(RUNS.c.run_id == run_id)
    row = session.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else RunRecord(**row._mapping)


def get_run(session: Session, run_id: RunId, *, lock: bool = False) -> RunRecord:
    """Return the run.

    Args: lock: as for `find_run`.
    Raises: NotFoundError: it is unknown or being deleted.
    """
    run = find_run(session, run_id, lock=lock)
    if run is None or run.deleting:
        raise NotFoundError(f"the selector knows no run '{run_id}'; register it first")
    return run


def update_run(session: Session, run: RunRecord, **columns: object) -> None:
    """Change columns of the run's row."""
    session.execute(update(RUNS).where(RUNS.c.number == run.number).values(columns))


def find_trigger(session: Session, run: RunRecord, trigger_id: int) -> TriggerSetRecord | None:
    """Return the run's trigger set of `trigger_id`, or None if there is none."""
    return _find_trigger(session, TRIGGERS.c.run_number == run.number, TRIGGERS.c.trigger_id == trigger_id)


def find_newest_trigger(session: Session, run: RunRecord) -> TriggerSetRecord | None:
    """Return the run's newest trigger set, or None if it has none. Their numbers have no gaps."""
    return _find_trigger(session, TRIGGERS.c.run_number == run.number)


def find_retrainings(session: Session, run: RunRecord, trigger_id: int) -> tuple[list[int], list[int]]:
    """Return the triggers of the run before `trigger_id` that are not online, in their order, and how many samples each covers."""
    earlier = TRIGGERS.c.run_number == run.number, TRIGGERS.c.trigger_id < trigger_id, ~TRIGGERS.c.online
    query = select(TRIGGERS.c.trigger_id, TRIGGERS.c.num_samples).where(*earlier).order_by(TRIGGERS.c.trigger_id)
    rows = session.execute(query).all()
    return [int(row.trigger_id) for row in rows], [int(row.num_samples) for row in rows]


def tail_end(session: Session, run: RunRecord, tail_triggers: int) -> int:
    """Return how many samples the trigger covers that is `tail_triggers` before the newest, online ones left out; 0: there is none."""
    query = select(TRIGGERS.c.num_samples).where(TRIGGERS.c.run_number == run.number, ~TRIGGERS.c.online)
    return session.scalar(query.order_by(TRIGGERS.c.trigger_id.desc()).offset(tail_triggers).limit(1)) or 0


def find_summary(session: Session, run: RunRecord, trigger_id: int) -> SelectionSummary | None:
    """Return the summary that is kept of a trigger; None: it was not counted yet."""
    query = select(TRIGGERS.c.summary).where(TRIGGERS.c.run_number == run.number, TRIGGERS.c.trigger_id == trigger_id)
    kept = session.scalar(query)
    if kept is None:
        return None
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    values["classes"] = tuple(ClassCount(**entry) for entry in kept["classes"])
    return SelectionSummary(**values)


def keep_summary(session: Session, run: RunRecord, summary: SelectionSummary) -> None:
    """Keep the summary of a trigger; a no-op if the trigger was deleted meanwhile."""
    which = TRIGGERS.c.run_number == run.number, TRIGGERS.c.trigger_id == summary.trigger_id
    session.execute(update(TRIGGERS).where(*which).values(summary=asdict(summary)))


def _find_trigger(session: Session, *where: ColumnElement[bool]) -> TriggerSetRecord | None:
    columns = [TRIGGERS.c[name] for name in _TRIGGER_COLUMNS]
    row = session.execute(select(*columns).where(*where).order_by(TRIGGERS.c.trigger_id.desc()).limit(1)).one_or_none()
    return None if row is None else TriggerSetRecord(**row._mapping)
