"""What the driver of one run writes into the journal, in the order of a trigger's life."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from modyn.errors import ConflictError
from modyn.records import ModelVersion, RunId, TriggerSetInfo
from modyn.supervisor.client import EventKind, TriggerRecord
from modyn.supervisor.evaluation_plan import Cursor, EvaluationTask
from modyn.supervisor.journal import Journal, Write
from modyn.supervisor.journal_queries import CURSOR_VERSION
from modyn.supervisor.states import TRIGGER_TRANSITIONS, RunState, TriggerState
from modyn.supervisor.tables import CURSORS, STEPS, TRIGGERS


class RunJournal:
    """What the driver of one run writes, in the order of a trigger's life."""

    def __init__(self, journal: Journal, run_id: RunId, attempt: int) -> None:
        self._journal = journal
        self.run_id = run_id
        self._attempt = attempt
        self._state: RunState | None = None
        """As last written from here; a request to stop changes it behind our back, and the next write finds that out."""

    def enter(self, state: RunState) -> None:
        if state != self._state:
            with self._write() as write:
                write.become(state)

    def advance(self, cursor: Cursor, policy_state: Mapping[str, Any]) -> None:
        """A whole batch is behind the run, or the stream ended."""
        values = {
            "version": CURSOR_VERSION,
            "position": cursor.position,
            "last_timestamp": cursor.last[0] if cursor.last else None,
            "last_key": cursor.last[1] if cursor.last else None,
            "max_timestamp": cursor.max_timestamp,
            "num_pending": cursor.pending.num_samples,
            "first_pending": cursor.pending.first_timestamp,
            "last_pending": cursor.pending.last_timestamp,
            "num_triggers": cursor.num_triggers,
            "policy_state": dict(policy_state),
            "stream_ended": cursor.stream_ended,
        }
        with self._write() as write:
            statement = upsert(CURSORS).values(run_id=self.run_id, **values)
            write.session.execute(statement.on_conflict_do_update(index_elements=["run_id"], set_=values))

    def selecting(self, record: TriggerRecord, num_samples: int) -> None:
        """A decision to train, over `num_samples` samples since the last one; its trigger set is fixed next."""
        values = {
            "position": record.position,
            "first_timestamp": record.first_timestamp,
            "last_timestamp": record.last_timestamp,
            "fired_at_timestamp": record.fired_at_timestamp,
        }
        with self._write() as write:
            key = {"run_id": self.run_id, "trigger_id": record.trigger_id}
            statement = upsert(TRIGGERS).values(
                **key, **values, state=str(TriggerState.FIRED), started_at=record.started_at, training_result={}
            )
            inserted = write.session.execute(statement.on_conflict_do_nothing().returning(TRIGGERS.c.trigger_id)).scalar()
            if inserted is not None:
                write.event(EventKind.TRIGGER_FIRED, {**values, "num_samples": num_samples}, record.trigger_id)
            write.become(RunState.SELECTING)
            self._start(write, record.trigger_id, "select")

    def selected_none(self, trigger_id: int, trigger_set: TriggerSetInfo) -> None:
        """The trigger set is fixed and empty: that ends the trigger."""
        with self._write() as write:
            self._trigger_becomes(write, trigger_id, TriggerState.EMPTY, num_keys=0, keys_checksum=trigger_set.keys_checksum)
            self._finish(write, trigger_id, "select", {"num_keys": 0})
            message = f"trigger {trigger_id} selected no samples, so nothing was trained"
            write.event(EventKind.MESSAGE, {"message": message}, trigger_id)
            write.become(RunState.STREAMING)

    def training(self, trigger_id: int, trigger_set: TriggerSetInfo, parent_model_id: int | None) -> None:
        """The trigger set is fixed; training on it is next."""
        found = {"num_keys": trigger_set.num_keys, "keys_checksum": trigger_set.keys_checksum}
        with self._write() as write:
            self._trigger_becomes(write, trigger_id, TriggerState.SELECTED, parent_model_id=parent_model_id, **found)
            self._finish(write, trigger_id, "select", {"num_keys": trigger_set.num_keys})
            write.become(RunState.TRAINING)
            self._start(write, trigger_id, "train")

    def trained(self, trigger_id: int, model: ModelVersion, training_result: Mapping[str, Any]) -> None:
        """The trigger's model is stored; the stream goes on."""
        with self._write() as write:
            self._trigger_becomes(
                write,
                trigger_id,
                TriggerState.TRAINED,
                model_id=model.model_id,
                weights_sha256=model.weights_sha256,
                training_result=dict(training_result),
                finished_at=time.time(),
            )
            self._finish(write, trigger_id, "train", {"model_id": model.model_id, "loss": training_result.get("loss")})
            write.become(RunState.STREAMING)

    def evaluating(self, task: EvaluationTask) -> None:
        with self._write() as write:
            trigger_id, name = task.step
            self._start(write, trigger_id, "evaluate", name, {"handler": task.handler, "dataset": task.dataset})

    def evaluated(self, task: EvaluationTask) -> None:
        with self._write() as write:
            trigger_id, name = task.step
            self._finish(write, trigger_id, "evaluate", {"handler": task.handler, "dataset": task.dataset}, name)

    def evaluation_failed(self, task: EvaluationTask, error: str) -> None:
        trigger_id, name = task.step
        detail = {"handler": task.handler, "dataset": task.dataset, "error": error}
        with self._write() as write:
            statement = update(STEPS).where(*_step(self.run_id, trigger_id, "evaluate", name))
            write.session.execute(statement.values(state="failed", finished_at=time.time(), detail=detail))
            write.event(EventKind.STEP, {"step": "evaluate", "state": "failed", **detail}, trigger_id)

    def message(self, message: str, trigger_id: int | None = None) -> None:
        with self._write() as write:
            write.event(EventKind.MESSAGE, {"message": message}, trigger_id)

    def end(self, to: RunState, *, error: str = "", error_reason: str = "", message: str = "") -> None:
        """The run comes to rest."""
        with self._write() as write:
            if to is RunState.STOPPED and write.state not in (RunState.SUBMITTED, RunState.STOPPING, RunState.STOPPED):
                write.become(RunState.STOPPING)
            write.become(to, error=error, error_reason=error_reason, message=message)
            if to is RunState.FINISHED:
                write.changes["manual_handlers"] = None

    @contextmanager
    def _write(self) -> Iterator[Write]:
        with self._journal.write(self.run_id, self._attempt) as write:
            yield write
        self._state = write.state

    def _start(self, write: Write, trigger_id: int, step: str, name: str = "", detail: Mapping[str, Any] | None = None) -> None:
        # `started_at` of a repeated step is that of the repetition: the time in between nobody worked on it.
        values = {"state": "started", "started_at": time.time(), "finished_at": None, "detail": dict(detail or {})}
        statement = upsert(STEPS).values(run_id=self.run_id, trigger_id=trigger_id, step=step, name=name, **values)
        key = ["run_id", "trigger_id", "step", "name"]
        changed = write.session.execute(
            statement.on_conflict_do_update(index_elements=key, set_=values, where=STEPS.c.state != "finished").returning(
                STEPS.c.step
            )
        ).scalar()
        if changed is not None:
            write.event(EventKind.STEP, {"step": step, "state": "started", **(detail or {})}, trigger_id)

    def _finish(self, write: Write, trigger_id: int, step: str, detail: Mapping[str, Any], name: str = "") -> None:
        where = _step(self.run_id, trigger_id, step, name)
        now = time.time()
        statement = update(STEPS).where(*where, STEPS.c.state != "finished")
        values = {"state": "finished", "finished_at": now, "detail": dict(detail)}
        started_at = write.session.execute(statement.values(**values).returning(STEPS.c.started_at)).scalar()
        if started_at is not None:
            found = {"step": step, "state": "finished", "seconds": now - started_at, **detail}
            write.event(EventKind.STEP, found, trigger_id)

    def _trigger_becomes(self, write: Write, trigger_id: int, to: TriggerState, **values: Any) -> None:
        query = select(TRIGGERS.c.state).where(TRIGGERS.c.run_id == self.run_id, TRIGGERS.c.trigger_id == trigger_id)
        state = TriggerState(write.session.execute(query).scalar_one())
        if state == to:
            return
        if to not in TRIGGER_TRANSITIONS[state]:
            raise ConflictError(f"trigger {trigger_id} of run {self.run_id} is {state} and cannot become {to}")
        self._update_trigger(write, trigger_id, state=str(to), **values)

    def _update_trigger(self, write: Write, trigger_id: int, **values: Any) -> None:
        write.session.execute(
            update(TRIGGERS).where(TRIGGERS.c.run_id == self.run_id, TRIGGERS.c.trigger_id == trigger_id).values(**values)
        )


def _step(run_id: str, trigger_id: int, step: str, name: str) -> tuple[Any, ...]:
    return STEPS.c.run_id == run_id, STEPS.c.trigger_id == trigger_id, STEPS.c.step == step, STEPS.c.name == name
