"""The evaluator's client over memory."""

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
    """A value that depends on the trigger and the interval and on nothing else, over 10 samples."""
    return ((request.trigger_id * 31 + interval.anchor * 7 + len(metric)) % 101) / 100, 10


def drift_by_windows(request: DriftRequest) -> MeasuredDrift:
    """A distance in [0, 1) that depends on the windows, the metric's name and the model and on nothing else, over all positions."""
    asked = request.question
    numbers = (asked.reference.start, asked.reference.stop, asked.current.start, asked.current.stop, asked.model_id or 0)
    base = sum(weight * number for weight, number in zip((3, 5, 7, 11, 13), numbers, strict=True))
    distances = {name: DriftDistance((base + 17 * len(name)) % 101 / 101) for name in asked.metrics}
    num_reference, num_current = (window.stop - window.start for window in (asked.reference, asked.current))
    return MeasuredDrift(distances if num_reference and num_current else {}, num_reference, num_current)


class FakeEvaluator(FakeSectionClient):
    """Use in place of an EvaluatorClient. An evaluation finishes as soon as it is started.

    Args: score: value (None = undefined) and number of samples of (request, interval, metric). fail: makes evaluations fail: their error
    message, or None.

    `measured` makes what `measure` returns: by default scores by `score`, and no rows; `drift` makes what `measure_drift`
    returns, and `drift_requests` holds what it was asked, in order. `started` holds the requests that were really carried
    out, in order. The data are the same for ever, so that nothing is evaluated again because of them.
    """

    def __init__(self, score: Score = score_by_model, fail: Callable[[EvaluationRequest], str | None] = lambda _: None) -> None:
        self.score = score
        self.fail = fail
        self.measured: Callable[[MeasureRequest], Measured] = self._measured
        self.drift: Callable[[DriftRequest], MeasuredDrift] = drift_by_windows
        self.drift_requests: list[DriftRequest] = []
        self.started: list[EvaluationRequest] = []
        self._statuses: dict[str, EvaluationStatus] = {}
        self._results: dict[str, list[EvaluationResult]] = {}
        self._lock = threading.Lock()  # Protects the fields above: the supervisor calls from several threads.

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        """Carry the evaluation out at once; again for one that finished returns its status, one that failed is tried again.

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
        """The one status, which is final. Raises NotFoundError."""
        if evaluation_id not in self._statuses:
            raise NotFoundError(f"there is no evaluation '{evaluation_id}'; start it first")
        yield self._statuses[evaluation_id]

    def stop(self, evaluation_id: str) -> None:
        """Without effect, as every evaluation has ended. Raises NotFoundError."""
        next(self.watch(evaluation_id))

    def delete_run(self, run_id: RunId, model_ids: Sequence[int]) -> None:
        """Forget the evaluations of a run and their results."""
        with self._lock:
            for id_ in {asked.evaluation_id for asked in self.started if asked.run_id == run_id}:
                self._statuses.pop(id_, None)
                self._results.pop(id_, None)

    def measure(self, request: MeasureRequest, token: CancellationToken | None = None) -> Measured:
        """What `self.measured` returns for the request. Raises InvalidArgumentError: the run id or the source is wrong; the token's cause."""
        if token is not None:
            token.check()
        check_run_id(request.run_id)
        return self.measured(replace(request, source=checked_source(request.source)))

    def measure_drift(self, request: DriftRequest, token: CancellationToken | None = None) -> MeasuredDrift:
        """What `self.drift` returns for the request. Raises: InvalidArgumentError: the request is wrong; the token's cause."""
        (answer,) = self.measure_drifts(replace(request, pairs=()), token)
        return answer

    def measure_drifts(self, request: DriftRequest, token: CancellationToken | None = None) -> list[MeasuredDrift]:
        """What `self.drift` returns for each pair of windows, asked as a question about this pair. Raises: as `measure_drift`."""
        if token is not None:
            token.check()
        check_run_id(request.run_id)
        check_request(request)
        with self._lock:
            self.drift_requests.append(request)
        questions = [replace(request.question, reference=pair.reference, current=pair.current) for pair in request.asked_pairs]
        return [self.drift(replace(request, question=question, pairs=())) for question in questions]

    def results(self, run_id: RunId, evaluation_ids: Sequence[str] = ()) -> list[EvaluationResult]:
        """All results of a run, by trigger, handler, dataset and its registration, metric and interval; of those of one cell the newest.

        Args: evaluation_ids: only of these; empty: all.
        """
        with self._lock:
            known = [results for id_, results in self._results.items() if not evaluation_ids or id_ in evaluation_ids]
        found = [result for results in known for result in results if result.run_id == run_id]
        return [result for _, result in sorted({_cell(result): result for result in found}.items())]

    def _measured(self, request: MeasureRequest) -> Measured:
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
    """What the results of each metric are called: as it says, or by its name alone."""
    return [str(metric.get("label", metric["name"])) for metric in dataset.get("metrics", [])]


def _cell(result: EvaluationResult) -> tuple[Any, ...]:
    interval = (result.interval.start, result.interval.end, result.interval.anchor)
    where = result.trigger_id, result.handler, result.dataset, result.model_id, result.dataset_identity
    return *where, result.metric, *interval
