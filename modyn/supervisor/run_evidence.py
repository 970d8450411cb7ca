"""Evidence for the trigger policy of a run: questions about its stream, answered by the evaluator in the run's worker session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from modyn.config.pipeline import Pipeline
from modyn.evaluator.client import (
    AtPositions,
    DriftQuestion,
    DriftRequest,
    EvaluatorClient,
    MeasuredDrift,
    MeasureRequest,
    OutputKind,
    Rows,
    Score,
)
from modyn.records import Int64Array, RunId, StreamWindow
from modyn.rpc.retry import Retrier
from modyn.selector.client import SelectorClient


@dataclass(frozen=True, slots=True)
class DecodedBy:
    """How the samples of a stream are decoded, and where models and distances are computed."""

    section: Mapping[str, Any]
    """A `data` section with `batch_size`, and maybe `dataloader_workers`."""
    device: str = "cpu"

    @classmethod
    def pipeline(cls, pipeline: Pipeline) -> Self:
        """As in the trainings of a pipeline."""
        training = pipeline.section("training")
        loading = {name: training[name] for name in ("batch_size", "dataloader_workers") if name in training}
        return cls(pipeline.section("data") | loading, str(training.get("device", "cpu")))


class RunEvidence:
    """An EvidenceSource of one run. Calls are repeated as the run's retry policy allows, also when a worker was killed, and end when the run is
    stopped."""

    def __init__(
        self, run_id: RunId, decoded: DecodedBy, evaluator: EvaluatorClient, selector: SelectorClient, retrier: Retrier
    ) -> None:
        self._run_id = run_id
        self._evaluator = evaluator
        self._selector = selector
        self._retrier = retrier
        self._decoded = decoded

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        """See `EvidenceSource.drift`."""
        request = DriftRequest(self._run_id, self._decoded.section, question, self._decoded.device)
        return self._retrier.call_worker(self._evaluator.measure_drift, request, self._retrier.token)

    def scores(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Sequence[Score]:
        """See `EvidenceSource.scores`."""
        source = AtPositions(self._run_id, windows)
        request = MeasureRequest(self._run_id, model_id, dataset, source, OutputKind.SCORES, device)
        return self._retrier.call_worker(self._evaluator.measure, request, self._retrier.token).scores

    def outcomes(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Rows | None:
        """See `EvidenceSource.outcomes`."""
        source = AtPositions(self._run_id, windows)
        request = MeasureRequest(self._run_id, model_id, dataset, source, OutputKind.OUTCOMES, device)
        rows = self._retrier.call_worker(self._evaluator.measure, request, self._retrier.token).rows
        return None if rows is None else rows.take(self._order(rows.keys, windows))

    def _order(self, keys: Int64Array, windows: Sequence[StreamWindow]) -> Int64Array:
        """The positions of the rows, in the order in which their samples stand in the stream. Args: keys: ascending."""
        found: list[Int64Array] = []
        for window in sorted(windows, key=lambda window: window.start):
            position = window.start
            while position < window.stop:
                batch = self._selector.samples(self._run_id, position, window.stop - position)
                position += len(batch)
                found.append(batch.keys)
        streamed = np.concatenate(found) if found else np.empty(0, np.int64)
        places = np.searchsorted(keys, streamed).clip(max=len(keys) - 1)
        there: Int64Array = places[keys[places] == streamed].astype(np.int64)
        _, first = np.unique(there, return_index=True)
        return there[np.sort(first)]
