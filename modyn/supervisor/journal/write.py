"""One transaction on a run in the journal: changes, and the events that report these changes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from modyn.errors import ConflictError
from modyn.json_codec import sanitize
from modyn.supervisor.journal.records import TriggerRecord, to_row
from modyn.supervisor.journal.run_events import EventDetail, RunEvent, RunMessage, StateChange, StepDetail, StepState
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

    def become(self, to: RunState, **texts: str) -> None:
        """Change the run's state and record the event; nothing happens if the run is already in the state `to`. Raises: ConflictError.

        Args: texts: fields of `StateChange`, which are also columns of the run's row.
        """
        if to == self.state:
            return
        check_transition(self.run_id, self.state, to)
        self.replaces_last = {self.state, to} == {RunState.STREAMING, RunState.WAITING_FOR_DATA}
        self.state = to
        texts = {name: sanitize(text) for name, text in texts.items()}
        self.changes |= {"state": str(to), "finished_at": time.time() if to in TERMINAL else None, **texts}
        self.event(StateChange(to, **texts))

    def message(self, message: str, trigger_id: int | None = None) -> None:
        """Add an event with a message for the user."""
        self.event(RunMessage(message), trigger_id)

    def event(self, detail: EventDetail, trigger_id: int | None = None) -> None:
        """Add an event with the next sequence number. The event is written when the transaction commits."""
        # The lock on the run's row excludes other writers, so that the numbers of events have no gaps.
        event = RunEvent(self.last_seq + len(self.events) + 1, time.time(), trigger_id, detail)
        row = to_row(event, EVENTS)
        # Text is sanitised even if JSON accepts the text, because watchers receive the text through protobuf.
        cleaned = {name: sanitize(value) if isinstance(value, str) else value for name, value in row["detail"].items()}
        self.events.append({**row, "run_id": self.run_id, "kind": str(event.kind), "detail": cleaned})

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

    def start_step(self, trigger_id: int, step: StepDetail, name: str = "") -> None:
        """Record that a step starts, unless the step is finished. Args: name: distinguishes the evaluations of a trigger."""
        values = {"state": str(step.state), "started_at": time.time(), "finished_at": None, "detail": step.to_mapping()}
        statement = upsert(STEPS).values(run_id=self.run_id, trigger_id=trigger_id, step=step.step, name=name, **values)
        update_unfinished = statement.on_conflict_do_update(
            index_elements=["run_id", "trigger_id", "step", "name"], set_=values, where=STEPS.c.state != "finished"
        )
        # If the step is finished, no row is returned, and the step's event exists already.
        if self.session.execute(update_unfinished.returning(STEPS.c.step)).scalar() is not None:
            self.event(step, trigger_id)

    def end_step(self, trigger_id: int, step: StepDetail, name: str = "") -> bool:
        """Record that a step is finished or failed, unless the step was finished before. Return whether the record was written. Args: name: see
        `start_step`.
        """
        row = {"run_id": self.run_id, "trigger_id": trigger_id, "step": step.step, "name": name}
        is_step = [STEPS.c[column] == value for column, value in row.items()]
        statement = update(STEPS).where(*is_step, STEPS.c.state != StepState.FINISHED).returning(STEPS.c.step)
        values = {"state": str(step.state), "finished_at": time.time(), "detail": step.to_mapping()}
        if self.session.execute(statement.values(**values)).scalar() is None:
            return False
        self.event(step, trigger_id)
        return True
