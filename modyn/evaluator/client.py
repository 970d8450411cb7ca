"""Typed client of the evaluator, and the records of what is asked of an evaluation and what comes of it.

An evaluation is one model on one entry of `evaluation.datasets`, over the intervals of one handler. Its id is derived from the request, so
that starting is idempotent: what is evaluated already is not evaluated again.
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
    ComparedData,
    DriftDistance,
    DriftQuestion,
    DriftRequest,
    InIntervals,
    Measured,
    MeasuredDrift,
    MeasureRequest,
    OfKeys,
    OutputKind,
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
    "ComparedData",
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
    "Rows",
    "SampleSource",
    "Score",
    "WindowPair",
]

M = TypeVar("M")


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
    cache: Mapping[str, Any] = field(default_factory=dict)
    """Section `cache` of the pipeline. It changes no score, and so not the id."""
    dataset_identity: str = ""
    """Identity of the registered dataset that is meant; another one is refused. Empty: any."""

    @property
    def evaluation_id(self) -> str:
        """Equal for equal requests, also after the wire, different for others; safe as a file name."""
        intervals = sorted({(i.start, i.end, i.anchor) for i in self.intervals})
        asked = [self.run_id, self.trigger_id, self.model_id, self.handler, self.device, whole_numbers(self.dataset), intervals]
        asked += filter(None, [self.dataset_identity])
        return f"{self.run_id}-{self.trigger_id}-{json_digest(asked)[:20]}"

    def __str__(self) -> str:
        """What messages call this evaluation."""
        return (
            f"evaluation of run {self.run_id}, trigger {self.trigger_id}, model {self.model_id} "
            f"on dataset '{self.dataset['dataset_id']}'"
        )


@dataclass(frozen=True, slots=True)
class EvaluationStatus:
    """`error` and `error_reason` (see modyn.errors) are set once failed or stopped."""

    evaluation_id: str
    state: JobState
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
    dataset_identity: str = ""
    """Identity of the registered dataset whose samples were scored; empty: not known."""
    num_deleted: int | None = None
    """Samples of the dataset that were deleted until then; results with another number may be of other samples. None: not known."""


def error_metrics(datasets: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """(dataset, label) of the metrics whose low values are the good ones. Args: datasets: entries of `evaluation.datasets`; those with a
    metric of a package that is not installed here are left out."""
    found = set()
    for entry in datasets:
        try:
            directions = metric_directions(entry)
        except ConfigError:
            continue
        found |= {(str(entry["dataset_id"]), label) for label, low_is_good in directions.items() if low_is_good}
    return found


def metric_directions(dataset: Mapping[str, Any]) -> dict[str, bool]:
    """Return by label whether low values of a metric are the good ones. Args: dataset: an entry of `evaluation.datasets`. Raises ConfigError."""
    from modyn.evaluator.config import load_dataset
    from modyn.evaluator.metrics import lower_is_better

    loaded = load_dataset(dataset)
    return {label: lower_is_better(section) for label, section in zip(loaded.metric_labels(), loaded.metrics, strict=True)}


def check_ranges(conditions: Sequence[PromotionCondition], entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConfigError for a number of a condition that no value of its metric can have. Args: entries: see `evaluated_entries`."""
    from modyn.evaluator.config import beyond_range

    for each in conditions:
        metric = next(metric for metric in entries[each.dataset]["metrics"] if metric["label"] == each.metric)
        if message := beyond_range(each, metric):
            raise ConfigError(message)


class EvaluatorClient(SectionClient):
    """Calls of the evaluator, which acts on `evaluation.device` and `evaluation.datasets`. All may be repeated."""

    _Stub = evaluator_pb2_grpc.EvaluatorStub

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        """Start an evaluation, or find the one that runs or has finished. One that failed or was stopped is started again."""
        return from_message(self._stub.Start(to_message(request, evaluator_pb2.EvaluationRequest)), EvaluationStatus)

    def watch(self, evaluation_id: str) -> Iterator[EvaluationStatus]:
        """Yield its status now and on every change, at most a few times a second, up to a final one. Raises NotFoundError if it is unknown."""
        for status in self._stub.Watch(evaluator_pb2.EvaluationId(evaluation_id=evaluation_id)):
            yield from_message(status, EvaluationStatus)

    def stop(self, evaluation_id: str) -> None:
        """Stop an evaluation; nothing happens if it has ended. NotFoundError if it is unknown."""
        self._stub.Stop(evaluator_pb2.EvaluationId(evaluation_id=evaluation_id))

    def delete_run(self, run_id: RunId, model_ids: Sequence[int]) -> None:
        """End the evaluations of a run, and remove their results and the kept outputs of its models. May be repeated.

        Args: model_ids: all models of the run.
        Raises: UnavailableError: an evaluation does not end.
        """
        self._stub.DeleteRun(evaluator_pb2.EvaluatedRun(run_id=run_id, model_ids=list(model_ids)))

    def measure(self, request: MeasureRequest, token: CancellationToken | None = None) -> Measured:
        """Pass the samples of a source through a model, and wait for the end. Outputs are kept: what was passed before is not passed again.

        Args: token: ends the call and the pass when it is cancelled.
        Raises: ConfigError, InvalidArgumentError: the section or the source is wrong. NotFoundError: there is no such dataset, model or key,
        or another dataset is registered under the name. UnavailableError: too many passes are being made.
        """
        stream = self._stub.Measure(measure_request_to_proto(request))
        parts = [part_from_proto(part) for part in _all_of(stream, token)]
        scores = tuple(part for part in parts if isinstance(part, Score))
        return Measured(scores, Rows.concatenate([part for part in parts if isinstance(part, Rows)]))

    def measure_drift(self, request: DriftRequest, token: CancellationToken | None = None) -> MeasuredDrift:
        """Measure how far two windows of a run's stream lie apart, and wait for the end. What a model made of a sample for an earlier
        question is used again while the worker's session lasts.

        Args: token: ends the call and the work when it is cancelled.
        Raises: ConfigError, InvalidArgumentError: the request is wrong. NotFoundError: there is no such dataset, run or model. DataError: what
        is compared is not finite. UnavailableError: too many passes are being made. WorkerDiedError: the worker was killed; ask again.
        """
        (answer,) = self.measure_drifts(replace(request, pairs=()), token)
        return answer

    def measure_drifts(self, request: DriftRequest, token: CancellationToken | None = None) -> list[MeasuredDrift]:
        """Ask the question about each of `request.pairs` at once, and return the answers in order. What pairs have in common is made once.

        Args, Raises: as `measure_drift`; an error is that of the first pair that cannot be measured.
        """
        answers = _all_of(self._stub.MeasureDrift(to_message(request, evaluator_pb2.DriftRequest)), token)
        return [measured_drift_from_proto(answer) for answer in answers]

    def results(self, run_id: RunId, evaluation_ids: Sequence[str] = ()) -> list[EvaluationResult]:
        """All results of a run, by trigger, handler, dataset, metric and interval. Args: evaluation_ids: only of these; empty: all."""
        stream = self._stub.Results(evaluator_pb2.ResultsRequest(run_id=run_id, evaluation_ids=evaluation_ids))
        return [from_message(result, EvaluationResult) for result in stream]


def _all_of(stream: ResponseStream[M], token: CancellationToken | None) -> list[M]:
    """All messages of a stream, which ends when the token is cancelled; its cause is raised then."""
    unregister = token.on_cancel(lambda _: stream.cancel()) if token is not None else lambda: None
    try:
        return list(stream)
    except ModynError:
        if token is not None:
            token.check()
        raise
    finally:
        unregister()
