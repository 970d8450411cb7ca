"""Typed client of the supervisor, and the records that it returns: runs, their events, triggers and evaluation results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from modyn.config.base import Problem
from modyn.evaluator.client import EvaluationResult, result_from_proto
from modyn.proto import common_pb2, supervisor_pb2, supervisor_pb2_grpc
from modyn.records import RunId
from modyn.rpc.client import ServiceClient
from modyn.rpc.wire import from_struct, problems_from_proto
from modyn.supervisor.states import RESUMABLE, TERMINAL, RunState, TriggerState

__all__ = [
    "PROGRESS",
    "EvaluationResult",
    "EventKind",
    "Run",
    "RunEvent",
    "RunMode",
    "RunState",
    "SupervisorClient",
    "TriggerRecord",
    "TriggerState",
]

SUBMIT_DEADLINE_S = 300.0
"""Checking a pipeline asks every service, and one of them may be starting."""


class RunMode(StrEnum):
    EXPERIMENT = "experiment"
    """Replay history in the order (timestamp, key)."""
    PRODUCTION = "production"
    """Follow the dataset in order of arrival, first what it holds already, until stopped."""


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a pipeline, as it stands now. Times are seconds since 1970."""

    run_id: RunId
    pipeline_name: str
    mode: RunMode
    state: RunState
    submitted_at: float
    finished_at: float | None = None
    """When it last came to rest; None while it is active."""
    error: str = ""
    """Why it failed or was interrupted."""
    error_reason: str = ""
    """Machine-readable name of the error, as in modyn/errors.py."""
    message: str = ""
    """What else the user should know, e.g. that no trigger fired and why."""
    num_samples: int = 0
    """Seen in the stream so far."""
    total_samples: int | None = None
    """Of the whole stream; None if not known (production mode)."""
    num_triggers: int = 0
    samples_trained: int = 0
    """Keys of all trigger sets that were trained on."""
    from_timestamp: int | None = None
    to_timestamp: int | None = None
    max_triggers: int | None = None
    yaml: str = ""
    """The pipeline file as submitted."""
    pipeline: dict[str, Any] = field(default_factory=dict)
    """The pipeline with defaults filled in."""

    @property
    def is_terminal(self) -> bool:
        """Nothing runs any more."""
        return self.state in TERMINAL

    @property
    def is_resumable(self) -> bool:
        return self.state in RESUMABLE


class EventKind(StrEnum):
    """What an event tells, and what is in its `detail`."""

    RUN_STATE = "run_state"
    """state, error, error_reason, message"""
    TRIGGER_FIRED = "trigger_fired"
    """position, first_timestamp, last_timestamp, fired_at_timestamp, num_samples (since the last trigger)"""
    STEP = "step"
    """step (select | train | evaluate), state (started | finished | failed), and what the step found or made:
    select: num_keys; train: model_id, seconds, loss; evaluate: handler, dataset, seconds, error"""
    MESSAGE = "message"
    """message"""
    STREAM_PROGRESS = "stream_progress"
    """num_samples, total_samples (0 = not known), timestamp. This kind and those below are not kept."""
    TRAINING_PROGRESS = "training_progress"
    """samples_seen, samples_total (0 = not known yet), batches_seen, loss, samples_per_s"""
    EVALUATION_PROGRESS = "evaluation_progress"
    """handler, dataset, samples_seen, samples_total"""


PROGRESS = frozenset({EventKind.STREAM_PROGRESS, EventKind.TRAINING_PROGRESS, EventKind.EVALUATION_PROGRESS})


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened in a run."""

    seq: int
    """1, 2, … within the run for events that are kept; 0 for progress."""
    time: float
    kind: EventKind
    trigger_id: int | None
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TriggerRecord:
    """One trigger and what is known of it so far. Stream times are int64 seconds, the others are seconds since 1970."""

    trigger_id: int
    position: int
    """Samples of the stream before it, counted from the run's start."""
    first_timestamp: int
    """Smallest timestamp of the samples since the last trigger."""
    last_timestamp: int
    """Largest timestamp of the samples since the last trigger."""
    fired_at_timestamp: int
    """Stream time of the decision: the largest timestamp seen until then."""
    state: TriggerState
    started_at: float
    finished_at: float | None = None
    """When its model was stored."""
    num_keys: int | None = None
    keys_checksum: str | None = None
    model_id: int | None = None
    parent_model_id: int | None = None
    weights_sha256: str | None = None
    training_result: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage: select, train, store, evaluate, total; those that are known."""


class SupervisorClient(ServiceClient):
    """Calls of the supervisor. Every method raises from `modyn.errors`: NotFoundError for an unknown run, ConflictError when the run's
    state does not allow the call, UnavailableError when the supervisor cannot be reached."""

    _Stub = supervisor_pb2_grpc.SupervisorStub
    # A submission whose answer got lost must not start a second run.
    _not_repeatable = frozenset({"Submit"})

    def validate(self, yaml: str, file_name: str) -> list[Problem]:
        """Every mistake in the pipeline file; empty if it can be submitted. Runs nothing."""
        reply = self._stub.Validate(supervisor_pb2.PipelineText(yaml=yaml, file_name=file_name), timeout=SUBMIT_DEADLINE_S)
        return problems_from_proto(reply)

    def submit(
        self,
        yaml: str,
        file_name: str,
        mode: RunMode,
        *,
        from_timestamp: int | None = None,
        to_timestamp: int | None = None,
        max_triggers: int | None = None,
    ) -> Run:
        """Starts a run over samples of [from, to). ConfigError lists every mistake of the file; NotFoundError names the dataset that
        is missing; InvalidArgumentError when there is nothing to replay."""
        request = supervisor_pb2.SubmitRequest(
            pipeline=supervisor_pb2.PipelineText(yaml=yaml, file_name=file_name),
            mode=mode_to_proto(mode),
            from_timestamp=from_timestamp,
            to_timestamp=to_timestamp,
            max_triggers=max_triggers,
        )
        return run_from_proto(self._stub.Submit(request, timeout=SUBMIT_DEADLINE_S))

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        return [run_from_proto(run) for run in self._stub.ListRuns(common_pb2.Empty()).runs]

    def run(self, run_id: str) -> Run:
        return run_from_proto(self._stub.GetRun(supervisor_pb2.RunName(run_id=run_id)))

    def watch(self, run_id: str, after_seq: int = 0) -> Iterator[RunEvent]:
        """Events that are kept after `after_seq`, then new ones and progress as they happen, until the run is at rest.

        UnavailableError when the supervisor goes away; call again with the last `seq` received.
        """
        for event in self._stub.Watch(supervisor_pb2.WatchRequest(run_id=run_id, after_seq=after_seq)):
            yield event_from_proto(event)

    def stop(self, run_id: str) -> Run:
        """Asks the run to end soon; it can be resumed. A run at rest is left as it is."""
        return run_from_proto(self._stub.StopRun(supervisor_pb2.RunName(run_id=run_id)))

    def resume(self, run_id: str) -> Run:
        """Goes on where the run was stopped, failed or was interrupted. An active run is left as it is; a finished one is a conflict."""
        return run_from_proto(self._stub.ResumeRun(supervisor_pb2.RunName(run_id=run_id)))

    def evaluate(self, run_id: str, handlers: Sequence[str] = ()) -> Run:
        """Makes the evaluations of these handlers, or of all manual ones, for a finished run."""
        request = supervisor_pb2.EvaluateRunRequest(run_id=run_id, handlers=list(handlers))
        return run_from_proto(self._stub.EvaluateRun(request))

    def triggers(self, run_id: str) -> list[TriggerRecord]:
        """All triggers, in order."""
        reply = self._stub.ListTriggers(supervisor_pb2.RunName(run_id=run_id))
        return [trigger_from_proto(trigger) for trigger in reply.triggers]

    def results(self, run_id: str) -> list[EvaluationResult]:
        """All evaluation results so far."""
        stream = self._stub.Results(supervisor_pb2.RunName(run_id=run_id))
        return [result_from_proto(result) for result in stream]


_MODES = {
    RunMode.EXPERIMENT: supervisor_pb2.RUN_MODE_EXPERIMENT,
    RunMode.PRODUCTION: supervisor_pb2.RUN_MODE_PRODUCTION,
}


def mode_to_proto(mode: RunMode) -> supervisor_pb2.RunMode:
    return _MODES[mode]


def mode_from_proto(mode: supervisor_pb2.RunMode) -> RunMode:
    return {number: name for name, number in _MODES.items()}[mode]


def run_from_proto(run: supervisor_pb2.Run) -> Run:
    return Run(
        run_id=RunId(run.run_id),
        pipeline_name=run.pipeline_name,
        mode=mode_from_proto(run.mode),
        state=RunState(run.state),
        submitted_at=run.submitted_at,
        finished_at=run.finished_at or None,
        error=run.error,
        error_reason=run.error_reason,
        message=run.message,
        num_samples=run.num_samples,
        total_samples=run.total_samples or None,
        num_triggers=run.num_triggers,
        samples_trained=run.samples_trained,
        from_timestamp=run.from_timestamp if run.HasField("from_timestamp") else None,
        to_timestamp=run.to_timestamp if run.HasField("to_timestamp") else None,
        max_triggers=run.max_triggers if run.HasField("max_triggers") else None,
        yaml=run.yaml,
        pipeline=from_struct(run.pipeline),
    )


def event_from_proto(event: supervisor_pb2.RunEvent) -> RunEvent:
    trigger_id = event.trigger_id if event.HasField("trigger_id") else None
    return RunEvent(event.seq, event.time, EventKind(event.kind), trigger_id, from_struct(event.detail))


def trigger_from_proto(trigger: supervisor_pb2.TriggerRecord) -> TriggerRecord:
    return TriggerRecord(
        trigger_id=trigger.trigger_id,
        position=trigger.position,
        first_timestamp=trigger.first_timestamp,
        last_timestamp=trigger.last_timestamp,
        fired_at_timestamp=trigger.fired_at_timestamp,
        state=TriggerState(trigger.state),
        started_at=trigger.started_at,
        finished_at=trigger.finished_at or None,
        num_keys=trigger.num_keys if trigger.state != TriggerState.FIRED else None,
        keys_checksum=trigger.keys_checksum or None,
        model_id=trigger.model_id or None,
        parent_model_id=trigger.parent_model_id or None,
        weights_sha256=trigger.weights_sha256 or None,
        training_result=from_struct(trigger.training_result),
        seconds={stage: float(value) for stage, value in from_struct(trigger.seconds).items()},
    )
