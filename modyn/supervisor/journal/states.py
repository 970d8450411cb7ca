"""The state machine of a run, as a table, and the states of one trigger within it."""

from __future__ import annotations

from enum import StrEnum

from modyn.errors import ConflictError


class RunState(StrEnum):
    """The current activity of a run. The journal's cursor stores the position of the run in its stream."""

    SUBMITTED = "submitted"
    """The run is accepted or resumed, and waits until a worker executes it."""
    STREAMING = "streaming"
    """The run reads samples, calls the trigger policy, and informs the selector."""
    WAITING_FOR_DATA = "waiting_for_data"
    """The run, in production mode, has processed all samples that arrived, and waits for more."""
    SELECTING = "selecting"
    """A trigger has fired, and the selector selects the trigger set."""
    TRAINING = "training"
    EVALUATING = "evaluating"
    """The stream has ended, and the remaining evaluations are made."""
    STOPPING = "stopping"
    """The user asked the run to stop, and the run is ending its work."""
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """A service or the supervisor was unavailable for too long. No data is lost, and no part of the run executes."""


_CAN_BREAK_OFF = frozenset({RunState.STOPPING, RunState.FAILED, RunState.INTERRUPTED})
"""States that may follow every working state: a user, an error or an outage can end the work at any time."""

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
"""The states that may follow each state. Requested evaluations have a separate queue and change no state."""

TERMINAL = frozenset({RunState.FINISHED, RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED})
"""Terminal states: no part of the run executes, and only the user or the reconciler changes the state. Watching ends in these states."""

RESUMABLE = frozenset({RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED})
"""States from which `modyn resume` continues a run."""


def check_transition(run_id: str, state: RunState, to: RunState) -> None:
    """Check a change of a run's state. Raises: ConflictError: `TRANSITIONS` does not allow the change from `state` to `to`."""
    if to not in TRANSITIONS[state]:
        allowed = ", ".join(sorted(TRANSITIONS[state]))
        raise ConflictError(f"run {run_id} is {state} and cannot become {to}; from here it may become: {allowed}")


class TriggerState(StrEnum):
    """Progress of a trigger. The progress does not include evaluations, because evaluations overlap the next training."""

    FIRED = "fired"
    SELECTED = "selected"
    TRAINED = "trained"
    EMPTY = "empty"
    """The selection policy chose no sample, and there was no training."""
    UNTRAINED = "untrained"
    """The training made no model, because there was no full batch or the training diverged. The previous model stays in use."""
    TESTED = "tested"
    """Online steps are paused: the new samples were only tested."""


TRIGGER_TRANSITIONS: dict[TriggerState, frozenset[TriggerState]] = {
    TriggerState.FIRED: frozenset({TriggerState.SELECTED, TriggerState.EMPTY}),
    TriggerState.SELECTED: frozenset({TriggerState.TRAINED, TriggerState.UNTRAINED, TriggerState.TESTED}),
    TriggerState.TRAINED: frozenset(),
    TriggerState.UNTRAINED: frozenset(),
    TriggerState.TESTED: frozenset(),
    TriggerState.EMPTY: frozenset(),
}
