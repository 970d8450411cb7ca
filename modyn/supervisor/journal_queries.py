"""The journal's rows as records."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import RowMapping, func, select
from sqlalchemy.orm import Session

from modyn.errors import CorruptStateError
from modyn.records import RunId
from modyn.supervisor.client import Run, RunMode, TriggerRecord
from modyn.supervisor.evaluation_plan import Cursor, Pending
from modyn.supervisor.states import RunState, TriggerState
from modyn.supervisor.tables import CURSORS, RUNS, STEPS, TRIGGERS

CURSOR_VERSION = 1

_TRIGGER_COUNTS = (
    select(
        TRIGGERS.c.run_id,
        func.count().label("num_triggers"),
        func.coalesce(func.sum(TRIGGERS.c.num_keys).filter(TRIGGERS.c.state == str(TriggerState.TRAINED)), 0).label(
            "samples_trained"
        ),
        func.max(TRIGGERS.c.position).label("trigger_position"),
    )
    .group_by(TRIGGERS.c.run_id)
    .subquery()
)
RUN_QUERY = (
    select(
        RUNS,
        func.greatest(func.coalesce(CURSORS.c.position, 0), func.coalesce(_TRIGGER_COUNTS.c.trigger_position, 0)).label(
            "num_samples"
        ),
        func.coalesce(_TRIGGER_COUNTS.c.num_triggers, 0).label("num_triggers"),
        func.coalesce(_TRIGGER_COUNTS.c.samples_trained, 0).label("samples_trained"),
    )
    .outerjoin(CURSORS, CURSORS.c.run_id == RUNS.c.run_id)
    .outerjoin(_TRIGGER_COUNTS, _TRIGGER_COUNTS.c.run_id == RUNS.c.run_id)
)


def run_from_row(row: RowMapping) -> Run:
    return Run(
        run_id=RunId(row["run_id"]),
        pipeline_name=row["pipeline_name"],
        mode=RunMode(row["mode"]),
        state=RunState(row["state"]),
        submitted_at=row["submitted_at"],
        finished_at=row["finished_at"],
        error=row["error"],
        error_reason=row["error_reason"],
        message=row["message"],
        num_samples=int(row["num_samples"]),
        total_samples=row["total_samples"],
        num_triggers=int(row["num_triggers"]),
        samples_trained=int(row["samples_trained"]),
        from_timestamp=row["from_timestamp"],
        to_timestamp=row["to_timestamp"],
        max_triggers=row["max_triggers"],
        yaml=row["yaml"],
        pipeline=dict(row["pipeline"]),
    )


def cursor_from_row(run_id: str, row: RowMapping) -> Cursor:
    if row["version"] != CURSOR_VERSION:
        raise CorruptStateError(
            f"the journal of run {run_id} has version {row['version']}, this release reads {CURSOR_VERSION}; "
            "resume the run with the release that started it"
        )
    return Cursor(
        position=row["position"],
        last=None if row["last_key"] is None else (row["last_timestamp"], row["last_key"]),
        max_timestamp=row["max_timestamp"],
        pending=Pending(row["num_pending"], row["first_pending"], row["last_pending"]),
        num_triggers=row["num_triggers"],
        stream_ended=row["stream_ended"],
    )


def triggers_of(session: Session, run_id: str) -> tuple[TriggerRecord, ...]:
    seconds: dict[int, dict[str, float]] = {}
    steps = select(STEPS).where(STEPS.c.run_id == run_id, STEPS.c.state == "finished")
    for step in session.execute(steps).mappings():
        of_trigger = seconds.setdefault(step["trigger_id"], {})
        of_trigger[step["step"]] = of_trigger.get(step["step"], 0.0) + step["finished_at"] - step["started_at"]
    rows = session.execute(select(TRIGGERS).where(TRIGGERS.c.run_id == run_id).order_by(TRIGGERS.c.trigger_id)).mappings()
    return tuple(_trigger(row, seconds.get(row["trigger_id"], {})) for row in rows)


def _trigger(row: RowMapping, seconds: dict[str, float]) -> TriggerRecord:
    result = dict(row["training_result"])
    stages = result.get("seconds")
    store = stages.get("store") if isinstance(stages, Mapping) else None
    if isinstance(store, int | float):
        seconds = {**seconds, "store": float(store)}
    if "train" in seconds:
        # Not from start to end: nobody worked on it while the run was interrupted. Storing is part of training.
        seconds = {**seconds, "total": seconds.get("select", 0.0) + seconds["train"]}
    return TriggerRecord(
        trigger_id=row["trigger_id"],
        position=row["position"],
        first_timestamp=row["first_timestamp"],
        last_timestamp=row["last_timestamp"],
        fired_at_timestamp=row["fired_at_timestamp"],
        state=TriggerState(row["state"]),
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        num_keys=row["num_keys"],
        keys_checksum=row["keys_checksum"],
        model_id=row["model_id"],
        parent_model_id=row["parent_model_id"],
        weights_sha256=row["weights_sha256"],
        training_result=result,
        seconds=seconds,
    )
