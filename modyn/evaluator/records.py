"""Requests for passes of a model over samples, and the results of passes. Other packages import these records from `modyn.evaluator.client`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from modyn.config.trigger_parts import ComparedData
from modyn.errors import InvalidArgumentError
from modyn.records import EvalInterval, Int64Array, Interval, RunId, StreamWindow

ATC: Final = "EstimatedAccuracyATC"
"""Name of the accuracy estimate by average thresholded confidence. A trigger may use this name as a metric."""
DOC: Final = "EstimatedAccuracyDoC"
"""Name of the accuracy estimate by the difference of confidences."""
ESTIMATED_METRICS: Final = (ATC, DOC)
"""Names of scores that need no labels. These scores are not entries of `metrics`."""


class OutputKind(StrEnum):
    """The kind of output of a model's pass over samples."""

    SCORES = "scores"
    """The metrics of the dataset's section: one score for each interval and metric; for keys and positions, one score for each metric."""
    LOGITS = "logits"
    """The output of the last layer, (n, c)."""
    EMBEDDINGS = "embeddings"
    """The input of the last layer, or the model's `embedding`, (n, d)."""
    OUTCOMES = "outcomes"
    """For classifiers, float32 (n, 3): error (0 if the predicted class is the label, else 1), cross-entropy (natural logarithm), and confidence
    (probability of the predicted class). The predicted class has the largest logit. A single logit is the logit of class 1 of two classes."""


@dataclass(frozen=True, slots=True)
class InIntervals:
    """The samples of a dataset in any of these time intervals."""

    intervals: Sequence[Interval]


@dataclass(frozen=True, slots=True, eq=False)
class OfKeys:
    """The samples of these keys, int64 (n,). Each sample counts once; deleted samples are left out."""

    keys: Int64Array


@dataclass(frozen=True, slots=True)
class AtPositions:
    """The samples in windows of a run's stream, as logged by the selector. Each sample counts once; deleted samples are left out."""

    run_id: RunId
    windows: Sequence[StreamWindow]
    """The windows, which may overlap."""


SampleSource = InIntervals | OfKeys | AtPositions
"""The samples of a dataset that are passed through a model."""


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """One pass of one model over the samples of a source."""

    run_id: RunId
    """The run whose user code is used; worker processes are shared within a run."""
    model_id: int
    dataset: Mapping[str, Any]
    """One entry of `evaluation.datasets`, as written in the pipeline."""
    source: SampleSource
    kind: OutputKind = OutputKind.SCORES
    device: str = "cpu"
    cache: Mapping[str, Any] = field(default_factory=dict)
    """Section `cache` of the pipeline."""
    dataset_identity: str = ""
    """Identity of the expected registration of the dataset; another registration is refused. Empty accepts any registration."""

    def __str__(self) -> str:
        """Name this pass in messages."""
        return f"{self.kind} of run {self.run_id}, model {self.model_id} on dataset '{self.dataset['dataset_id']}'"


@dataclass(frozen=True, slots=True)
class WindowPair:
    """Two windows of a run's stream to compare."""

    reference: StreamWindow
    current: StreamWindow


A_co = TypeVar("A_co", covariant=True)


class Question(Generic[A_co]):
    """A question that a trigger policy asks at a check. `A_co`: the type of the answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class DriftQuestion(Question["MeasuredDrift"]):
    """Question for the distance between the distributions of a reference and a current window of a run's stream."""

    reference: StreamWindow
    current: StreamWindow
    metrics: Mapping[str, Mapping[str, Any]]
    """Drift metrics by name, each with `id` and options."""
    data: ComparedData = ComparedData.EMBEDDINGS
    model_id: int | None = None
    """The model that computes the compared data; None if no model is needed."""
    projection: Mapping[str, Any] | None = None
    """Projection of the compared data before the measurement, with `id` and options."""
    sample_size: int | None = None
    """Number of samples to compare from each window, drawn by a hash of `seed` and key; None compares all samples."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DriftDistance:
    """The distance that one drift metric measured between two windows. seconds: time of the metric, without computing embeddings."""

    distance: float
    p_value: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class MeasuredDrift:
    """The answer to a DriftQuestion."""

    distances: Mapping[str, DriftDistance]
    """Distances by name of the metric, without metrics for which a window has too few samples."""
    num_reference: int = 0
    """Number of compared reference samples, without deleted samples and without samples that `sample_size` leaves out."""
    num_current: int = 0
    num_embedded: int = 0
    """Number of samples that were passed through the model for this question; for payloads, number of decoded samples."""


@dataclass(frozen=True, slots=True)
class DriftRequest:
    """A DriftQuestion about the stream of a run."""

    run_id: RunId
    """The run with the stream and the user code."""
    dataset: Mapping[str, Any]
    """A `data` section with `batch_size`, which defines how samples are decoded."""
    question: DriftQuestion
    device: str = "cpu"
    pairs: Sequence[WindowPair] = ()
    """Pairs of windows to measure in place of the question's windows. Empty: measure the question's windows."""
    cache: Mapping[str, Any] = field(default_factory=dict)
    """Section `cache` of the pipeline."""

    @property
    def asked_pairs(self) -> Sequence[WindowPair]:
        """Return the pairs of windows to compare, at least one."""
        return self.pairs or (WindowPair(self.question.reference, self.question.current),)

    def __str__(self) -> str:
        """Name this question in messages."""
        asked = self.question
        model = f", model {asked.model_id}" if asked.data.needs_model else ""
        first, *others = self.asked_pairs
        more = f" and {len(others)} further pairs of windows" if others else ""
        return f"drift of {asked.data} of run {self.run_id}{model}, reference {first.reference}, current {first.current}{more}"


class Rows(NamedTuple):
    """The outputs of a model for n samples. keys, timestamps: int64 (n,). labels: (n, …). outputs: (n, …), as the model returned them."""

    keys: Int64Array
    timestamps: Int64Array
    labels: NDArray[Any]
    outputs: NDArray[Any]

    @property
    def num_bytes(self) -> int:
        """Return the size of the four columns in bytes."""
        return sum(column.nbytes for column in self)

    def take(self, positions: Int64Array) -> Rows:
        """Copy the rows at `positions`, int64 (m,), in that order."""
        return Rows(*(column[positions] for column in self))

    @staticmethod
    def concatenate(chunks: Sequence[Rows]) -> Rows | None:
        """Join the rows of all chunks, ordered by key. Return None if there are no chunks."""
        if not chunks:
            return None
        joined = Rows(*(np.concatenate(columns) for columns in zip(*chunks, strict=True)))
        return joined.take(np.argsort(joined.keys, kind="stable"))


NOT_NUMBERS: Final = "scores are not a number"
"""Part of the note of a score that is undefined because outputs of the model are NaN."""


@dataclass(frozen=True, slots=True)
class Score:
    """The value of one metric over the samples of one interval. A value of None is undefined, and `note` gives the reason."""

    interval: Interval
    metric: str
    """Label of the metric."""
    value: float | None
    note: str
    num_samples: int
    """Number of samples that the value was computed from."""
    num_listed: int
    """Number of samples in the interval when the evaluation listed the samples."""

    @property
    def has_diverged(self) -> bool:
        """Return whether the score is undefined because outputs of the model are NaN."""
        return self.value is None and NOT_NUMBERS in self.note


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a pass: scores, or rows ordered by key."""

    scores: Sequence[Score] = ()
    rows: Rows | None = None
    """The rows, ordered by key; None if scores were requested or there were no samples."""


def check_intervals(intervals: Iterable[Interval | EvalInterval]) -> None:
    """Raise InvalidArgumentError for an interval that ends before it starts."""
    for interval in intervals:
        if interval.start > interval.end:
            raise InvalidArgumentError(f"the interval [{interval.start}, {interval.end}) ends before it starts")


def checked_source(source: SampleSource) -> SampleSource:
    """Return the source with distinct intervals. Raises InvalidArgumentError: an interval or a window ends before it starts, or a window starts
    before 0."""
    match source:
        case InIntervals(intervals):
            check_intervals(intervals)
            return InIntervals(list(dict.fromkeys(Interval(i.start, i.end) for i in intervals)))
        case AtPositions(_, windows):
            check_intervals(window.times for window in windows)
            for window in windows:
                if not 0 <= window.start <= window.stop:
                    raise InvalidArgumentError(
                        f"{window} is not a range of positions: it must start at 0 or later, and not after its end"
                    )
    return source


def check_request(request: DriftRequest) -> None:
    """Raise InvalidArgumentError for an invalid window or `sample_size`, a missing metric or model, or a projection of labels."""
    question = request.question
    windows = [window for pair in request.asked_pairs for window in (pair.reference, pair.current)]
    checked_source(AtPositions(RunId(""), windows))
    if not question.metrics:
        raise InvalidArgumentError("a question about drift must name at least one metric")
    if question.sample_size is not None and question.sample_size < 1:
        raise InvalidArgumentError(f"sample_size is {question.sample_size}; it must be at least 1, or None for all samples")
    if question.data is ComparedData.LABELS and question.projection is not None:
        raise InvalidArgumentError("a projection cannot reduce labels, which are single numbers; remove the projection")
    if question.data.needs_model and question.model_id is None:
        raise InvalidArgumentError(f"{question.data} need a model, and the question names none; wait for the first one")
