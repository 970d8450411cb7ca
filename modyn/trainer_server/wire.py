"""Converters between the trainer's records and its messages, both directions side by side. 0 stands for None where 0 means nothing."""

from __future__ import annotations

from modyn.proto import trainer_server_pb2
from modyn.records import RunId
from modyn.rpc.wire import from_struct, state_from_proto, state_to_proto, to_struct
from modyn.trainer_server.request import TrainingRequest, TrainingStatus


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
        weights_sha256=status.weights_sha256,
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
        weights_sha256=message.weights_sha256,
    )
