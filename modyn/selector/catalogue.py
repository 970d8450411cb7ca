"""Queries on the tables of runs and trigger sets. Every function works inside the caller's transaction."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from modyn.errors import NotFoundError
from modyn.records import RunId, TriggerSetInfo
from modyn.selector.tables import RUNS, TRIGGERS


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One row of `runs`."""

    number: int
    run_id: RunId
    dataset: str
    selection_strategy: dict[str, Any]
    seed: int
    data: dict[str, Any] | None
    num_rows: int
    deleting: bool

    @property
    def in_database(self) -> bool:
        """Whether its samples are also kept as rows."""
        return bool(self.selection_strategy.get("storage_backend") == "database")


@dataclass(frozen=True, slots=True)
class TriggerSetRecord:
    """One row of `triggers`."""

    trigger_id: int
    num_samples: int
    num_keys: int
    partition_size: int
    keys_checksum: str
    policy_state: dict[str, Any]

    def info(self, run_id: RunId) -> TriggerSetInfo:
        """What other services see of this trigger set, as one of run `run_id`."""
        return TriggerSetInfo(run_id, self.trigger_id, self.num_keys, self.partition_size, self.keys_checksum)


def add_run(
    session: Session,
    run_id: RunId,
    dataset: str,
    selection_strategy: dict[str, Any],
    seed: int,
    data: dict[str, Any] | None,
) -> bool:
    """Add the run unless it is known; return whether it was added. Of two concurrent calls for one run, one waits for the other."""
    row = {"run_id": run_id, "dataset": dataset, "selection_strategy": selection_strategy, "seed": seed, "data": data}
    added = session.execute(upsert(RUNS).values(row).on_conflict_do_nothing().returning(RUNS.c.number)).all()
    return bool(added)


def find_run(session: Session, run_id: RunId, *, lock: bool = False) -> RunRecord | None:
    """Return the run, if it is known. lock: exclude changes by others until the transaction ends."""
    query = select(RUNS).where(RUNS.c.run_id == run_id)
    row = session.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else RunRecord(**row._mapping)


def get_run(session: Session, run_id: RunId, *, lock: bool = False) -> RunRecord:
    """Return the run. Raises NotFoundError if it is unknown or being deleted."""
    run = find_run(session, run_id, lock=lock)
    if run is None or run.deleting:
        raise NotFoundError(f"the selector knows no run '{run_id}'; register it first")
    return run


def allow_idle(session: Session) -> None:
    """Lift PostgreSQL's limit on idle transactions for this one, which waits for work outside the database."""
    session.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))


def run_ids(session: Session) -> list[RunId]:
    """Return the ids of all runs, those being deleted included, in the order of registration."""
    return [RunId(run_id) for run_id in session.scalars(select(RUNS.c.run_id).order_by(RUNS.c.number))]


def set_rows(session: Session, run: RunRecord, num_rows: int) -> None:
    """Record how many rows the run's table holds once the transaction is committed."""
    session.execute(update(RUNS).where(RUNS.c.number == run.number).values(num_rows=num_rows))


def mark_deleting(session: Session, run: RunRecord) -> None:
    """Mark the run as being deleted: `get_run` no longer finds it, `find_run` does."""
    session.execute(update(RUNS).where(RUNS.c.number == run.number).values(deleting=True))


def remove_run(session: Session, run: RunRecord) -> None:
    """Remove the run's row and those of its trigger sets."""
    session.execute(delete(RUNS).where(RUNS.c.number == run.number))


def add_trigger(session: Session, run: RunRecord, trigger: TriggerSetRecord) -> None:
    """Record a trigger set of the run."""
    row = {"run_number": run.number, **asdict(trigger)}
    session.execute(insert(TRIGGERS).values(row))


def find_trigger(session: Session, run: RunRecord, trigger_id: int) -> TriggerSetRecord | None:
    """Return the run's trigger set of `trigger_id`, or None if there is none."""
    columns = [column for column in TRIGGERS.c if column is not TRIGGERS.c.run_number]
    query = select(*columns).where(TRIGGERS.c.run_number == run.number, TRIGGERS.c.trigger_id == trigger_id)
    row = session.execute(query).one_or_none()
    return None if row is None else TriggerSetRecord(**row._mapping)


def boundaries(session: Session, run: RunRecord) -> list[int]:
    """Return how many samples triggers 0, 1, 2, … of the run cover."""
    query = select(TRIGGERS.c.num_samples).where(TRIGGERS.c.run_number == run.number).order_by(TRIGGERS.c.trigger_id)
    return list(session.scalars(query))
