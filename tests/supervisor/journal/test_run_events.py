"""The facts of events in JSON: all records come back the same, and readers know what earlier and newer versions wrote."""

from __future__ import annotations

import pytest

from modyn.errors import CorruptStateError
from modyn.records import JobState, VersionRole
from modyn.rpc.wire import from_struct, to_struct
from modyn.supervisor.evidence import Evidence
from modyn.supervisor.journal.records import ServedVersion, ServingStatus
from modyn.supervisor.journal.run_events import (
    EvaluateStep,
    EvaluationProgress,
    EventDetail,
    OtherEvent,
    RunEvent,
    RunMessage,
    SelectStep,
    StateChange,
    StepState,
    StreamProgress,
    TrainStep,
    TriggerFired,
    TriggerProgress,
    detail_from_json,
)
from modyn.supervisor.journal.states import RunState
from modyn.supervisor.triggers.base import CheckRecord

DETAILS: list[EventDetail] = [
    StateChange(RunState.FAILED, error="no", error_reason="DATA"),
    TriggerFired(10, 99, num_samples=10, online=True),
    SelectStep(StepState.FINISHED, 0.5, num_keys=0),
    TrainStep(StepState.FINISHED, 1.5, model_id=2**60, loss=float("inf"), unusual_inputs=("a", "b"), num_skipped=0),
    EvaluateStep(StepState.FAILED, 0.5, "h", "d", "no memory"),
    CheckRecord(10, True, (Evidence("mmd", 0.5, threshold=0.25, unusual=True), Evidence.flag("unusual")), 0.25, timestamp=2**60),
    RunMessage("waiting for storage"),
    StreamProgress(0, 9, 99),
    TriggerProgress(state=JobState.QUEUED, stage="selection", samples_scored=1, samples_to_score=4),
    EvaluationProgress(1, 2, "h", "d"),
    ServingStatus(10.0, 0.5, 1, (ServedVersion(17, VersionRole.SERVING, 1e9),)),
]


@pytest.mark.parametrize("detail", DETAILS, ids=lambda detail: type(detail).__name__)
def test_facts_come_back_the_same(detail: EventDetail) -> None:
    kind = RunEvent(1, 0.0, None, detail).kind
    assert detail_from_json(kind, from_struct(to_struct(detail.to_mapping()))) == detail


def test_each_kind_has_a_record() -> None:
    assert {RunEvent(1, 0.0, None, detail).kind for detail in [*DETAILS, OtherEvent()]} == {
        *("run_state", "trigger_fired", "step", "check", "message"),
        *("stream_progress", "training_progress", "evaluation_progress", "serving", "other"),
    }


def test_unknown_kinds_steps_and_facts_are_ignored() -> None:
    assert detail_from_json("of_a_newer_version", {"state": 1}) == OtherEvent()
    assert detail_from_json("step", {"step": "of_a_newer_version", "state": "started"}) == OtherEvent()
    assert detail_from_json("message", {"message": "a", "of_a_newer_version": 1}) == RunMessage("a")


def test_facts_that_an_earlier_version_wrote_are_read() -> None:
    nothing = {"step": "train", "state": "finished", "model_id": None, "reason": "no whole batch", "seconds": 0.5}
    assert detail_from_json("step", nothing) == TrainStep(StepState.FINISHED, 0.5, reason="no whole batch")


def test_damaged_facts_are_an_error() -> None:
    with pytest.raises(CorruptStateError, match="a stored StateChange cannot be read"):
        detail_from_json("run_state", {"state": "nowhere"})
