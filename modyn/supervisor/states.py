"""The state machine of a run, as a table, and the states of one trigger within it."""

from __future__ import annotations

from enum import StrEnum

from modyn.errors import ConflictError


class RunState(StrEnum):
    """What a run is doing. Where it stands in its stream is the journal's cursor, not its state."""

    SUBMITTED = "submitted"
    """Accepted (again, when resumed); waits for its turn."""
    STREAMING = "streaming"
    """Reads samples, asks the trigger policy, informs the selector."""
    WAITING_FOR_DATA = "waiting_for_data"
    """Production mode: everything that arrived is processed."""
    SELECTING = "selecting"
    """A trigger fired; its trigger set is being fixed."""
    TRAINING = "training"
    EVALUATING = "evaluating"
    """The stream ended; what is left of the evaluations is made."""
    STOPPING = "stopping"
    """The user asked for an end; running work is being called off."""
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """A service, the supervisor among them, went away for too long. Nothing is lost and nothing is running."""


_CAN_BREAK_OFF = frozenset({RunState.STOPPING, RunState.FAILED, RunState.INTERRUPTED})

TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    RunState.SUBMITTED: frozenset(
        {RunState.STREAMING, RunState.EVALUATING, RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED}
    ),
    RunState.STREAMING: _CAN_BREAK_OFF | {RunState.WAITING_FOR_DATA, RunState.SELECTING, RunState.EVALUATING},
    RunState.WAITING_FOR_DATA: _CAN_BREAK_OFF | {RunState.STREAMING, RunState.EVALUATING},
    RunState.SELECTING: _CAN_BREAK_OFF | {RunState.TRAINING, RunState.STREAMING},
    RunState.TRAINING: _CAN_BREAK_OFF | {RunState.STREAMING},
    RunState.EVALUATING: _CAN_BREAK_OFF | {RunState.FINISHED},
    RunState.STOPPING: frozenset({RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED}),
    RunState.FINISHED: frozenset(),
    RunState.STOPPED: frozenset({RunState.SUBMITTED}),
    RunState.FAILED: frozenset({RunState.SUBMITTED}),
    RunState.INTERRUPTED: frozenset({RunState.SUBMITTED, RunState.STOPPED}),
}
"""From each state to those that may follow. Evaluations that a user asks for change no state: they are a queue of their own."""

TERMINAL = frozenset({RunState.FINISHED, RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED})
"""Nothing runs; only `resume` moves the run on: of the user, of `auto_resume.py` after an outage, or at a start. Watchers end here."""

RESUMABLE = frozenset({RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED})
"""`modyn resume` goes on from the journal."""


def check_transition(run_id: str, state: RunState, to: RunState) -> None:
    """Check a change of state by the table of transitions. Raises ConflictError unless a run may go from `state` to `to`."""
    if to not in TRANSITIONS[state]:
        allowed = ", ".join(sorted(TRANSITIONS[state]))
        raise ConflictError(f"run {run_id} is {state} and cannot become {to}; from here it may become: {allowed}")


class TriggerState(StrEnum):
    """How far a trigger has come. Its evaluations are steps of their own, since they overlap the next training."""

    FIRED = "fired"
    SELECTED = "selected"
    TRAINED = "trained"
    EMPTY = "empty"
    """The selection policy chose no sample: nothing was trained."""
    UNTRAINED = "untrained"
    """The training made no model: it had no whole batch, or it diverged and the model before is kept."""
    TESTED = "tested"
    """Steps pause: the new samples were only tested."""


TRIGGER_TRANSITIONS: dict[TriggerState, frozenset[TriggerState]] = {
    TriggerState.FIRED: frozenset({TriggerState.SELECTED, TriggerState.EMPTY}),
    TriggerState.SELECTED: frozenset({TriggerState.TRAINED, TriggerState.UNTRAINED, TriggerState.TESTED}),
    TriggerState.TRAINED: frozenset(),
    TriggerState.UNTRAINED: frozenset(),
    TriggerState.TESTED: frozenset(),
    TriggerState.EMPTY: frozenset(),
}
