"""Talk to the evaluator: start evaluations, watch them, read their results.

An evaluation is one model on one entry of `evaluation.datasets`, over the intervals of one handler. It is idempotent: its id is derived
from what it is asked for, and what is evaluated already is not evaluated again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modyn.errors import BY_REASON, ModynError
from modyn.proto import evaluator_pb2, evaluator_pb2_grpc
from modyn.records import EvalInterval, JobState, RunId
from modyn.rpc.client import SectionClient
from modyn.rpc.wire import from_struct, state_from_proto, state_to_proto, to_struct

EvaluationState = JobState
"""Where an evaluation stands."""


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """One model on one dataset over the intervals of one handler. Intervals may overlap; two equal ones count once."""

    run_id: RunId
    trigger_id: int
    model_id: int
    handler: str
    dataset: Mapping[str, Any]
    """One entry of `evaluation.datasets`, as written in the pipeline."""
    intervals: Sequence[EvalInterval]
    device: str = "cpu"

    @property
    def evaluation_id(self) -> str:
        """Equal for equal requests, different for others; safe as a file name."""
        asked = [self.run_id, self.trigger_id, self.model_id, self.handler, self.device, self.dataset]
        asked.append(sorted({(i.start, i.end, i.anchor) for i in self.intervals}))
        digest = hashlib.sha256(_canonical(asked).encode()).hexdigest()
        return f"{self.run_id}-{self.trigger_id}-{digest[:20]}"


@dataclass(frozen=True, slots=True)
class EvaluationStatus:
    """`error` and `error_reason` (see modyn.errors) are set once failed or stopped."""

    evaluation_id: str
    state: EvaluationState
    samples_seen: int = 0
    samples_total: int = 0
    """0 = not known yet."""
    error: str = ""
    error_reason: str = ""

    def to_error(self) -> ModynError:
        """The error that ended a failed or stopped evaluation, in its own class."""
        return BY_REASON.get(self.error_reason, ModynError)(self.error or f"evaluation {self.evaluation_id} failed")


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The value of one metric of one model on one interval. None: undefined, `note` says why."""

    run_id: RunId
    trigger_id: int
    model_id: int
    handler: str
    dataset: str
    interval: EvalInterval
    metric: str
    value: float | None
    note: str
    num_samples: int
    """Samples that the value was computed over."""


class EvaluatorClient(SectionClient):
    """Calls of the evaluator, which acts on `evaluation.device` and `evaluation.datasets`. All may be repeated."""

    _Stub = evaluator_pb2_grpc.EvaluatorStub

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        """Start an evaluation, or find the one that runs or has finished. One that failed or was stopped is started again."""
        return status_from_proto(self._stub.Start(request_to_proto(request)))

    def watch(self, evaluation_id: str) -> Iterator[EvaluationStatus]:
        """Its status now and on every change, at most a few times a second, up to a final one. NotFoundError if it is unknown."""
        for status in self._stub.Watch(evaluator_pb2.EvaluationId(evaluation_id=evaluation_id)):
            yield status_from_proto(status)

    def stop(self, evaluation_id: str) -> None:
        """Stop an evaluation; nothing happens if it has ended. NotFoundError if it is unknown."""
        self._stub.Stop(evaluator_pb2.EvaluationId(evaluation_id=evaluation_id))

    def results(self, run_id: RunId) -> list[EvaluationResult]:
        """All results of a run, by trigger, handler, dataset, metric and interval."""
        return [result_from_proto(r) for r in self._stub.Results(evaluator_pb2.ResultsRequest(run_id=run_id))]


def _canonical(value: object) -> str:
    """JSON in one form only, before and after the wire: whole numbers come back from there as int."""
    text = json.dumps(value, sort_keys=True, default=str)
    return json.dumps(
        json.loads(text, parse_float=lambda n: int(float(n)) if float(n).is_integer() else float(n)), sort_keys=True
    )


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
