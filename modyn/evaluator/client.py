"""Typed client of the evaluator.

An evaluation scores one model on one entry of `evaluation.datasets`, over the intervals of one handler. The id of an evaluation is derived from the
request, so that starting is idempotent: a finished evaluation is not computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from modyn.config.promotion import PromotionCondition
from modyn.errors import BY_REASON, ConfigError, ModynError
from modyn.evaluator.records import (
    ATC,
    DOC,
    ESTIMATED_METRICS,
    AtPositions,
    DriftDistance,
    DriftQuestion,
    DriftRequest,
    InIntervals,
    Measured,
    MeasuredDrift,
    MeasureRequest,
    OfKeys,
    OutputKind,
    Question,
    Rows,
    SampleSource,
    Score,
    WindowPair,
)
from modyn.evaluator.wire import measure_request_to_proto, measured_drift_from_proto, part_from_proto
from modyn.json_codec import json_digest, whole_numbers
from modyn.proto import evaluator_pb2, evaluator_pb2_grpc
from modyn.records import EvalInterval, JobState, RunId
from modyn.rpc.channel import ResponseStream
from modyn.rpc.client import SectionClient
from modyn.rpc.retry import CancellationToken
from modyn.rpc.wire import from_message, to_message

__all__ = [
    "ATC",
    "DOC",
    "ESTIMATED_METRICS",
    "AtPositions",
    "DriftDistance",
    "DriftQuestion",
    "DriftRequest",
    "EvaluationRequest",
    "EvaluationResult",
    "EvaluationStatus",
    "EvaluatorClient",
    "InIntervals",
    "MeasureRequest",
    "Measured",
    "MeasuredDrift",
    "OfKeys",
    "OutputKind",
    "Question",
    "Rows",
    "SampleSource",
    "Score",
    "WindowPair",
]

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """Request to score one model on one dataset over the intervals of one handler. Intervals may overlap; equal intervals count once."""

    run_id: RunId
    trigger_id: int
    model_id: int
    handler: str
    dataset: Mapping[str, Any]
    """One entry of `evaluation.datasets`, as written in the pipeline."""
    intervals: Sequence[EvalInterval]
    device: str = "cpu"
    cache: Mapping[str, Any] = field(default_factory=dict)
    """Section `cache` of the pipeline. The section does not change scores, so the id does not depend on this section."""
    dataset_identity: str = ""
    """Identity of the expected registration of the dataset; another registration is refused. Empty accepts any registration."""

    @property
    def evaluation_id(self) -> str:
        """Compute the id of the evaluation. Equal requests have equal ids, even after a transfer over the network. The id is a valid file name."""
        intervals = sorted({(i.start, i.end, i.anchor) for i in self.intervals})
        asked = [self.run_id, self.trigger_id, self.model_id, self.handler, self.device, whole_numbers(self.dataset), intervals]
        asked += filter(None, [self.dataset_identity])
        return f"{self.run_id}-{self.trigger_id}-{json_digest(asked)[:20]}"

    def __str__(self) -> str:
        """Name this evaluation in messages."""
        return (
            f"evaluation of run {self.run_id}, trigger {self.trigger_id}, model {self.model_id} "
            f"on dataset '{self.dataset['dataset_id']}'"
        )


@dataclass(frozen=True, slots=True)
class EvaluationStatus:
    """Progress and state of an evaluation. `error` and `error_reason` (see modyn.errors) are set if the evaluation failed or was stopped."""

    evaluation_id: str
    state: JobState
    samples_seen: int = 0
    samples_total: int = 0
    """Number of samples of the evaluation; 0 until the number is known."""
    error: str = ""
    error_reason: str = ""

    def to_error(self) -> ModynError:
        """Return the error of a failed or stopped evaluation, as an instance of the class for `error_reason`."""
        return BY_REASON.get(self.error_reason, ModynError)(self.error or f"evaluation {self.evaluation_id} failed")


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The value of one metric of one model on one interval. A value of None is undefined, and `note` gives the reason."""

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
    """Number of samples that the value was computed from."""
    dataset_identity: str = ""
    """Identity of the registered dataset whose samples were scored. Empty if the identity is not known."""
    num_deleted: int | None = None
    """Number of samples of the dataset that were deleted before the evaluation; None if unknown. Results with different numbers may come from
    different samples.
    """


def error_metrics(datasets: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return (dataset, label) of each metric for which lower values are better.

    Args: datasets: entries of `evaluation.datasets`. Metrics of packages that are not installed here are left out.
    """
    found = set()
    for entry in datasets:
        try:
            directions = metric_directions(entry)
        except ConfigError:
            continue
        found |= {(str(entry["dataset_id"]), label) for label, low_is_good in directions.items() if low_is_good}
    return found


def metric_directions(dataset: Mapping[str, Any]) -> dict[str, bool]:
    """Return for each label whether lower values of the metric are better. Args: dataset: an entry of `evaluation.datasets`. Raises ConfigError."""
    from modyn.evaluator.config import load_dataset
    from modyn.evaluator.metrics.metrics import lower_is_better

    loaded = load_dataset(dataset)
    return {label: lower_is_better(section) for label, section in zip(loaded.metric_labels(), loaded.metrics, strict=True)}


def check_ranges(conditions: Sequence[PromotionCondition], entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConfigError for a condition whose number is outside the range of its metric. Args: entries: see `evaluated_entries`."""
    from modyn.evaluator.config import beyond_range

    for each in conditions:
        metric = next(metric for metric in entries[each.dataset]["metrics"] if metric["label"] == each.metric)
        if message := beyond_range(each, metric):
            raise ConfigError(message)


class EvaluatorClient(SectionClient):
    """Client of the evaluator, which uses the sections `evaluation.device` and `evaluation.datasets`. All calls may be repeated."""

    _Stub = evaluator_pb2_grpc.EvaluatorStub

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        """Start an evaluation, or return the status if the evaluation is running or finished. A failed or stopped evaluation is started again."""
        return from_message(self._stub.Start(to_message(request, evaluator_pb2.EvaluationRequest)), EvaluationStatus)

    def watch(self, evaluation_id: str) -> Iterator[EvaluationStatus]:
        """Yield the current status, then each change up to the final status, at most a few per second. Raises NotFoundError: the id is unknown."""
        for status in self._stub.Watch(evaluator_pb2.EvaluationId(evaluation_id=evaluation_id)):
            yield from_message(status, EvaluationStatus)

    def stop(self, evaluation_id: str) -> None:
        """Stop an evaluation. A finished evaluation is not changed. Raises NotFoundError if the id is unknown."""
        self._stub.Stop(evaluator_pb2.EvaluationId(evaluation_id=evaluation_id))

    def delete_run(self, run_id: RunId, model_ids: Sequence[int]) -> None:
        """Stop the evaluations of a run, and remove the results and the kept outputs of the run's models. The call may be repeated.

        Args: model_ids: all models of the run.
        Raises: UnavailableError: an evaluation does not stop.
        """
        self._stub.DeleteRun(evaluator_pb2.EvaluatedRun(run_id=run_id, model_ids=list(model_ids)))

    def measure(self, request: MeasureRequest, token: CancellationToken | None = None) -> Measured:
        """Pass the samples of a source through a model, and wait for the result. Outputs are kept, so that each sample is passed through the model
        only once.

        Args: token: cancels the call and the pass.
        Raises: ConfigError, InvalidArgumentError: the section or the source is wrong. NotFoundError: the dataset, the model or a key does not
        exist, or another dataset has this name. UnavailableError: too many passes are running.
        """
        stream = self._stub.Measure(measure_request_to_proto(request))
        parts = [part_from_proto(part) for part in _all_of(stream, token)]
        scores = tuple(part for part in parts if isinstance(part, Score))
        return Measured(scores, Rows.concatenate([part for part in parts if isinstance(part, Rows)]))

    def measure_drift(self, request: DriftRequest, token: CancellationToken | None = None) -> MeasuredDrift:
        """Measure the distance between two windows of a run's stream, and wait for the result. Later questions in the same session reuse the outputs
        of the model.

        Args: token: cancels the call and the job.
        Raises: ConfigError, InvalidArgumentError: the request is wrong. NotFoundError: the dataset, the run or the model does not exist. DataError:
        a compared value is not finite. UnavailableError: too many passes are running. WorkerDiedError: the worker was killed; the call may be
        repeated.
        """
        (answer,) = self.measure_drifts(replace(request, pairs=()), token)
        return answer

    def measure_drifts(self, request: DriftRequest, token: CancellationToken | None = None) -> list[MeasuredDrift]:
        """Answer the question for each of `request.pairs` in one call, in order. Data that several pairs need is computed once.

        Args and errors: see `measure_drift`. The call raises the error of the first pair that cannot be measured.
        """
        answers = _all_of(self._stub.MeasureDrift(to_message(request, evaluator_pb2.DriftRequest)), token)
        return [measured_drift_from_proto(answer) for answer in answers]

    def results(self, run_id: RunId, evaluation_ids: Sequence[str] = ()) -> list[EvaluationResult]:
        """Return all results of a run, ordered by trigger, handler, dataset, metric and interval. Args: evaluation_ids: return only results of
        these evaluations; empty to return all.
        """
        stream = self._stub.Results(evaluator_pb2.ResultsRequest(run_id=run_id, evaluation_ids=evaluation_ids))
        return [from_message(result, EvaluationResult) for result in stream]


def _all_of(stream: ResponseStream[M], token: CancellationToken | None) -> list[M]:
    """Return all messages of a stream. If the token is cancelled, raise its cause."""
    unregister = token.on_cancel(lambda _: stream.cancel()) if token is not None else lambda: None
    try:
        return list(stream)
    except ModynError:
        # `check` raises the cause of the cancellation, which is more specific than the error of the cancelled stream.
        if token is not None:
            token.check()
        raise
    finally:
        unregister()
