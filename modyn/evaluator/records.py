"""What is asked of a pass of a model over samples, and what comes of it. Other rooms import this from `modyn.evaluator.client`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modyn.errors import InvalidArgumentError
from modyn.records import EvalInterval, Int64Array, Interval, RunId, StreamWindow

ATC: Final = "EstimatedAccuracyATC"
"""The accuracy by average thresholded confidence, where a trigger names the metric of a score."""
DOC: Final = "EstimatedAccuracyDoC"
"""The accuracy by difference of confidences."""
ESTIMATED_METRICS: Final = (ATC, DOC)
"""Scores that need no labels of the samples; no entry of `metrics`."""


class OutputKind(StrEnum):
    """What is wanted of a model's pass over samples."""

    SCORES = "scores"
    """The metrics of the dataset's section: one score for each interval and metric; of keys and positions one for each metric."""
    LOGITS = "logits"
    """What the last layer returns, (n, c)."""
    EMBEDDINGS = "embeddings"
    """What the last layer is given, or what the model offers as `embedding`, (n, d)."""
    OUTCOMES = "outcomes"
    """Of a classifier (n, 3), float32: error (1 if the class of the largest logit is not the label, else 0), cross-entropy (natural
    logarithm), and confidence (the probability of that class). A single logit is that of class 1 of two."""


@dataclass(frozen=True, slots=True)
class InIntervals:
    """The samples of a dataset in any of these intervals of time, as storage lists them."""

    intervals: Sequence[Interval]


@dataclass(frozen=True, slots=True, eq=False)
class OfKeys:
    """The samples of these keys, int64 (n,); each counts once, deleted ones are left out."""

    keys: Int64Array


@dataclass(frozen=True, slots=True)
class AtPositions:
    """The samples in windows of a run's stream, as its log at the selector holds them; each counts once, deleted ones are left out."""

    run_id: RunId
    windows: Sequence[StreamWindow]
    """They may overlap."""


SampleSource = InIntervals | OfKeys | AtPositions
"""Which samples of a dataset are passed through a model."""


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """One pass of one model over the samples of a source."""

    run_id: RunId
    """Whose user code it is; worker processes are shared within a run."""
    model_id: int
    dataset: Mapping[str, Any]
    """One entry of `evaluation.datasets`, as written in the pipeline."""
    source: SampleSource
    kind: OutputKind = OutputKind.SCORES
    device: str = "cpu"
    cache: Mapping[str, Any] = field(default_factory=dict)
    """Section `cache` of the pipeline."""
    dataset_identity: str = ""
    """Identity of the registered dataset that is meant; another one is refused. Empty: any."""

    def __str__(self) -> str:
        """What messages call this pass."""
        return f"{self.kind} of run {self.run_id}, model {self.model_id} on dataset '{self.dataset['dataset_id']}'"


class ComparedData(StrEnum):
    """What drift metrics compare of each sample."""

    EMBEDDINGS = "embeddings"
    """What the last layer of a model is given, or what the model offers as `embedding`, (n, d)."""
    PREDICTIONS = "predictions"
    """The class probabilities of a model, (n, c)."""
    PAYLOAD = "payload"
    """The parsed and transformed sample, flattened, (n, d). Needs no model."""
    LABELS = "labels"
    """The label, (n, 1). Needs no model, and reads no payload."""

    @property
    def needs_model(self) -> bool:
        """Whether a model makes it."""
        return self in (ComparedData.EMBEDDINGS, ComparedData.PREDICTIONS)


@dataclass(frozen=True, slots=True)
class WindowPair:
    """Two windows of a run's stream that are compared."""

    reference: StreamWindow
    current: StreamWindow


@dataclass(frozen=True, slots=True)
class DriftQuestion:
    """How far the distribution of a current window of a run's stream lies from that of a reference window."""

    reference: StreamWindow
    current: StreamWindow
    metrics: Mapping[str, Mapping[str, Any]]
    """Name → a drift metric by its `id`, with its options."""
    data: ComparedData = ComparedData.EMBEDDINGS
    model_id: int | None = None
    """The model that makes what is compared; None where it needs none."""
    projection: Mapping[str, Any] | None = None
    """What is compared is projected by this before it is measured: a projection by its `id`, with its options."""
    sample_size: int | None = None
    """Samples of each window that are compared, drawn by `seed` and key; None: all."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DriftDistance:
    """What one drift metric says of two windows. seconds: that it took, without those of the embeddings."""

    distance: float
    p_value: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class MeasuredDrift:
    """The answer to a DriftQuestion."""

    distances: Mapping[str, DriftDistance]
    """By name of the metric. Without those that need more samples than a window has, so that they can say nothing."""
    num_reference: int = 0
    """Samples of the reference that were compared, without deleted ones and those left out by `sample_size`."""
    num_current: int = 0
    num_embedded: int = 0
    """Samples that were passed through the model for this question, and not for an earlier one; of payloads, those that were decoded."""


@dataclass(frozen=True, slots=True)
class DriftRequest:
    """A DriftQuestion about the stream of a run."""

    run_id: RunId
    """Whose stream and user code it is."""
    dataset: Mapping[str, Any]
    """A `data` section with `batch_size`, which says how samples are decoded."""
    question: DriftQuestion
    device: str = "cpu"
    pairs: Sequence[WindowPair] = ()
    """In place of the windows of the question: it is asked about each of these pairs. Empty: about its own."""
    cache: Mapping[str, Any] = field(default_factory=dict)
    """Section `cache` of the pipeline."""

    @property
    def asked_pairs(self) -> Sequence[WindowPair]:
        """The pairs of windows that are asked about, at least one."""
        return self.pairs or (WindowPair(self.question.reference, self.question.current),)

    def __str__(self) -> str:
        """What messages call this question."""
        asked = self.question
        model = f", model {asked.model_id}" if asked.data.needs_model else ""
        first, *others = self.asked_pairs
        more = f" and {len(others)} further pairs of windows" if others else ""
        return f"drift of {asked.data} of run {self.run_id}{model}, reference {first.reference}, current {first.current}{more}"


class Rows(NamedTuple):
    """n samples and the outputs of a model. keys, timestamps: int64 (n,). labels: (n, …). outputs: (n, …), as the model returned them."""

    keys: Int64Array
    timestamps: Int64Array
    labels: NDArray[Any]
    outputs: NDArray[Any]

    @property
    def num_bytes(self) -> int:
        """Size of the four columns in bytes."""
        return sum(column.nbytes for column in self)

    def take(self, positions: Int64Array) -> Rows:
        """Copies of the rows at `positions`, int64 (m,), in that order."""
        return Rows(*(column[positions] for column in self))

    @staticmethod
    def concatenate(chunks: Sequence[Rows]) -> Rows | None:
        """The rows of all chunks, ordered by key; None: there are no chunks."""
        if not chunks:
            return None
        joined = Rows(*(np.concatenate(columns) for columns in zip(*chunks, strict=True)))
        return joined.take(np.argsort(joined.keys, kind="stable"))


NOT_NUMBERS: Final = "scores are not a number"
"""What the note of a score says that is undefined since what the model gave is."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a worker returns: the value of one metric over the samples of one interval. None: undefined, `note` says why."""

    interval: Interval
    metric: str
    """The label of the metric."""
    value: float | None
    note: str
    num_samples: int
    """Samples that the value was computed over."""
    num_listed: int
    """Samples in the interval when the evaluation listed them."""

    @property
    def has_diverged(self) -> bool:
        """Whether it is undefined since outputs of the model are not numbers, and not by what its samples are."""
        return self.value is None and NOT_NUMBERS in self.note


@dataclass(frozen=True, slots=True)
class Measured:
    """What a pass gave: scores, or rows ordered by key."""

    scores: Sequence[Score] = ()
    rows: Rows | None = None
    """None: scores were asked for, or there were no samples."""


def check_intervals(intervals: Iterable[Interval | EvalInterval]) -> None:
    """Raise InvalidArgumentError for one that ends before it starts."""
    for interval in intervals:
        if interval.start > interval.end:
            raise InvalidArgumentError(f"the interval [{interval.start}, {interval.end}) ends before it starts")


def checked_source(source: SampleSource) -> SampleSource:
    """The source with distinct intervals. Raises InvalidArgumentError: an interval or a window ends before it starts, or a window begins before 0."""
    match source:
        case InIntervals(intervals):
            check_intervals(intervals)
            return InIntervals(list(dict.fromkeys(Interval(i.start, i.end) for i in intervals)))
        case AtPositions(_, windows):
            check_intervals(window.times for window in windows)
            for window in windows:
                if not 0 <= window.start <= window.stop:
                    raise InvalidArgumentError(
                        f"{window} is no range of positions: it must start at 0 or later, and not after its end"
                    )
    return source


def check_request(request: DriftRequest) -> None:
    """Raise InvalidArgumentError: a window ends before it starts, no metric or no sample is asked for, or a model is needed and not named."""
    question = request.question
    windows = [window for pair in request.asked_pairs for window in (pair.reference, pair.current)]
    checked_source(AtPositions(RunId(""), windows))
    if not question.metrics:
        raise InvalidArgumentError("a question about drift names at least one metric, and this one names none")
    if question.sample_size is not None and question.sample_size < 1:
        raise InvalidArgumentError(f"sample_size is {question.sample_size}; it must be at least 1, or None for all samples")
    if question.data is ComparedData.LABELS and question.projection is not None:
        raise InvalidArgumentError("labels are single numbers, which no projection makes fewer; leave the projection out")
    if question.data.needs_model and question.model_id is None:
        raise InvalidArgumentError(f"{question.data} are made by a model, and the question names none; wait for the first one")
