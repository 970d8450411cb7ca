"""Converters between the evaluator's records and its messages, both directions side by side."""

from __future__ import annotations

from modyn.evaluator.request import EvaluationRequest, EvaluationResult, EvaluationStatus
from modyn.proto import evaluator_pb2
from modyn.records import EvalInterval, RunId
from modyn.rpc.wire import from_struct, state_from_proto, state_to_proto, to_struct


def request_to_proto(request: EvaluationRequest) -> evaluator_pb2.EvaluationRequest:
    return evaluator_pb2.EvaluationRequest(
        run_id=request.run_id,
        trigger_id=request.trigger_id,
        model_id=request.model_id,
        handler=request.handler,
        dataset=to_struct(request.dataset),
        device=request.device,
        intervals=[interval_to_proto(interval) for interval in request.intervals],
    )


def request_from_proto(message: evaluator_pb2.EvaluationRequest) -> EvaluationRequest:
    return EvaluationRequest(
        run_id=RunId(message.run_id),
        trigger_id=message.trigger_id,
        model_id=message.model_id,
        handler=message.handler,
        dataset=from_struct(message.dataset),
        intervals=tuple(interval_from_proto(interval) for interval in message.intervals),
        device=message.device or "cpu",
    )


def status_to_proto(status: EvaluationStatus) -> evaluator_pb2.EvaluationStatus:
    return evaluator_pb2.EvaluationStatus(
        evaluation_id=status.evaluation_id,
        state=state_to_proto(status.state),
        samples_seen=status.samples_seen,
        samples_total=status.samples_total,
        error=status.error,
        error_reason=status.error_reason,
    )


def status_from_proto(message: evaluator_pb2.EvaluationStatus) -> EvaluationStatus:
    return EvaluationStatus(
        evaluation_id=message.evaluation_id,
        state=state_from_proto(message.state),
        samples_seen=message.samples_seen,
        samples_total=message.samples_total,
        error=message.error,
        error_reason=message.error_reason,
    )


def result_to_proto(result: EvaluationResult) -> evaluator_pb2.EvaluationResult:
    return evaluator_pb2.EvaluationResult(
        run_id=result.run_id,
        trigger_id=result.trigger_id,
        model_id=result.model_id,
        handler=result.handler,
        dataset=result.dataset,
        interval=interval_to_proto(result.interval),
        metric=result.metric,
        value=result.value,
        note=result.note,
        num_samples=result.num_samples,
    )


def result_from_proto(message: evaluator_pb2.EvaluationResult) -> EvaluationResult:
    return EvaluationResult(
        run_id=RunId(message.run_id),
        trigger_id=message.trigger_id,
        model_id=message.model_id,
        handler=message.handler,
        dataset=message.dataset,
        interval=interval_from_proto(message.interval),
        metric=message.metric,
        value=message.value if message.HasField("value") else None,
        note=message.note,
        num_samples=message.num_samples,
    )


def interval_to_proto(interval: EvalInterval) -> evaluator_pb2.EvalInterval:
    return evaluator_pb2.EvalInterval(start=interval.start, end=interval.end, anchor=interval.anchor)


def interval_from_proto(message: evaluator_pb2.EvalInterval) -> EvalInterval:
    return EvalInterval(message.start, message.end, message.anchor)
