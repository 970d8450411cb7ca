"""Typed client of the trainer server, and the records that it takes and returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from modyn.errors import BY_REASON, ModynError, TrainingError
from modyn.proto import trainer_server_pb2, trainer_server_pb2_grpc
from modyn.records import JobState, RunId
from modyn.rpc.client import SectionClient
from modyn.rpc.wire import from_struct, state_from_proto, state_to_proto, to_struct

TrainingState = JobState
"""Where a training stands."""


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """Train trigger `trigger_id` of `run_id` on its trigger set."""

    run_id: RunId
    trigger_id: int
    pipeline: Mapping[str, Any]
    """The whole pipeline; the sections model, training, data, model_storage and selection_strategy are read."""
    parent_model_id: int | None = None
    """Start from this version's weights; None: from initial ones."""
    num_samples_to_pass: int | None = None
    """None: what `training.num_samples_to_pass` says of this trigger, and else `epochs_per_trigger`."""
    seed: int | None = None
    """None: `training.seed`, and without one the training is not repeatable."""


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """A training as it is now. Counts start at 0 with each trigger and include what a resumed training did before."""

    run_id: RunId
    trigger_id: int
    state: TrainingState
    samples_seen: int = 0
    samples_total: int | None = None
    """None: not known yet."""
    batches_seen: int = 0
    loss: float | None = None
    """Mean over the newest batches that were logged; None until there is one."""
    samples_per_s: float = 0.0
    model_id: int | None = None
    """Set once finished."""
    error: str = ""
    """Once failed: what, where, what to do."""
    error_reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    """Once finished, as stored with the model: num_samples, num_batches, num_epochs, loss, losses, seconds by stage."""

    def to_error(self) -> ModynError:
        """The error that ended a failed or stopped training, in its own class."""
        kind = BY_REASON.get(self.error_reason, TrainingError)
        return kind(self.error or f"training of run {self.run_id}, trigger {self.trigger_id} ended as {self.state.name.lower()}")


class TrainerServerClient(SectionClient):
    """Calls of the trainer server, which acts on the sections model, training, data and selection_strategy.downsampling_config."""

    _Stub = trainer_server_pb2_grpc.TrainerServerStub

    def start(self, request: TrainingRequest) -> TrainingStatus:
        """Start a training. Idempotent: one that runs goes on, a finished one is answered with its model, a failed or stopped one
        is tried again. Raises ConfigError for a pipeline that is not valid."""
        return status_from_proto(self._stub.Start(request_to_proto(request)))

    def watch(self, run_id: str, trigger_id: int) -> Iterator[TrainingStatus]:
        """The status now, then one on every change, at most a few a second, and the final one last. Raises NotFoundError for a
        training that was not started since the service was."""
        for status in self._stub.Watch(trainer_server_pb2.TrainingId(run_id=run_id, trigger_id=trigger_id)):
            yield status_from_proto(status)

    def stop(self, run_id: str, trigger_id: int) -> None:
        """Ask a training to stop, and return at once; its final status is STOPPED. Its last checkpoint stays."""
        self._stub.Stop(trainer_server_pb2.TrainingId(run_id=run_id, trigger_id=trigger_id))


def request_to_proto(request: TrainingRequest) -> trainer_server_pb2.TrainingRequest:
    return trainer_server_pb2.TrainingRequest(
        run_id=request.run_id,
        trigger_id=request.trigger_id,
        pipeline=to_struct(request.pipeline),
        parent_model_id=request.parent_model_id or 0,
        num_samples_to_pass=request.num_samples_to_pass or 0,
        seed=request.seed or 0,
        seeded=request.seed is not None,
    )


def request_from_proto(message: trainer_server_pb2.TrainingRequest) -> TrainingRequest:
    return TrainingRequest(
        run_id=RunId(message.run_id),
        trigger_id=message.trigger_id,
        pipeline=from_struct(message.pipeline),
        parent_model_id=message.parent_model_id or None,
        num_samples_to_pass=message.num_samples_to_pass or None,
        seed=message.seed if message.seeded else None,
    )


def status_to_proto(status: TrainingStatus) -> trainer_server_pb2.TrainingStatus:
    return trainer_server_pb2.TrainingStatus(
        run_id=status.run_id,
        trigger_id=status.trigger_id,
        state=state_to_proto(status.state),
        samples_seen=status.samples_seen,
        samples_total=status.samples_total or 0,
        batches_seen=status.batches_seen,
        loss=status.loss,
        samples_per_s=status.samples_per_s,
        model_id=status.model_id or 0,
        error=status.error,
        error_reason=status.error_reason,
        result=to_struct(status.result),
    )


def status_from_proto(message: trainer_server_pb2.TrainingStatus) -> TrainingStatus:
    return TrainingStatus(
        run_id=RunId(message.run_id),
        trigger_id=message.trigger_id,
        state=state_from_proto(message.state),
        samples_seen=message.samples_seen,
        samples_total=message.samples_total or None,
        batches_seen=message.batches_seen,
        loss=message.loss if message.HasField("loss") else None,
        samples_per_s=message.samples_per_s,
        model_id=message.model_id or None,
        error=message.error,
        error_reason=message.error_reason,
        result=from_struct(message.result),
    )
