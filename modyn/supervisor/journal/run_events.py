"""Events of a run: one record of facts for each kind of event, and the converter from JSON data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

from modyn.json_codec import JsonRecord
from modyn.records import JobState
from modyn.supervisor.journal.records import ServingStatus
from modyn.supervisor.journal.states import RunState
from modyn.supervisor.triggers.base import CheckRecord


class StepState(StrEnum):
    """States of a step of a trigger."""

    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StateChange(JsonRecord):
    """The run has a new state."""

    state: RunState
    error: str = ""
    error_reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class TriggerFired(JsonRecord):
    """A trigger fired. See the fields of `TriggerRecord` with the same names."""

    position: int
    fired_at_timestamp: int
    num_samples: int = 0
    """Number of samples since the last trigger."""
    online: bool = False


@dataclass(frozen=True, slots=True)
class Step(JsonRecord):
    """A step of a trigger started or ended."""

    step: ClassVar[str]
    """Name of the step in the journal."""
    state: StepState
    seconds: float | None = None
    """Seconds of work, if the step has ended."""

    def to_mapping(self) -> dict[str, Any]:
        """Return the record as JSON data, with the name of the step."""
        return {"step": self.step, **JsonRecord.to_mapping(self)}


@dataclass(frozen=True, slots=True)
class SelectStep(Step):
    """The selection of a trigger set."""

    step = "select"
    num_keys: int | None = None


@dataclass(frozen=True, slots=True)
class TrainStep(Step):
    """The training of a trigger. Facts about the result are known when the training has ended."""

    step = "train"
    downsampling_turn: int | None = None
    """See the fields of `TriggerRecord`. Both fields are known when the training starts."""
    downsampling_score: float | None = None
    model_id: int | None = None
    """The new model; None if the training made no model."""
    reason: str = ""
    """Reason why the training made no model."""
    loss: float | None = None
    num_skipped: int | None = None
    """Number of samples that were left out."""
    skipped_steps: int = 0
    """Number of steps that changed no weight, out of `num_steps`."""
    num_steps: int = 0
    ignored_labels: int = 0
    """Number of labels that the loss ignored, out of `num_labels`."""
    num_labels: int = 0
    unusual_inputs: tuple[str, ...] = ()
    """A description of each unusual column."""
    tested: int = 0
    """Number of samples that online steps tested. If the number is not 0, one of the two prequential values is known."""
    prequential_error: float | None = None
    prequential_loss: float | None = None
    tests_only: bool = False
    """Whether online steps only tested their samples, because steps are paused."""
    rollbacks: int = 0


@dataclass(frozen=True, slots=True)
class EvaluateStep(Step):
    """An evaluation of a trigger's model."""

    step = "evaluate"
    handler: str = ""
    dataset: str = ""
    error: str = ""
    """Reason why the evaluation failed."""


@dataclass(frozen=True, slots=True)
class RunMessage(JsonRecord):
    """A message for the user."""

    message: str


@dataclass(frozen=True, slots=True)
class RunProgress(JsonRecord):
    """Progress of a work of the run, such as a training."""

    samples_seen: int = 0
    samples_total: int = 0
    """Number of samples of the whole work; 0 if the number is not known."""

    @property
    def subject(self) -> str:
        """Name of the work among the works of the same kind and trigger."""
        return ""

    @property
    def done(self) -> tuple[int, int]:
        """Number of processed samples, and their total. The first number changes if the work makes progress."""
        return self.samples_seen, self.samples_total


@dataclass(frozen=True, slots=True)
class StreamProgress(RunProgress):
    """Progress of the run in its stream, with the largest timestamp so far."""

    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class TriggerProgress(RunProgress):
    """Progress of the training of a trigger. See the fields of `TrainingStatus` with the same names."""

    state: JobState = JobState.RUNNING
    """The state `queued` means that the training waits for a worker."""
    loss: float | None = None
    samples_per_s: float | None = None
    stage: str = ""
    samples_scored: int = 0
    """Number of candidates that a selection has scored, out of `samples_to_score`; both are 0 if no selection is running."""
    samples_to_score: int = 0

    @property
    def subject(self) -> str:
        """The state and the stage."""
        return f"{self.state} {self.stage}"

    @property
    def done(self) -> tuple[int, int]:
        """Numbers of the selection, if a selection is running; otherwise of the training."""
        return (self.samples_scored, self.samples_to_score) if self.samples_to_score else (self.samples_seen, self.samples_total)


@dataclass(frozen=True, slots=True)
class EvaluationProgress(RunProgress):
    """Progress of an evaluation."""

    handler: str = ""
    dataset: str = ""

    @property
    def subject(self) -> str:
        """The handler and the dataset."""
        return f"{self.handler}/{self.dataset}"


@dataclass(frozen=True, slots=True)
class OtherEvent(JsonRecord):
    """An event of a kind that only a newer version knows. Readers ignore the event."""


LiveDetail = StreamProgress | TriggerProgress | EvaluationProgress | ServingStatus
"""The facts of an event that is not journalled. `ServingStatus` is the present state of the prediction servers."""
StepDetail = SelectStep | TrainStep | EvaluateStep
EventDetail = StateChange | TriggerFired | StepDetail | CheckRecord | RunMessage | LiveDetail | OtherEvent
"""The facts of an event. A `CheckRecord` in an event has no memory."""

_STEPS: Final[Mapping[str, type[EventDetail]]] = {record.step: record for record in (SelectStep, TrainStep, EvaluateStep)}
_RECORDS: Final[Mapping[str, type[EventDetail]]] = {
    "run_state": StateChange,
    "trigger_fired": TriggerFired,
    "check": CheckRecord,
    "message": RunMessage,
    "stream_progress": StreamProgress,
    "training_progress": TriggerProgress,
    "evaluation_progress": EvaluationProgress,
    "serving": ServingStatus,
}
_KINDS: Final = {record: kind for kind, record in _RECORDS.items()} | dict.fromkeys(_STEPS.values(), "step")


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run."""

    seq: int
    """Number of a journalled event within the run: 1, 2, …; 0 for progress."""
    time: float
    trigger_id: int | None
    """The trigger that the event is about; None if the event is about the whole run."""
    detail: EventDetail

    @property
    def kind(self) -> str:
        """Name of the kind of event in the journal, such as `trigger_fired`."""
        return _KINDS.get(type(self.detail), "other")


def detail_from_json(kind: str, mapping: Mapping[str, Any]) -> EventDetail:
    """Read the facts of an event from the output of `to_mapping`. Raises: CorruptStateError.

    >>> detail_from_json("message", {"message": "waiting for storage"}), detail_from_json("of_a_newer_version", {"a": 1})
    (RunMessage(message='waiting for storage'), OtherEvent())
    """
    record = _STEPS.get(mapping.get("step", "")) if kind == "step" else _RECORDS.get(kind)
    return (record or OtherEvent).from_mapping(mapping)
