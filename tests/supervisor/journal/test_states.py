"""The table of states says what it should, for every pair."""

from __future__ import annotations

from itertools import product

import pytest

from modyn.errors import ConflictError
from modyn.supervisor.journal.states import (
    RESUMABLE,
    TERMINAL,
    TRANSITIONS,
    TRIGGER_TRANSITIONS,
    RunState,
    TriggerState,
    check_transition,
)

LIFE = ["submitted", "streaming", "waiting_for_data", "selecting", "training", "evaluating", "stopping"]
ALLOWED = {
    *product(["streaming", "waiting_for_data", "selecting", "training", "evaluating"], ["stopping", "failed", "interrupted"]),
    *product(["stopped", "failed", "interrupted"], ["submitted"]),
    *product(["submitted"], ["streaming", "evaluating", "stopped", "failed", "interrupted"]),
    ("streaming", "waiting_for_data"),
    ("waiting_for_data", "streaming"),
    ("waiting_for_data", "evaluating"),
    ("streaming", "selecting"),
    ("streaming", "evaluating"),
    ("selecting", "training"),
    ("selecting", "streaming"),
    ("training", "streaming"),
    ("evaluating", "finished"),
    ("stopping", "stopped"),
    ("stopping", "failed"),
    ("stopping", "interrupted"),
    ("interrupted", "stopped"),
}


def test_every_pair() -> None:
    for state, to in product(RunState, RunState):
        if (str(state), str(to)) in ALLOWED:
            check_transition("r-0001", state, to)
        else:
            with pytest.raises(ConflictError, match=f"r-0001 is {state} and cannot become {to}"):
                check_transition("r-0001", state, to)


def test_every_state_is_in_the_table_and_can_come_to_rest() -> None:
    assert set(TRANSITIONS) == set(RunState)
    assert {state for state in RunState if str(state) not in LIFE} == TERMINAL
    assert TERMINAL - {RunState.FINISHED} == RESUMABLE
    for state in set(RunState) - TERMINAL:
        assert TRANSITIONS[state] & {RunState.INTERRUPTED}, f"{state} cannot be interrupted"
        assert TRANSITIONS[state] & {RunState.STOPPING, RunState.STOPPED}, f"{state} cannot be stopped"


def test_a_trigger_ends_trained_untrained_tested_or_empty() -> None:
    assert set(TRIGGER_TRANSITIONS) == set(TriggerState)
    assert {state for state, following in TRIGGER_TRANSITIONS.items() if not following} == {
        TriggerState.TRAINED,
        TriggerState.UNTRAINED,
        TriggerState.EMPTY,
        TriggerState.TESTED,
    }
