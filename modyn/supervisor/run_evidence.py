"""Evidence for the trigger policy of a run: questions about its stream, answered by the evaluator in the run's worker session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np

from modyn.config.pipeline import Pipeline
from modyn.dataset.order.held_out import Share
from modyn.evaluator.client import (
    AtPositions,
    DriftQuestion,
    DriftRequest,
    EvaluatorClient,
    MeasuredDrift,
    MeasureRequest,
    OfKeys,
    OutputKind,
    Rows,
    Score,
    WindowPair,
)
from modyn.records import Int64Array, RunId, SampleBatch, ServingLoad, StreamWindow
from modyn.rpc.retry import Retrier
from modyn.selector.client import SelectorClient
from modyn.supervisor.records import TriggerRecord

_BLOCK: Final = 65_536
"""Samples of a stream that are looked at together for those that were held out."""


@dataclass(frozen=True, slots=True)
class DecodedBy:
    """How the samples of a stream are decoded, and where models and distances are computed."""

    section: Mapping[str, Any]
    """A `data` section with `batch_size`, and maybe `dataloader_workers`."""
    device: str = "cpu"
    cache: Mapping[str, Any] = field(default_factory=dict)
    """Section `cache` of the pipeline."""

    @classmethod
    def pipeline(cls, pipeline: Pipeline) -> Self:
        """As in the trainings of a pipeline."""
        training = pipeline.section("training")
        loading = {name: training[name] for name in ("batch_size", "dataloader_workers") if name in training}
        return cls(pipeline.section("data") | loading, str(training.get("device", "cpu")), pipeline.section("cache"))


@dataclass(frozen=True, slots=True)
class RunTrainings:
    """The trainings that have made the models of a policy, all of one run."""

    run_id: RunId
    pipeline: Pipeline
    find: Callable[[int], TriggerRecord | None]
    """Returns the trigger that has made a model; None: it is not known."""
    dataset_identity: str = ""
    """Identity of the dataset whose keys trigger sets hold; empty: not known."""

    @property
    def percent_held_out(self) -> int:
        """Of each partition of a trigger set: `training.validation.ratio`; 0: no sample is."""
        return int((self.pipeline.section("training").get("validation") or {}).get("ratio", 0))

    def held_out(self, trigger: TriggerRecord, count: int, before: int, selector: SelectorClient) -> Int64Array:
        """The keys of the newest samples that the training of a trigger has held out, ascending. Args: as of `EvidenceSource.held_out`."""
        trigger_set = selector.trigger_set(self.run_id, trigger.trigger_id)
        # As the trainer server does, which is given the same seed.
        share = Share(trigger_set, self.percent_held_out, held_out=True, seed=self.pipeline.training.seed or 0)
        partitions = (selector.keys(self.run_id, trigger.trigger_id, number).keys for number in range(trigger_set.num_partitions))
        keys = np.sort(np.concatenate([np.empty(0, np.int64), *(found[share.rows(found)] for found in partitions)]))
        chosen, missing, unseen, stop = [np.empty(0, np.int64)], count, len(keys), trigger.position
        while missing and unseen and stop:
            start = max(0, stop - _BLOCK)
            batch = SampleBatch.concatenate(list(_samples(selector, self.run_id, StreamWindow(start, stop))))
            there = np.isin(batch.keys, keys)
            newest = batch.keys[there & (batch.timestamps < before)][-missing:]
            chosen.append(newest)
            missing, unseen, stop = missing - len(newest), unseen - int(there.sum()), start
        return np.sort(np.concatenate(chosen))


class RunEvidence:
    """An EvidenceSource of one run. Calls are repeated as the run's retry policy allows, also when a worker was killed, and end when the run is
    stopped."""

    def __init__(
        self,
        run_id: RunId,
        decoded: DecodedBy,
        evaluator: EvaluatorClient,
        selector: SelectorClient,
        retrier: Retrier,
        trainings: RunTrainings | None = None,
        load: Callable[[], ServingLoad | None] = lambda: None,
    ) -> None:
        """Args: trainings: of the models that are asked about; None: not known. load: answers `load`."""
        self.load = load
        self._run_id = run_id
        self._evaluator = evaluator
        self._selector = retrier.wrap(selector)
        self._retrier = retrier
        self._trainings = trainings
        self._decoded = decoded

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        """See `EvidenceSource.drift`."""
        request = DriftRequest(self._run_id, self._decoded.section, question, self._decoded.device, cache=self._decoded.cache)
        return self._retrier.call_worker(self._evaluator.measure_drift, request, self._retrier.token)

    def drifts(self, question: DriftQuestion, pairs: Sequence[WindowPair]) -> Sequence[MeasuredDrift]:
        """See `EvidenceSource.drifts`."""
        request = DriftRequest(
            self._run_id, self._decoded.section, question, self._decoded.device, tuple(pairs), self._decoded.cache
        )
        return self._retrier.call_worker(self._evaluator.measure_drifts, request, self._retrier.token)

    def scores(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Sequence[Score]:
        """See `EvidenceSource.scores`."""
        source = AtPositions(self._run_id, windows)
        request = MeasureRequest(self._run_id, model_id, dataset, source, OutputKind.SCORES, device, self._decoded.cache)
        return self._retrier.call_worker(self._evaluator.measure, request, self._retrier.token).scores

    def outcomes(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Rows | None:
        """See `EvidenceSource.outcomes`."""
        source = AtPositions(self._run_id, windows)
        request = MeasureRequest(self._run_id, model_id, dataset, source, OutputKind.OUTCOMES, device, self._decoded.cache)
        rows = self._retrier.call_worker(self._evaluator.measure, request, self._retrier.token).rows
        return None if rows is None else rows.take(self._order(rows.keys, windows))

    def held_out(self, model_id: int, count: int, before: int, dataset: Mapping[str, Any], device: str) -> Rows | None:
        """See `EvidenceSource.held_out`."""
        trainings = self._trainings
        trigger = trainings.find(model_id) if trainings is not None and trainings.percent_held_out else None
        if trainings is None or trigger is None:
            return None
        keys = trainings.held_out(trigger, count, before, self._selector)
        if not len(keys):
            return None
        source, identity = OfKeys(keys), trainings.dataset_identity
        request = MeasureRequest(
            self._run_id, model_id, dataset, source, OutputKind.OUTCOMES, device, self._decoded.cache, identity
        )
        return self._retrier.call_worker(self._evaluator.measure, request, self._retrier.token).rows

    def _order(self, keys: Int64Array, windows: Sequence[StreamWindow]) -> Int64Array:
        """The positions of the rows, in the order in which their samples stand in the stream. Args: keys: ascending."""
        ordered = sorted(windows, key=lambda window: window.start)
        found = [batch.keys for window in ordered for batch in _samples(self._selector, self._run_id, window)]
        streamed = np.concatenate(found) if found else np.empty(0, np.int64)
        places = np.searchsorted(keys, streamed).clip(max=len(keys) - 1)
        there: Int64Array = places[keys[places] == streamed].astype(np.int64)
        _, first = np.unique(there, return_index=True)
        return there[np.sort(first)]


def _samples(selector: SelectorClient, run_id: RunId, window: StreamWindow) -> Iterator[SampleBatch]:
    """The samples at the positions of a window, whatever their times."""
    start, stop = window.start, window.stop
    while start < stop:
        batch = selector.samples(run_id, start, stop - start, labelled=window.labelled)
        start += len(batch)
        yield batch
