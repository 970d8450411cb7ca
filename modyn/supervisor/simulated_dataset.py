"""The samples of a dataset as a replay gives them, for policies that may look at data: the evaluator finds samples by their positions in the
stream of a run, so the first question puts the stream into the selector as that of a temporary run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from modyn.errors import ConflictError, InvalidArgumentError, UnavailableError
from modyn.evaluator.client import ComparedData, DriftQuestion, MeasuredDrift, Rows, Score, WindowPair
from modyn.records import Interval, RunId, SampleBatch, ServingLoad, StreamWindow
from modyn.rpc.retry import Retrier
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.simulate import Simulation
from modyn.supervisor.stream import SampleStream, StreamSource
from modyn.supervisor.stream_labels import StreamLabels
from modyn.supervisor.triggers.evidence import EvidenceSource

_STRATEGY: Final = {"name": "NewDataStrategy", "maximum_keys_in_memory": 100_000, "tail_triggers": 0}
"""Nothing is selected from a simulated stream."""


NO_MODEL: Final = (
    "it looks at samples by a model, and there is none: name one with --model ID, or simulate it on a run of this dataset with "
    "--run RUN"
)
NO_DATA: Final = (
    "it looks at what samples hold, and nothing says how they are decoded: give the file of policies a section `data`, as in a pipeline, or name "
    "a model with --model ID, whose run says it"
)


NO_SECONDS: Final = (
    "it weighs the time of a training, and none is known: give --seconds-per-trigger and --seconds-per-sample, or simulate it on a "
    "run of this dataset with --run RUN"
)


def temporary_run_id() -> RunId:
    """Return an id for the stream of a simulation, which no pipeline's run can have: theirs have no dot.

    >>> temporary_run_id().startswith("simulation.")
    True
    """
    return RunId(f"simulation.{uuid4().hex}")


class SimulatedDataset:
    """The stream of a simulation. Until `hold` is called, the selector is not."""

    def __init__(
        self,
        run_id: RunId,
        source: StreamSource,
        storage: StorageClient,
        selector: SelectorClient,
        retrier: Retrier,
        label_delay: int = 0,
    ) -> None:
        """Args: run_id: of the temporary run, of this simulation alone. label_delay: seconds of stream time that labels come late."""
        self._label_delay = label_delay
        self._held = Cursor()
        """What the selector holds."""
        self._labels: StreamLabels
        self._run_id = run_id
        self._source = source
        self._storage = storage
        self._selector = retrier.wrap(selector)
        self._retrier = retrier
        self._is_held = False
        """Whether the selector holds all samples that were yielded."""
        self._newest: tuple[int, tuple[int, int] | None, SampleBatch] | None = None
        """The batch that was yielded last: its position, and (timestamp, key) of the sample before it."""
        self.may_be_left = False
        """Whether the selector may know the temporary run."""

    def batches(self, simulation: Simulation) -> Iterator[SampleBatch]:
        """Yield the samples as a run in experiment mode would receive them; those that were ingested since the start are left out."""
        with closing(SampleStream(self._storage, self._source, simulation.last, self._retrier)) as stream:
            for batch in stream.samples():
                self._newest = simulation.position, simulation.last, batch
                if self._is_held:
                    self._inform(batch)
                yield batch

    def hold(self) -> None:
        """Put what was yielded into the selector, unless it is there.

        Raises: ConflictError: samples were deleted since the simulation began, so that positions are others.
        """
        if not self._is_held:
            assert self._newest is not None, "policies ask about samples that they have received"
            position, last, batch = self._newest
            self._selector.delete_run(self._run_id)  # A crash has left it, with samples that may have been deleted since.
            self.may_be_left = True
            source = self._source
            self._selector.register_run(self._run_id, source.dataset, _STRATEGY, 0, dataset_identity=source.identity)
            self._held = Cursor()
            self._labels = StreamLabels(self._run_id, self._label_delay, self._selector, self._held)
            self._hold_earlier(position, last)
            self._inform(batch)
            self._is_held = True

    def _inform(self, batch: SampleBatch) -> None:
        self._held = self._held.plus(self._labels.inform(self._held, batch))

    def restore_labels(self, simulation: Simulation) -> None:
        """Let the labels of a simulation that is resumed wait as they did: those of the newest samples that it has decided on."""
        if simulation.labels is None or simulation.newest is None or simulation.last is None:
            return
        start = max(self._source.interval.start, simulation.newest - self._label_delay + 1)
        source = replace(self._source, interval=Interval(start, self._source.interval.end))
        waiting = SampleBatch.empty()
        with closing(SampleStream(self._storage, source, None, self._retrier)) as stream:
            for batch in stream.samples():
                times, keys = batch.timestamps, batch.keys
                number = int(
                    ((times < simulation.last[0]) | ((times == simulation.last[0]) & (keys <= simulation.last[1]))).sum()
                )
                waiting = SampleBatch.concatenate([waiting, batch.slice(0, number)]) if len(waiting) else batch.slice(0, number)
                if number < len(batch):
                    break
        simulation.labels.hold(simulation.position, waiting, simulation.newest)

    def _hold_earlier(self, position: int, last: tuple[int, int] | None) -> None:
        """Hold the samples before `position`. Args: last: the newest of them."""
        held, newest = 0, None
        with closing(SampleStream(self._storage, self._source, None, self._retrier)) as stream:
            for found in stream.samples() if position else ():
                batch = found.slice(0, position - held)
                self._inform(batch)
                held, newest = held + len(batch), (int(batch.timestamps[-1]), int(batch.keys[-1]))
                if held == position:
                    break
        if (held, newest) != (position, last):
            raise ConflictError(
                f"samples of dataset '{self._source.dataset}' were deleted since the simulation began, so positions in its stream are others; "
                "begin anew, in another folder"
            )

    def close(self) -> None:
        """Remove the temporary run, as far as the selector can be reached."""
        if self.may_be_left:
            with suppress(UnavailableError):
                self._selector.delete_run(self._run_id)
            self._is_held = self.may_be_left = False


class DatasetEvidence:
    """An EvidenceSource about a dataset's stream: what needs a model, or the content of samples, is refused where there is none."""

    def __init__(self, stream: SimulatedDataset, source: EvidenceSource, *, decodes: bool, has_model: bool) -> None:
        """Args: source: answers for the temporary run. decodes: whether it is known how samples are decoded. has_model: whether one was given."""
        self._stream = stream
        self._source = source
        self._decodes = decodes
        self._has_model = has_model

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        """See `EvidenceSource.drift`. Raises also: InvalidArgumentError: there is no model, or no `data` section."""
        self._hold_for(question)
        return self._source.drift(question)

    def drifts(self, question: DriftQuestion, pairs: Sequence[WindowPair]) -> Sequence[MeasuredDrift]:
        """See `EvidenceSource.drifts`. Raises also: as `drift`."""
        self._hold_for(question)
        return self._source.drifts(question, pairs)

    def scores(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Sequence[Score]:
        """See `EvidenceSource.scores`. Raises also: InvalidArgumentError: there is no model."""
        self._check(needs_model=True, decodes=False)
        self._stream.hold()
        return self._source.scores(model_id, windows, dataset, device)

    def outcomes(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Rows | None:
        """See `EvidenceSource.outcomes`. Raises also: InvalidArgumentError: there is no model."""
        self._check(needs_model=True, decodes=False)
        self._stream.hold()
        return self._source.outcomes(model_id, windows, dataset, device)

    def held_out(self, model_id: int, count: int, before: int, dataset: Mapping[str, Any], device: str) -> Rows | None:
        """See `EvidenceSource.held_out`. Raises also: InvalidArgumentError: there is no model."""
        self._check(needs_model=True, decodes=False)
        return self._source.held_out(model_id, count, before, dataset, device)

    def load(self) -> ServingLoad | None:
        """See `EvidenceSource.load`: a simulation replays history."""
        return None

    def _hold_for(self, question: DriftQuestion) -> None:
        self._check(needs_model=question.data.needs_model, decodes=question.data is not ComparedData.LABELS)
        self._stream.hold()

    def _check(self, *, needs_model: bool, decodes: bool) -> None:
        """Args: decodes: whether samples are decoded by the `data` section; policies that score models have one of their own."""
        if needs_model and not self._has_model:
            raise InvalidArgumentError(NO_MODEL)
        if decodes and not self._decodes:
            raise InvalidArgumentError(NO_DATA)
