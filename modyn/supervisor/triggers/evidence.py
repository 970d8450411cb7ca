"""What a trigger policy may ask of others when it checks: distances between windows of its run's stream, and how well a model does on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from modyn.errors import ModynError
from modyn.evaluator.client import DriftQuestion, MeasuredDrift, Rows, Score, WindowPair
from modyn.records import ServingLoad, StreamWindow


class EvidenceSource(Protocol):
    """Answers questions about the stream of one run. All raise what the evaluator raises, and the cause of a run that was stopped."""

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        """Measure how far the distributions of two windows lie apart."""

    def drifts(self, question: DriftQuestion, pairs: Sequence[WindowPair]) -> Sequence[MeasuredDrift]:
        """Ask the question about each of several pairs of windows in place of its own. The answers are those of `drift`, in order."""

    def scores(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Sequence[Score]:
        """Evaluate a model on the samples of the windows: one score for each metric.

        Args: dataset: an entry as of `evaluation.datasets`, with `metrics`. device: cpu or cuda:N.
        """

    def outcomes(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Rows | None:
        """Return what a model says of each sample of the windows, in the order of the stream; None: there are no samples.

        Args: as of `scores`; its metrics play no role.
        Returns: rows whose outputs are (n, 3): error (1 or 0), cross-entropy loss, confidence (the largest class probability).
        """

    def held_out(self, model_id: int, count: int, before: int, dataset: Mapping[str, Any], device: str) -> Rows | None:
        """Return what a model says of samples of its trigger set that its training has held out (`training.validation`); None: it has held out
        none, or it is not known which.

        Args: count: of the newest in the order of the stream, at most so many. before: only samples with smaller timestamps. dataset, device: as
        of `outcomes`.
        Returns: rows as of `outcomes`, by key.
        """

    def load(self) -> ServingLoad | None:
        """Return the load of the servers that answer predictions of the run, with the time; None: the run replays history, and has none."""


class _NoEvidence:
    """The source of a policy that is asked outside of a run."""

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        raise self._error()

    def drifts(self, question: DriftQuestion, pairs: Sequence[WindowPair]) -> Sequence[MeasuredDrift]:
        raise self._error()

    def scores(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Sequence[Score]:
        raise self._error()

    def outcomes(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Rows | None:
        raise self._error()

    def held_out(self, model_id: int, count: int, before: int, dataset: Mapping[str, Any], device: str) -> Rows | None:
        raise self._error()

    def load(self) -> ServingLoad | None:
        return None

    def _error(self) -> ModynError:
        return ModynError("this policy asks for evidence, and there is no run that gives it; pass a CheckContext with a `source`")


NO_EVIDENCE: EvidenceSource = _NoEvidence()
