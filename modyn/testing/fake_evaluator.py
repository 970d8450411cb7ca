"""An in-memory client of the evaluator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from modyn.errors import NotFoundError
from modyn.evaluator.client import (
    DriftDistance,
    DriftRequest,
    EvaluationRequest,
    EvaluationResult,
    EvaluationStatus,
    InIntervals,
    Measured,
    MeasuredDrift,
    MeasureRequest,
    OutputKind,
)
from modyn.evaluator.client import Score as MetricScore
from modyn.evaluator.records import check_intervals, check_request, checked_source
from modyn.records import EvalInterval, Interval, JobState, RunId
from modyn.rpc.retry import CancellationToken
from modyn.run_ids import check_run_id
from modyn.testing.fakes import FakeSectionClient

Score = Callable[[EvaluationRequest, EvalInterval, str], tuple[float | None, int]]


def score_by_model(request: EvaluationRequest, interval: EvalInterval, metric: str) -> tuple[float | None, int]:
    """Return a score that depends only on the trigger, the anchor and the length of the metric's name, and 10 as the number of samples."""
    return ((request.trigger_id * 31 + interval.anchor * 7 + len(metric)) % 101) / 100, 10


def drift_by_windows(request: DriftRequest) -> MeasuredDrift:
    """Return a distance in [0, 1) for each metric. The distance depends only on the windows, the metric's name and the model."""
    asked = request.question
    numbers = (asked.reference.start, asked.reference.stop, asked.current.start, asked.current.stop, asked.model_id or 0)
    base = sum(weight * number for weight, number in zip((3, 5, 7, 11, 13), numbers, strict=True))
    distances = {name: DriftDistance((base + 17 * len(name)) % 101 / 101) for name in asked.metrics}
    num_reference, num_current = (window.stop - window.start for window in (asked.reference, asked.current))
    return MeasuredDrift(distances if num_reference and num_current else {}, num_reference, num_current)


class FakeEvaluator(FakeSectionClient):
    """A fake that replaces an EvaluatorClient. An evaluation finishes when it is started. The data never change, so no evaluation is repeated because
    of new data.

    Args: score: function of request, interval and metric that returns a value (None: undefined) and a number of samples. fail: function that returns
    the error message of an evaluation; None: the evaluation succeeds.

    The function `measured` makes the results of `measure`: by default, scores by `score`, and no rows. The function `drift` makes the results of
    `measure_drift`, whose requests are in `drift_requests`. `started` has the requests of all evaluations that were really made, in order.
    """

    def __init__(self, score: Score = score_by_model, fail: Callable[[EvaluationRequest], str | None] = lambda _: None) -> None:
        self.score = score
        self.fail = fail
        self.measured: Callable[[MeasureRequest], Measured] = self._measure
        self.drift: Callable[[DriftRequest], MeasuredDrift] = drift_by_windows
        self.drift_requests: list[DriftRequest] = []
        self.started: list[EvaluationRequest] = []
        self._statuses: dict[str, EvaluationStatus] = {}
        self._results: dict[str, list[EvaluationResult]] = {}
        self._lock = threading.Lock()  # Protects the fields above, because the supervisor calls from several threads.

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        """Run the evaluation immediately. A finished evaluation keeps its status, and a failed evaluation runs again.

        Raises: InvalidArgumentError: the run id or an interval is wrong.
        """
        check_run_id(request.run_id)
        check_intervals(request.intervals)
        with self._lock:
            id_ = request.evaluation_id
            if id_ not in self._results:
                self.started.append(request)
                error = self.fail(request)
                if error is not None:
                    self._statuses[id_] = EvaluationStatus(id_, JobState.FAILED, error=error, error_reason="INTERNAL")
                    return self._statuses[id_]
                self._results[id_] = list(self._evaluate(request))
                total = max((result.num_samples for result in self._results[id_]), default=0)
                self._statuses[id_] = EvaluationStatus(id_, JobState.FINISHED, total, total)
            return self._statuses[id_]

    def watch(self, evaluation_id: str) -> Iterator[EvaluationStatus]:
        """Yield the only status, which is final. Raises NotFoundError."""
        if evaluation_id not in self._statuses:
            raise NotFoundError(f"there is no evaluation '{evaluation_id}'; start it first")
        yield self._statuses[evaluation_id]

    def stop(self, evaluation_id: str) -> None:
        """Do nothing, because every evaluation has ended. Raises NotFoundError."""
        next(self.watch(evaluation_id))

    def delete_run(self, run_id: RunId, model_ids: Sequence[int]) -> None:
        """Remove the evaluations of a run and their results."""
        with self._lock:
            for id_ in {asked.evaluation_id for asked in self.started if asked.run_id == run_id}:
                self._statuses.pop(id_, None)
                self._results.pop(id_, None)

    def measure(self, request: MeasureRequest, token: CancellationToken | None = None) -> Measured:
        """Return the result of `measured`. Raises: InvalidArgumentError: the run id or the source is wrong. The cause of a cancelled `token`."""
        if token is not None:
            token.check()
        check_run_id(request.run_id)
        return self.measured(replace(request, source=checked_source(request.source)))

    def measure_drift(self, request: DriftRequest, token: CancellationToken | None = None) -> MeasuredDrift:
        """Return the result of `drift`. Raises: InvalidArgumentError: the request is wrong. The cause of a cancelled `token`."""
        (answer,) = self.measure_drifts(replace(request, pairs=()), token)
        return answer

    def measure_drifts(self, request: DriftRequest, token: CancellationToken | None = None) -> list[MeasuredDrift]:
        """Return the result of `drift` for each pair of windows, as if a request had only this pair. Raises: see `measure_drift`."""
        if token is not None:
            token.check()
        check_run_id(request.run_id)
        check_request(request)
        with self._lock:
            self.drift_requests.append(request)
        questions = [replace(request.question, reference=pair.reference, current=pair.current) for pair in request.asked_pairs]
        return [self.drift(replace(request, question=question, pairs=())) for question in questions]

    def results(self, run_id: RunId, evaluation_ids: Sequence[str] = ()) -> list[EvaluationResult]:
        """Return all results of a run. If several results have the same trigger, handler, dataset, registration, metric and interval, the newest
        result counts.

        Args: evaluation_ids: return only results of these evaluations; empty: return all.
        """
        with self._lock:
            known = [results for id_, results in self._results.items() if not evaluation_ids or id_ in evaluation_ids]
        found = [result for results in known for result in results if result.run_id == run_id]
        return [result for _, result in sorted({_cell(result): result for result in found}.items())]

    def _measure(self, request: MeasureRequest) -> Measured:
        if request.kind is not OutputKind.SCORES:
            return Measured()
        asked = EvaluationRequest(request.run_id, 0, request.model_id, "", request.dataset, ())
        intervals = request.source.intervals if isinstance(request.source, InIntervals) else [Interval()]
        scores = []
        for interval in intervals:
            for metric in _labels(request.dataset):
                value, number = self.score(asked, EvalInterval(interval.start, interval.end, interval.start), metric)
                scores.append(MetricScore(interval, metric, value, "" if value is not None else "undefined", number, number))
        return Measured(tuple(scores))

    def _evaluate(self, request: EvaluationRequest) -> Iterator[EvaluationResult]:
        dataset = str(request.dataset.get("dataset_id", ""))
        for interval in dict.fromkeys(request.intervals):
            for metric in _labels(request.dataset):
                value, num_samples = self.score(request, interval, metric)
                yield EvaluationResult(
                    request.run_id,
                    request.trigger_id,
                    request.model_id,
                    request.handler,
                    dataset,
                    interval,
                    metric,
                    value,
                    "" if value is not None else "undefined",
                    num_samples,
                    request.dataset_identity,
                )


def _labels(dataset: Mapping[str, Any]) -> list[str]:
    """Return the label of each metric's results: its `label`, or its name."""
    return [str(metric.get("label", metric["name"])) for metric in dataset.get("metrics", [])]


def _cell(result: EvaluationResult) -> tuple[Any, ...]:
    interval = (result.interval.start, result.interval.end, result.interval.anchor)
    where = result.trigger_id, result.handler, result.dataset, result.model_id, result.dataset_identity
    return *where, result.metric, *interval
