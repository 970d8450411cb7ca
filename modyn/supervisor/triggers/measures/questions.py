"""Questions of a trigger policy at a check: distances between windows of the stream, scores of a model on these windows, and the load of
predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from modyn.errors import ModynError
from modyn.evaluator.client import DriftQuestion, MeasuredDrift, Question, Rows, Score, WindowPair
from modyn.records import ServingLoad, StreamWindow

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class DriftQuestions(Question[Sequence[MeasuredDrift]]):
    """A question about drift for several pairs of windows, which replace the windows of the question. The answers are in the order of the pairs."""

    question: DriftQuestion
    pairs: Sequence[WindowPair]


@dataclass(frozen=True, slots=True)
class ScoreQuestion(Question[Sequence[Score]]):
    """Which scores does a model have on the samples of the windows? The answer has one score for each metric."""

    model_id: int
    windows: Sequence[StreamWindow]
    dataset: Mapping[str, Any]
    """An entry as in `evaluation.datasets`, with `metrics`."""
    device: str
    """cpu or cuda:N."""


@dataclass(frozen=True, slots=True)
class OutcomeQuestion(Question[Rows | None]):
    """What does a model predict for each sample of the windows?

    The answer has rows in the order of the stream, whose outputs are (n, 3): error (1 or 0), cross-entropy loss, confidence (the largest class
    probability). The answer is None without samples.
    """

    model_id: int
    windows: Sequence[StreamWindow]
    dataset: Mapping[str, Any]
    """See `ScoreQuestion`; the metrics of the entry have no effect."""
    device: str


@dataclass(frozen=True, slots=True)
class HeldOutQuestion(Question[Rows | None]):
    """What does a model predict for the samples of the trigger set that the model's training has held out (`training.validation`)?

    The answer has rows as for `OutcomeQuestion`, in ascending order of keys. The answer is None if the training has held out no samples, or if the
    held-out samples are not known.
    """

    model_id: int
    count: int
    """Largest number of samples. The newest samples in the order of the stream are used."""
    before: int
    """Only samples with timestamps below this value are used."""
    dataset: Mapping[str, Any]
    device: str


@dataclass(frozen=True, slots=True)
class LoadQuestion(Question[ServingLoad | None]):
    """What is the load of the servers that answer predictions of the run, and what time is it? The answer is None if the run replays history."""


class EvidenceSource(Protocol):
    """Answers questions about the stream of one run."""

    def ask(self, question: Question[A], /) -> A:
        """Return the answer. Raises: the errors of the evaluator; the cause of the stop, if the run was stopped."""


class _NoEvidence:
    """The source of a policy outside of a run. The source has no load, and refuses all other questions."""

    def ask(self, question: Question[A], /) -> A:
        if isinstance(question, LoadQuestion):
            return None  # type: ignore[return-value]
        raise ModynError("this policy asks for evidence, and there is no run that gives it; pass a CheckContext with a `source`")


NO_EVIDENCE: EvidenceSource = _NoEvidence()
