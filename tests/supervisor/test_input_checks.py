"""Unusual inputs of a training are journalled, shown and reported; a pause of steps is not."""

from __future__ import annotations

from typing import Any

import pytest

from modyn.supervisor.alerts import Finding, finding
from modyn.supervisor.input_checks import input_detail, input_message
from modyn.supervisor.records import EventKind, RunEvent, TriggerRecord
from modyn.supervisor.states import TriggerState

CLAUSES = ["75 % of 'age' are missing (limit 50 %)", "20 % of 'site' are unlike all before (limit 10 %)"]


def trigger(result: dict[str, Any]) -> TriggerRecord:
    return TriggerRecord(3, 10, 0, 9, 9, TriggerState.TRAINED, 0.0, training_result=result)


def test_what_is_unusual_is_said() -> None:
    unusual = trigger({"preprocessing": {"rows": 4, "unusual": CLAUSES}})
    assert input_detail(unusual) == {"unusual_inputs": CLAUSES}
    assert input_message(unusual) == f"trigger 3: inputs are unusual: {CLAUSES[0]}; {CLAUSES[1]}"


@pytest.mark.parametrize("result", [{}, {"preprocessing": {"rows": 4}}, {"preprocessing": {"rows": 4, "unusual": []}}])
def test_usual_inputs_are_no_news(result: dict[str, Any]) -> None:
    assert input_detail(trigger(result)) == {}
    assert input_message(trigger(result)) == ""


def event(**detail: Any) -> RunEvent:
    return RunEvent(1, 0.0, EventKind.STEP, 3, {"step": "train", "state": "finished", **detail})


def test_unusual_inputs_degrade_a_run_and_a_pause_does_not() -> None:
    expected = Finding("degraded", f"trigger 3: inputs are unusual: {CLAUSES[0]}", "inputs")
    assert finding(event(model_id=7, unusual_inputs=CLAUSES[:1])) == expected
    assert finding(event(model_id=None, reason="the new samples were only tested", tests_only=True)) is None
    left_out = Finding("degraded", "trigger 3 made no model: the error jumped", "train")
    assert finding(event(model_id=None, reason="the error jumped")) == left_out
