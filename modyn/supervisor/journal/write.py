"""One transaction on a run in the journal: changes, and the events that report these changes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from modyn.errors import ConflictError
from modyn.json_codec import sanitize
from modyn.supervisor.journal.records import EventKind, RunEvent, TriggerRecord, to_row
from modyn.supervisor.journal.states import TERMINAL, TRIGGER_TRANSITIONS, RunState, TriggerState, check_transition
from modyn.supervisor.journal.tables import EVENTS, STEPS, TRIGGERS

IDLE_STATES: Final = (str(RunState.STREAMING), str(RunState.WAITING_FOR_DATA))
"""An idle run often alternates between these two states. The journal keeps one event for all of these changes."""


@dataclass
class Write:
    """Changes of a run's row, triggers and steps within one transaction, and the events that report these changes."""

    session: Session
    run_id: str
    state: RunState
    last_seq: int
    changes: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    replaces_last: bool = False
    """Whether the last event replaces the event before it, because both events report a change between streaming and waiting for data."""

    def become(self, to: RunState, **detail: str) -> None:
        """Change the run's state and record the event; nothing happens if the run is already in the state `to`. Raises: ConflictError."""
        if to == self.state:
            return
        check_transition(self.run_id, self.state, to)
        self.replaces_last = {self.state, to} == {RunState.STREAMING, RunState.WAITING_FOR_DATA}
        self.state = to
        detail = {name: sanitize(value) for name, value in detail.items()}
        self.changes |= {"state": str(to), "finished_at": time.time() if to in TERMINAL else None, **detail}
        self.event(EventKind.RUN_STATE, {"state": str(to), **{name: value for name, value in detail.items() if value}})

    def event(self, kind: EventKind, detail: Mapping[str, Any], trigger_id: int | None = None) -> None:
        """Add an event with the next sequence number. The event is written when the transaction commits.

        Args: detail: see the docstring of `kind`. trigger_id: the trigger that the event is about; None if the event is about the whole run.
        """
        # Text is sanitised even if JSON accepts the text, because watchers receive the text through protobuf.
        cleaned = {name: sanitize(value) if isinstance(value, str) else value for name, value in detail.items()}
        # The lock on the run's row excludes other writers, so that the numbers of events have no gaps.
        event = RunEvent(self.last_seq + len(self.events) + 1, time.time(), kind, trigger_id, cleaned)
        self.events.append({"run_id": self.run_id, **to_row(event, EVENTS)})

    def prune(self, kept: int) -> None:
        """Remove all events except the newest `kept` events."""
        self.session.execute(delete(EVENTS).where(EVENTS.c.run_id == self.run_id, EVENTS.c.seq <= self.last_seq - kept))

    def update_trigger(self, trigger: TriggerRecord) -> None:
        """Write the record of a trigger to its row, unless the row already has the record's state. Raises: ConflictError: the trigger's state does
        not allow the change.
        """
        is_trigger = (TRIGGERS.c.run_id == self.run_id, TRIGGERS.c.trigger_id == trigger.trigger_id)
        state = TriggerState(self.session.execute(select(TRIGGERS.c.state).where(*is_trigger)).scalar_one())
        if state == trigger.state:
            return
        if trigger.state not in TRIGGER_TRANSITIONS[state]:
            raise ConflictError(f"trigger {trigger.trigger_id} of run {self.run_id} is {state} and cannot become {trigger.state}")
        self.session.execute(update(TRIGGERS).where(*is_trigger).values(**to_row(trigger, TRIGGERS)))

    def start_step(self, trigger_id: int, step: str, name: str = "", **detail: Any) -> None:
        """Record that a step starts, unless the step is finished. Args: name: distinguishes the evaluations of a trigger."""
        values = {"state": "started", "started_at": time.time(), "finished_at": None, "detail": detail}
        statement = upsert(STEPS).values(run_id=self.run_id, trigger_id=trigger_id, step=step, name=name, **values)
        update_unfinished = statement.on_conflict_do_update(
            index_elements=["run_id", "trigger_id", "step", "name"], set_=values, where=STEPS.c.state != "finished"
        )
        # If the step is finished, no row is returned, and the step's event exists already.
        if self.session.execute(update_unfinished.returning(STEPS.c.step)).scalar() is not None:
            self.event(EventKind.STEP, {"step": step, "state": "started", **detail}, trigger_id)

    def end_step(
        self, trigger_id: int, step: str, seconds: float, name: str = "", state: str = "finished", **detail: Any
    ) -> bool:
        """Record that a step is finished or failed, unless the step was finished before. Return whether the record was written.

        Args: seconds: seconds of work, by a monotonic clock. name: see `start_step`. state: finished or failed. detail: results of the step.
        """
        is_step = (STEPS.c.run_id == self.run_id, STEPS.c.trigger_id == trigger_id, STEPS.c.step == step, STEPS.c.name == name)
        detail = {**detail, "seconds": seconds}
        statement = update(STEPS).where(*is_step, STEPS.c.state != "finished").returning(STEPS.c.step)
        if self.session.execute(statement.values(state=state, finished_at=time.time(), detail=detail)).scalar() is None:
            return False
        self.event(EventKind.STEP, {"step": step, "state": state, **detail}, trigger_id)
        return True
