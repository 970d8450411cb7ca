"""The evaluator in memory: the same methods, the same errors, and a function in place of models and data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from modyn.config.base import Problem
from modyn.errors import NotFoundError
from modyn.evaluator.client import EvaluationRequest, EvaluationResult, EvaluationState, EvaluationStatus
from modyn.records import EvalInterval, RunId
from modyn.registry import Plugin
from modyn.testing.fake_client import FakeClient

Score = Callable[[EvaluationRequest, EvalInterval, str], tuple[float | None, int]]


def score_by_model(request: EvaluationRequest, interval: EvalInterval, metric: str) -> tuple[float | None, int]:
    """A value that depends on the trigger and the interval and on nothing else, over 10 samples."""
    return ((request.trigger_id * 31 + interval.anchor * 7 + len(metric)) % 101) / 100, 10


class FakeEvaluator(FakeClient):
    """Use in place of an EvaluatorClient. An evaluation finishes as soon as it is started.

    problems: what `validate` answers. score: value (None = undefined) and number of samples of (request, interval, metric).
    fail: makes evaluations fail: their error message, or None. `started` holds the requests that were really carried out, in order.
    """

    installed = (Plugin("modyn.metrics", "Accuracy", "in memory", "modyn"),)

    def __init__(
        self,
        problems: tuple[Problem, ...] = (),
        score: Score = score_by_model,
        fail: Callable[[EvaluationRequest], str | None] = lambda _: None,
    ) -> None:
        self.problems = problems
        self.score = score
        self.fail = fail
        self.started: list[EvaluationRequest] = []
        self._statuses: dict[str, EvaluationStatus] = {}
        self._results: dict[tuple[str, EvalInterval, str], EvaluationResult] = {}
        self._lock = threading.Lock()

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        return [*self.problems] if pipeline.get("evaluation") else []

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        with self._lock:
            id_ = request.evaluation_id
            known = self._statuses.get(id_)
            if known is not None and known.state is EvaluationState.FINISHED:
                return known
            self.started.append(request)
            error = self.fail(request)
            if error is not None:
                self._statuses[id_] = EvaluationStatus(id_, EvaluationState.FAILED, error=error, error_reason="INTERNAL")
                return self._statuses[id_]
            total = 0
            for interval in dict.fromkeys(request.intervals):
                for metric in request.dataset.get("metrics", []):
                    value, num_samples = self.score(request, interval, metric["name"])
                    total = max(total, num_samples)
                    self._results[(id_, interval, metric["name"])] = EvaluationResult(
                        run_id=request.run_id,
                        trigger_id=request.trigger_id,
                        model_id=request.model_id,
                        handler=request.handler,
                        dataset=str(request.dataset.get("dataset_id", "")),
                        interval=interval,
                        metric=metric["name"],
                        value=value,
                        note="" if value is not None else "undefined",
                        num_samples=num_samples,
                    )
            self._statuses[id_] = EvaluationStatus(id_, EvaluationState.FINISHED, total, total)
            return self._statuses[id_]

    def watch(self, evaluation_id: str) -> Iterator[EvaluationStatus]:
        yield self._found(evaluation_id)

    def stop(self, evaluation_id: str) -> None:
        self._found(evaluation_id)

    def results(self, run_id: RunId) -> list[EvaluationResult]:
        with self._lock:
            return [result for result in self._results.values() if result.run_id == run_id]

    def _found(self, evaluation_id: str) -> EvaluationStatus:
        with self._lock:
            if evaluation_id not in self._statuses:
                raise NotFoundError(f"there is no evaluation '{evaluation_id}'; start it first")
            return self._statuses[evaluation_id]
