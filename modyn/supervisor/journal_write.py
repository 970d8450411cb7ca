"""One transaction on a run in the journal: what it changes, and the events that report that."""

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
from modyn.supervisor.records import EventKind, RunEvent, TriggerRecord, to_row
from modyn.supervisor.states import TERMINAL, TRIGGER_TRANSITIONS, RunState, TriggerState, check_transition
from modyn.supervisor.tables import EVENTS, STEPS, TRIGGERS

IDLE_STATES: Final = (str(RunState.STREAMING), str(RunState.WAITING_FOR_DATA))
"""An idle run changes between these for ever."""


@dataclass
class Write:
    """One transaction on a run: the changes of its row, triggers and steps, and the events that report them."""

    session: Session
    run_id: str
    state: RunState
    last_seq: int
    changes: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    replaces_last: bool = False
    """The event of a change between streaming and waiting for data takes the place of that of the change before it."""

    def become(self, to: RunState, **detail: str) -> None:
        """Change the run's state and record the event; nothing happens if it is in `to` already. Raises: ConflictError."""
        if to == self.state:
            return
        check_transition(self.run_id, self.state, to)
        # An idle run changes between these two for ever.
        self.replaces_last = {self.state, to} == {RunState.STREAMING, RunState.WAITING_FOR_DATA}
        self.state = to
        detail = {name: sanitize(value) for name, value in detail.items()}
        self.changes |= {"state": str(to), "finished_at": time.time() if to in TERMINAL else None, **detail}
        self.event(EventKind.RUN_STATE, {"state": str(to), **{name: value for name, value in detail.items() if value}})

    def event(self, kind: EventKind, detail: Mapping[str, Any], trigger_id: int | None = None) -> None:
        """Add an event with the next sequence number, written when the transaction commits.

        Args: detail: what `kind` documents. trigger_id: the trigger that it is about; None: the run as a whole.
        """
        # Also text that JSON would keep as it is: watchers get it through protobuf.
        cleaned = {name: sanitize(value) if isinstance(value, str) else value for name, value in detail.items()}
        event = RunEvent(self.last_seq + len(self.events) + 1, time.time(), kind, trigger_id, cleaned)
        self.events.append({"run_id": self.run_id, **to_row(event, EVENTS)})

    def prune(self, kept: int) -> None:
        """Remove all events but the newest `kept`."""
        self.session.execute(delete(EVENTS).where(EVENTS.c.run_id == self.run_id, EVENTS.c.seq <= self.last_seq - kept))

    def update_trigger(self, trigger: TriggerRecord) -> None:
        """Bring the row of a trigger to the record's state, unless it is there. Raises: ConflictError."""
        is_trigger = (TRIGGERS.c.run_id == self.run_id, TRIGGERS.c.trigger_id == trigger.trigger_id)
        state = TriggerState(self.session.execute(select(TRIGGERS.c.state).where(*is_trigger)).scalar_one())
        if state == trigger.state:
            return
        if trigger.state not in TRIGGER_TRANSITIONS[state]:
            raise ConflictError(f"trigger {trigger.trigger_id} of run {self.run_id} is {state} and cannot become {trigger.state}")
        self.session.execute(update(TRIGGERS).where(*is_trigger).values(**to_row(trigger, TRIGGERS)))

    def start_step(self, trigger_id: int, step: str, name: str = "", **detail: Any) -> None:
        """Record that a step starts, unless it is finished. Args: name: distinguishes the evaluations of a trigger."""
        values = {"state": "started", "started_at": time.time(), "finished_at": None, "detail": detail}
        statement = upsert(STEPS).values(run_id=self.run_id, trigger_id=trigger_id, step=step, name=name, **values)
        update_unfinished = statement.on_conflict_do_update(
            index_elements=["run_id", "trigger_id", "step", "name"], set_=values, where=STEPS.c.state != "finished"
        )
        if self.session.execute(update_unfinished.returning(STEPS.c.step)).scalar() is not None:
            self.event(EventKind.STEP, {"step": step, "state": "started", **detail}, trigger_id)

    def end_step(
        self, trigger_id: int, step: str, seconds: float, name: str = "", state: str = "finished", **detail: Any
    ) -> bool:
        """Record that a step is finished or failed, unless it was finished before; return whether it was not.

        Args: seconds: of work, by a clock that never jumps. detail: what it found or made. name: as for `start_step`. state: finished or
        failed.
        """
        is_step = (STEPS.c.run_id == self.run_id, STEPS.c.trigger_id == trigger_id, STEPS.c.step == step, STEPS.c.name == name)
        detail = {**detail, "seconds": seconds}
        statement = update(STEPS).where(*is_step, STEPS.c.state != "finished").returning(STEPS.c.step)
        if self.session.execute(statement.values(state=state, finished_at=time.time(), detail=detail)).scalar() is None:
            return False
        self.event(EventKind.STEP, {"step": step, "state": state, **detail}, trigger_id)
        return True
