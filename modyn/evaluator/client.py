"""Typed client of the evaluator: start evaluations, watch them, read their results.

Starting is idempotent: what is evaluated already is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Iterator

from modyn.evaluator.request import EvaluationRequest, EvaluationResult, EvaluationState, EvaluationStatus
from modyn.proto import evaluator_pb2, evaluator_pb2_grpc
from modyn.records import RunId
from modyn.rpc.client import SectionClient
from modyn.rpc.wire import from_message, to_message

__all__ = ["EvaluationRequest", "EvaluationResult", "EvaluationState", "EvaluationStatus", "EvaluatorClient"]


class EvaluatorClient(SectionClient):
    """Calls of the evaluator, which acts on `evaluation.device` and `evaluation.datasets`. All may be repeated."""

    _Stub = evaluator_pb2_grpc.EvaluatorStub

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        """Start an evaluation, or find the one that runs or has finished. One that failed or was stopped is started again."""
        return from_message(self._stub.Start(to_message(request, evaluator_pb2.EvaluationRequest)), EvaluationStatus)

    def watch(self, evaluation_id: str) -> Iterator[EvaluationStatus]:
        """Its status now and on every change, at most a few times a second, up to a final one. NotFoundError if it is unknown."""
        for status in self._stub.Watch(evaluator_pb2.EvaluationId(evaluation_id=evaluation_id)):
            yield from_message(status, EvaluationStatus)

    def stop(self, evaluation_id: str) -> None:
        """Stop an evaluation; nothing happens if it has ended. NotFoundError if it is unknown."""
        self._stub.Stop(evaluator_pb2.EvaluationId(evaluation_id=evaluation_id))

    def results(self, run_id: RunId) -> list[EvaluationResult]:
        """All results of a run, by trigger, handler, dataset, metric and interval."""
        stream = self._stub.Results(evaluator_pb2.ResultsRequest(run_id=run_id))
        return [from_message(result, EvaluationResult) for result in stream]
