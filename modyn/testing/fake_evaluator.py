"""The evaluator's client over memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from modyn.errors import NotFoundError
from modyn.evaluator.client import (
    EvaluationRequest,
    EvaluationResult,
    EvaluationState,
    EvaluationStatus,
    Measured,
    MeasureRequest,
)
from modyn.records import EvalInterval, RunId
from modyn.rpc.retry import CancellationToken
from modyn.testing.fakes import FakeSectionClient

Score = Callable[[EvaluationRequest, EvalInterval, str], tuple[float | None, int]]


def score_by_model(request: EvaluationRequest, interval: EvalInterval, metric: str) -> tuple[float | None, int]:
    """A value that depends on the trigger and the interval and on nothing else, over 10 samples."""
    return ((request.trigger_id * 31 + interval.anchor * 7 + len(metric)) % 101) / 100, 10


class FakeEvaluator(FakeSectionClient):
    """Use in place of an EvaluatorClient. An evaluation finishes as soon as it is started.

    score: value (None = undefined) and number of samples of (request, interval, metric). fail: makes evaluations fail: their error message,
    or None. `measured` makes what `measure` returns, by default nothing. `started` holds the requests that were really carried out, in order.
    """

    def __init__(self, score: Score = score_by_model, fail: Callable[[EvaluationRequest], str | None] = lambda _: None) -> None:
        self.score = score
        self.fail = fail
        self.measured: Callable[[MeasureRequest], Measured] = lambda _: Measured()
        self.started: list[EvaluationRequest] = []
        self._statuses: dict[str, EvaluationStatus] = {}
        self._results: dict[str, list[EvaluationResult]] = {}
        self._lock = threading.Lock()

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        """Carry the evaluation out at once; again for one that finished returns its status, one that failed is tried again."""
        with self._lock:
            id_ = request.evaluation_id
            if id_ not in self._results:
                self.started.append(request)
                error = self.fail(request)
                if error is not None:
                    self._statuses[id_] = EvaluationStatus(id_, EvaluationState.FAILED, error=error, error_reason="INTERNAL")
                    return self._statuses[id_]
                self._results[id_] = list(self._evaluate(request))
                total = max((result.num_samples for result in self._results[id_]), default=0)
                self._statuses[id_] = EvaluationStatus(id_, EvaluationState.FINISHED, total, total)
            return self._statuses[id_]

    def watch(self, evaluation_id: str) -> Iterator[EvaluationStatus]:
        """The one status, which is final. Raises NotFoundError."""
        if evaluation_id not in self._statuses:
            raise NotFoundError(f"there is no evaluation '{evaluation_id}'; start it first")
        yield self._statuses[evaluation_id]

    def stop(self, evaluation_id: str) -> None:
        """Without effect, as every evaluation has ended. Raises NotFoundError."""
        next(self.watch(evaluation_id))

    def delete_run(self, run_id: RunId, model_ids: Sequence[int]) -> None:
        """Forget the results of a run."""
        with self._lock:
            for id_ in [id_ for id_ in self._statuses if id_.startswith(f"{run_id}-")]:
                del self._statuses[id_]
                self._results.pop(id_, None)

    def measure(self, request: MeasureRequest, token: CancellationToken | None = None) -> Measured:
        """What `self.measured` returns for the request. Raises the token's cause."""
        if token is not None:
            token.check()
        return self.measured(request)

    def results(self, run_id: RunId) -> list[EvaluationResult]:
        """All results of a run in the order in which they were made."""
        with self._lock:
            return [result for results in self._results.values() for result in results if result.run_id == run_id]

    def _evaluate(self, request: EvaluationRequest) -> Iterator[EvaluationResult]:
        dataset = str(request.dataset.get("dataset_id", ""))
        for interval in dict.fromkeys(request.intervals):
            for metric in request.dataset.get("metrics", []):
                value, num_samples = self.score(request, interval, metric["name"])
                yield EvaluationResult(
                    request.run_id,
                    request.trigger_id,
                    request.model_id,
                    request.handler,
                    dataset,
                    interval,
                    metric["name"],
                    value,
                    "" if value is not None else "undefined",
                    num_samples,
                )
