"""What the executor of one run writes into the journal, in the order of a trigger's life."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from modyn.errors import ConflictError
from modyn.records import RunId
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.evaluation_plan import EvaluationTask
from modyn.supervisor.journal import Journal, Write, to_row
from modyn.supervisor.journal_queries import CURSOR_VERSION
from modyn.supervisor.records import EventKind, TriggerRecord
from modyn.supervisor.states import TRIGGER_TRANSITIONS, RunState, TriggerState
from modyn.supervisor.tables import CURSORS, STEPS, TRIGGERS


class RunJournal:
    """Writes of one attempt to execute a run. A write that is repeated changes nothing; all refuse once another attempt has begun."""

    def __init__(self, journal: Journal, run_id: RunId, attempt: int | None) -> None:
        """Args: attempt: None for a run that could not be claimed; only its `end` may be written then."""
        self._journal = journal
        self.run_id = run_id
        self._attempt = attempt
        self._state: RunState | None = None
        """As last written from here. A request to stop changes the row from outside, which the next write that is not skipped finds."""

    def enter(self, state: RunState) -> None:
        """Record that the run is in `state`; nothing is written if this attempt wrote that state last."""
        if state != self._state:
            with self._write() as write:
                write.become(state)

    def advance(self, cursor: Cursor, policy_state: Mapping[str, Any]) -> None:
        """A whole batch has been processed, or the stream ended."""
        values = {**to_row(cursor, CURSORS), "version": CURSOR_VERSION, "policy_state": dict(policy_state)}
        with self._write() as write:
            statement = upsert(CURSORS).values(run_id=self.run_id, **values)
            write.session.execute(statement.on_conflict_do_update(index_elements=["run_id"], set_=values))

    def selecting(self, trigger: TriggerRecord, num_samples: int) -> None:
        """The policy fired, `num_samples` samples after the last time; the trigger set is fixed next."""
        with self._write() as write:
            values = to_row(trigger, TRIGGERS)
            statement = upsert(TRIGGERS).values(run_id=self.run_id, **values).on_conflict_do_nothing()
            if write.session.execute(statement.returning(TRIGGERS.c.trigger_id)).scalar() is not None:
                names = ("position", "first_timestamp", "last_timestamp", "fired_at_timestamp")
                detail = {name: values[name] for name in names} | {"num_samples": num_samples}
                write.event(EventKind.TRIGGER_FIRED, detail, trigger.trigger_id)
            write.become(RunState.SELECTING)
            self._start(write, trigger.trigger_id, "select")

    def selected_none(self, trigger: TriggerRecord) -> None:
        """The trigger set is fixed and empty: that ends the trigger."""
        with self._write() as write:
            self._update_trigger(write, trigger)
            self._finish(write, trigger.trigger_id, "select", {"num_keys": 0})
            message = f"trigger {trigger.trigger_id} selected no samples, so nothing was trained"
            write.event(EventKind.MESSAGE, {"message": message}, trigger.trigger_id)
            write.become(RunState.STREAMING)

    def training(self, trigger: TriggerRecord) -> None:
        """The trigger set is fixed; training on it is next."""
        with self._write() as write:
            self._update_trigger(write, trigger)
            self._finish(write, trigger.trigger_id, "select", {"num_keys": trigger.num_keys})
            write.become(RunState.TRAINING)
            self._start(write, trigger.trigger_id, "train")

    def trained(self, trigger: TriggerRecord) -> None:
        """The trigger's model is stored; the stream goes on."""
        with self._write() as write:
            self._update_trigger(write, trigger)
            found = {"model_id": trigger.model_id, "loss": trigger.training_result.get("loss")}
            self._finish(write, trigger.trigger_id, "train", found)
            write.become(RunState.STREAMING)

    def evaluating(self, task: EvaluationTask) -> None:
        """Record that one evaluation of a trigger's model starts."""
        with self._write() as write:
            trigger_id, name = task.step
            self._start(write, trigger_id, "evaluate", name, {"handler": task.handler, "dataset": task.dataset})

    def evaluated(self, task: EvaluationTask) -> None:
        """Record that one evaluation has its result."""
        with self._write() as write:
            trigger_id, name = task.step
            self._finish(write, trigger_id, "evaluate", {"handler": task.handler, "dataset": task.dataset}, name)

    def evaluation_failed(self, task: EvaluationTask, error: str) -> None:
        """Record that one evaluation failed, and why. The run goes on."""
        trigger_id, name = task.step
        detail = {"handler": task.handler, "dataset": task.dataset, "error": error}
        with self._write() as write:
            statement = update(STEPS).where(*self._is_step(trigger_id, "evaluate", name))
            write.session.execute(statement.values(state="failed", finished_at=time.time(), detail=detail))
            write.event(EventKind.STEP, {"step": "evaluate", "state": "failed", **detail}, trigger_id)

    def message(self, message: str, trigger_id: int | None = None) -> None:
        """Record a message for the run's watchers."""
        with self._write() as write:
            write.event(EventKind.MESSAGE, {"message": message}, trigger_id)

    def end(self, to: RunState, *, error: str = "", error_reason: str = "", message: str = "") -> None:
        """The run becomes terminal."""
        with self._write() as write:
            if self._attempt is None and write.state is not RunState.SUBMITTED:
                return  # Another supervisor, or a request to stop, has moved the run on.
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
        # A repeated step starts anew: the time before it, in which the run was interrupted, is not counted.
        values = {"state": "started", "started_at": time.time(), "finished_at": None, "detail": dict(detail or {})}
        statement = upsert(STEPS).values(run_id=self.run_id, trigger_id=trigger_id, step=step, name=name, **values)
        update_unfinished = statement.on_conflict_do_update(
            index_elements=["run_id", "trigger_id", "step", "name"], set_=values, where=STEPS.c.state != "finished"
        )
        if write.session.execute(update_unfinished.returning(STEPS.c.step)).scalar() is not None:
            write.event(EventKind.STEP, {"step": step, "state": "started", **(detail or {})}, trigger_id)

    def _finish(self, write: Write, trigger_id: int, step: str, detail: Mapping[str, Any], name: str = "") -> None:
        now = time.time()
        statement = update(STEPS).where(*self._is_step(trigger_id, step, name), STEPS.c.state != "finished")
        values = {"state": "finished", "finished_at": now, "detail": dict(detail)}
        started_at = write.session.execute(statement.values(**values).returning(STEPS.c.started_at)).scalar()
        if started_at is not None:
            found = {"step": step, "state": "finished", "seconds": now - started_at, **detail}
            write.event(EventKind.STEP, found, trigger_id)

    def _update_trigger(self, write: Write, trigger: TriggerRecord) -> None:
        is_trigger = (TRIGGERS.c.run_id == self.run_id, TRIGGERS.c.trigger_id == trigger.trigger_id)
        state = TriggerState(write.session.execute(select(TRIGGERS.c.state).where(*is_trigger)).scalar_one())
        if state == trigger.state:
            return
        if trigger.state not in TRIGGER_TRANSITIONS[state]:
            raise ConflictError(f"trigger {trigger.trigger_id} of run {self.run_id} is {state} and cannot become {trigger.state}")
        write.session.execute(update(TRIGGERS).where(*is_trigger).values(**to_row(trigger, TRIGGERS)))

    def _is_step(self, trigger_id: int, step: str, name: str) -> tuple[Any, ...]:
        return STEPS.c.run_id == self.run_id, STEPS.c.trigger_id == trigger_id, STEPS.c.step == step, STEPS.c.name == name
