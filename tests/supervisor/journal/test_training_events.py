"""Facts from the result of a training that the journal and watchers receive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from modyn.supervisor.alerts.alerts import Finding, finding
from modyn.supervisor.journal.records import TriggerRecord
from modyn.supervisor.journal.run_events import RunEvent, StepState, TrainStep
from modyn.supervisor.journal.states import TriggerState
from modyn.supervisor.journal.training_events import ended_training, training_messages
from modyn.trainer_server.result import (
    GuardResult,
    PreprocessingResult,
    PrequentialResult,
    Rollback,
    TrainingCounts,
    TrainingResult,
)

CLAUSES = ["75 % of 'age' are missing (limit 50 %)", "20 % of 'site' are unlike all before (limit 10 %)"]


def trigger(result: TrainingResult, model_id: int | None = 7) -> TriggerRecord:
    return TriggerRecord(
        3, 10, 0, 9, 9, TriggerState.TRAINED, 0.0, model_id=model_id, training_result=result, seconds={"train": 1.5}
    )


def test_what_is_unusual_is_said() -> None:
    unusual = trigger(TrainingResult(preprocessing=PreprocessingResult(4, unusual=tuple(CLAUSES))))
    assert ended_training(unusual).unusual_inputs == tuple(CLAUSES)
    assert list(training_messages(unusual)) == [f"trigger 3: inputs are unusual: {CLAUSES[0]}; {CLAUSES[1]}"]


@pytest.mark.parametrize("preprocessing", [None, PreprocessingResult(4), PreprocessingResult(4, unusual=())])
def test_usual_inputs_are_not_reported(preprocessing: PreprocessingResult | None) -> None:
    usual = trigger(TrainingResult(preprocessing=preprocessing))
    assert ended_training(usual).unusual_inputs == ()
    assert list(training_messages(usual)) == []


def test_the_detail_has_the_tests_of_steps_and_what_was_learned() -> None:
    tests, counts = PrequentialResult(1, (2, 4), (0.5, 0.5), (1, 2)), TrainingCounts(num_steps=9, skipped_steps=3)
    guard = GuardResult(rollbacks=(Rollback(step=8, to_step=4, running=1.0, loss=3.0),))
    result = TrainingResult(counts, warnings=("a warning",), prequential=tests, step_guard=guard)
    step = TrainStep(StepState.FINISHED, 1.5, tested=6, prequential_error=0.5, rollbacks=1)
    trained = replace(step, model_id=7, num_skipped=0, skipped_steps=3, num_steps=9)
    assert ended_training(trigger(result)) == trained
    assert ended_training(trigger(result, model_id=None), "left out") == replace(step, reason="left out")
    jump = (
        "trigger 3: after step 8 the error had jumped to a loss of 3, against 1 before: steps resume from the weights of step 4"
    )
    assert list(training_messages(trigger(result))) == [jump, "trigger 3: a warning"]


def event(**facts: Any) -> RunEvent:
    return RunEvent(1, 0.0, 3, TrainStep(StepState.FINISHED, **facts))


def test_unusual_inputs_degrade_a_run_and_a_pause_does_not() -> None:
    expected = Finding("degraded", f"trigger 3: inputs are unusual: {CLAUSES[0]}", "inputs")
    assert finding(event(model_id=7, unusual_inputs=tuple(CLAUSES[:1]))) == expected
    assert finding(event(model_id=None, reason="the new samples were only tested", tests_only=True)) is None
    left_out = Finding("degraded", "trigger 3 made no model: the error jumped", "train")
    assert finding(event(model_id=None, reason="the error jumped")) == left_out
