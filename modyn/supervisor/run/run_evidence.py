"""Evidence for the trigger policy of a run: the evaluator answers questions about the run's stream in the run's worker session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar, cast

import numpy as np

from modyn.config.pipeline import Pipeline
from modyn.dataset.order.held_out import Share
from modyn.evaluator.client import (
    AtPositions,
    DriftQuestion,
    DriftRequest,
    EvaluatorClient,
    Measured,
    MeasureRequest,
    OfKeys,
    OutputKind,
    Question,
    Rows,
    SampleSource,
    WindowPair,
)
from modyn.records import Int64Array, RunId, SampleBatch, ServingLoad, StreamWindow
from modyn.rpc.retry import Retrier
from modyn.selector.client import SelectorClient
from modyn.supervisor.journal.records import TriggerRecord
from modyn.supervisor.services.run_selector import RunSelector
from modyn.supervisor.triggers.measures.questions import (
    DriftQuestions,
    HeldOutQuestion,
    LoadQuestion,
    OutcomeQuestion,
    ScoreQuestion,
)

A = TypeVar("A")

_BLOCK: Final = 65_536
"""Number of samples of a stream that are read together to find held-out samples."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Options for decoding the samples of a stream, and the device for models and distances."""

    section: Mapping[str, Any]
    """A `data` section with `batch_size`, and possibly `dataloader_workers`."""
    device: str = "cpu"
    cache: Mapping[str, Any] = field(default_factory=dict)
    """Section `cache` of the pipeline."""

    @classmethod
    def of_pipeline(cls, pipeline: Pipeline) -> Self:
        """Return the decoding options of a pipeline's trainings."""
        training = pipeline.section("training")
        loading = {name: training[name] for name in ("batch_size", "dataloader_workers") if name in training}
        return cls(pipeline.section("data") | loading, pipeline.training.device, pipeline.section("cache"))


@dataclass(frozen=True, slots=True)
class RunTrainings:
    """The trainings of one run. A policy uses the models of these trainings."""

    run_id: RunId
    pipeline: Pipeline
    find: Callable[[int], TriggerRecord | None]
    """Returns the trigger that has made a model, or None."""
    dataset_identity: str = ""
    """Identity of the dataset that has the keys of the trigger sets; empty if the identity is not known."""

    def held_out(self, trigger: TriggerRecord, count: int, before: int, selector: RunSelector) -> Int64Array:
        """Return the keys of the newest samples that the training of a trigger has held out, in ascending order.

        Args: selector: selector of the trainings' run. The other arguments: see `HeldOutQuestion`.
        """
        trigger_set, training = selector.trigger_set(trigger.trigger_id), self.pipeline.training
        # The trainer server has drawn the held-out samples with the same seed, so that the draw can be repeated here.
        share = Share(trigger_set, training.percent_held_out, held_out=True, seed=training.seed or 0)
        partitions = (selector.keys(trigger.trigger_id, number).keys for number in range(trigger_set.num_partitions))
        keys = np.sort(np.concatenate([np.empty(0, np.int64), *(found[share.rows(found)] for found in partitions)]))
        # The stream is read backwards in blocks, until enough held-out samples are found or none are left.
        chosen, missing, unseen, stop = [np.empty(0, np.int64)], count, len(keys), trigger.position
        while missing and unseen and stop:
            start = max(0, stop - _BLOCK)
            batch = SampleBatch.concatenate(list(selector.window(StreamWindow(start, stop))))
            there = np.isin(batch.keys, keys)
            newest = batch.keys[there & (batch.timestamps < before)][-missing:]
            chosen.append(newest)
            missing, unseen, stop = missing - len(newest), unseen - int(there.sum()), start
        return np.sort(np.concatenate(chosen))


class RunEvidence:
    """Evidence source of one run. Calls are repeated under the run's retry policy, also after a worker was killed; calls end when the run stops."""

    def __init__(
        self,
        run_id: RunId,
        decoding: Decoding,
        evaluator: EvaluatorClient,
        selector: SelectorClient,
        retrier: Retrier,
        trainings: RunTrainings | None = None,
        load: Callable[[], ServingLoad | None] = lambda: None,
    ) -> None:
        """Args: trainings: trainings of the models that questions name; None if the trainings are not known. load: answers `LoadQuestion`."""
        self._load = load
        self._run_id = run_id
        self._evaluator = evaluator
        self._selector = selector
        self._retrier = retrier
        self._trainings = trainings
        self._decoding = decoding

    def ask(self, question: Question[A], /) -> A:
        """See `EvidenceSource.ask`."""
        return cast("A", self._answer(question))

    def _answer(self, question: object) -> object:
        match question:
            case DriftQuestion():
                return self._retrier.call_worker(
                    self._evaluator.measure_drift, self._drift_request(question), self._retrier.token
                )
            case DriftQuestions(question=common, pairs=pairs):
                request = self._drift_request(common, tuple(pairs))
                return self._retrier.call_worker(self._evaluator.measure_drifts, request, self._retrier.token)
            case ScoreQuestion():
                windows = AtPositions(self._run_id, question.windows)
                return self._measure(question, windows, OutputKind.SCORES).scores
            case OutcomeQuestion():
                windows = AtPositions(self._run_id, question.windows)
                rows = self._measure(question, windows, OutputKind.OUTCOMES).rows
                return None if rows is None else rows.take(self._order(rows.keys, question.windows))
            case HeldOutQuestion():
                return self._held_out(question)
            case LoadQuestion():
                return self._load()
        raise TypeError(f"no run answers {question!r}")

    def _drift_request(self, question: DriftQuestion, pairs: tuple[WindowPair, ...] = ()) -> DriftRequest:
        decoding = self._decoding
        return DriftRequest(self._run_id, decoding.section, question, decoding.device, pairs, decoding.cache)

    def _measure(
        self,
        question: ScoreQuestion | OutcomeQuestion | HeldOutQuestion,
        source: SampleSource,
        kind: OutputKind,
        dataset_identity: str = "",
    ) -> Measured:
        asked = question.model_id, question.dataset, source, kind, question.device, self._decoding.cache, dataset_identity
        return self._retrier.call_worker(self._evaluator.measure, MeasureRequest(self._run_id, *asked), self._retrier.token)

    def _held_out(self, question: HeldOutQuestion) -> Rows | None:
        trainings = self._trainings
        trigger = (
            trainings.find(question.model_id) if trainings is not None and trainings.pipeline.training.percent_held_out else None
        )
        if trainings is None or trigger is None:
            return None
        selector = RunSelector(self._selector, trainings.run_id, self._retrier)
        keys = trainings.held_out(trigger, question.count, question.before, selector)
        return self._measure(question, OfKeys(keys), OutputKind.OUTCOMES, trainings.dataset_identity).rows if len(keys) else None

    def _order(self, keys: Int64Array, windows: Sequence[StreamWindow]) -> Int64Array:
        """Return the row numbers of the samples in the order of the stream. Args: keys: keys of the rows, in ascending order."""
        ordered = sorted(windows, key=lambda window: window.start)
        selector = RunSelector(self._selector, self._run_id, self._retrier)
        found = [batch.keys for window in ordered for batch in selector.window(window)]
        streamed = np.concatenate(found) if found else np.empty(0, np.int64)
        places = np.searchsorted(keys, streamed).clip(max=len(keys) - 1)
        there: Int64Array = places[keys[places] == streamed].astype(np.int64)
        # Windows may overlap. A sample of two windows counts once, at its first position.
        _, first = np.unique(there, return_index=True)
        return there[np.sort(first)]
