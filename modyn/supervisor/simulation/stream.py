"""Input of a simulation: the samples of a dataset in the order of a replay, or the samples that a run has received. With a run, the input also has
the run's models and the seconds of the run's trainings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from modyn.config.durations import format_duration
from modyn.config.label_delay import label_delay
from modyn.config.pipeline import Pipeline, load_pipeline
from modyn.config.preprocessing import PREPROCESSING
from modyn.errors import ConflictError, InvalidArgumentError, NotFoundError
from modyn.evaluator.client import EvaluatorClient
from modyn.model_storage.client import ModelStorageClient
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Interval, RunId, SampleBatch
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.supervisor.client import SupervisorClient
from modyn.supervisor.journal.records import RunMode, TriggerRecord
from modyn.supervisor.run.run_evidence import Decoding, RunEvidence, RunTrainings
from modyn.supervisor.run.stream import StreamSource
from modyn.supervisor.services.run_selector import RunSelector
from modyn.supervisor.simulation.dataset_evidence import DatasetEvidence, SimulatedDataset, temporary_run_id
from modyn.supervisor.simulation.training_forecast import TrainingForecast
from modyn.supervisor.triggers.measures.label_clock import ReadSamples
from modyn.supervisor.triggers.measures.questions import EvidenceSource
from modyn.supervisor.triggers.measures.training_seconds import TrainingSeconds

BATCH_SIZE: Final = 262_144
"""Number of samples in one request."""
RETRY_S: Final = 60.0
"""Seconds for which a service that cannot be reached is called again."""
_BATCH_SIZE: Final = 64
"""Number of samples that are decoded and passed through a model at once, if no training defines this number."""
_UNKNOWN: Final = Decoding({"batch_size": _BATCH_SIZE, "record_layout": {"dtype": "uint8"}})
"""Decoding for questions about labels. These questions read no payloads, and do not use the layout."""


class SimulationClients(Protocol):
    """The services that a simulation calls."""

    @property
    def storage(self) -> StorageClient:
        """Streams the samples of datasets."""

    @property
    def selector(self) -> SelectorClient:
        """Stores the streams of runs."""

    @property
    def supervisor(self) -> SupervisorClient:
        """Returns the reference run."""

    @property
    def evaluator(self) -> EvaluatorClient:
        """Answers the questions of policies."""

    @property
    def model_storage(self) -> ModelStorageClient:
        """Returns the run of the given model."""


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The samples, models and seconds for simulating policies."""

    dataset: str | None = None
    """Dataset whose samples are the stream, in the order (timestamp, key)."""
    run_id: str | None = None
    """Run that replaces a dataset: the simulation uses the run's samples in their order, the run's models, and the seconds of the run's trainings."""
    from_timestamp: int | None = None
    """With a dataset, only samples with timestamps in [from, to) are used."""
    to_timestamp: int | None = None
    model_id: int | None = None
    """The model of all triggers, which replaces the models of the run. The samples of a dataset are decoded as in the run of this model."""
    seconds: TrainingSeconds | None = None
    """Seconds of a training, which replace the seconds of the run's trainings."""
    data: Mapping[str, Any] | None = None
    """With a dataset, a `data` section for decoding its samples, also without `dataset_id`. This section replaces the `data` section of the model's
    run.
    """

    def check(self) -> None:
        """Raise InvalidArgumentError for options that contradict each other."""
        if (self.dataset is None) == (self.run_id is None):
            raise InvalidArgumentError("give one of a dataset and a run: the samples that the policies are simulated on")
        if self.run_id is not None and (self.from_timestamp is not None or self.to_timestamp is not None):
            raise InvalidArgumentError("a run is simulated on all samples that it has received; times go with a dataset")
        named = None if self.data is None else self.data.get("dataset_id", self.dataset)
        if self.run_id is None and named not in (None, self.dataset):
            raise InvalidArgumentError(
                f"the section `data` is of dataset '{named}', and '{self.dataset}' is simulated on; leave it out there"
            )

    @property
    def interval(self) -> Interval:
        """The timestamps [start, end) of the samples in the stream."""
        return Interval(
            MIN_TIMESTAMP if self.from_timestamp is None else self.from_timestamp,
            MAX_TIMESTAMP if self.to_timestamp is None else self.to_timestamp,
        )


@dataclass(frozen=True, slots=True)
class SimulatedStream:
    """The samples of a simulation, and facts about these samples."""

    batches: Callable[[], Iterator[SampleBatch]]
    """Yields the samples."""
    total: int
    """The number of samples at the start; a few may have been deleted since."""
    forecast: TrainingForecast
    evidence: EvidenceSource
    seed: int | None = None
    """`training.seed` of the run, or, for a dataset, of the model's run."""
    label_delay: int = 0
    """Seconds of stream time between a sample and its label."""
    read: ReadSamples | None = None
    """Reads samples of the stream. None: the simulation keeps samples that wait for their labels in memory."""
    close: Callable[[], None] = lambda: None
    """Removes the temporary run with the stream from the selector, if there is such a run."""


def open_stream(clients: SimulationClients, options: SimulationOptions, label_delays: Set[int] = frozenset()) -> SimulatedStream:
    """Open the stream for simulating policies.

    Args: label_delays: seconds between a sample and its label, from the options of the policies.
    Raises: InvalidArgumentError: the options contradict each other. NotFoundError: the dataset or run does not exist.
    """
    options.check()
    if options.run_id is not None:
        return _open_run(clients, options, RunId(options.run_id), label_delays)
    return _open_dataset(clients, options, label_delays)


def reference_columns(clients: SimulationClients, options: SimulationOptions) -> dict[str, Any]:
    """Return the section `preprocessing` of the run, or else of the model's run, as a pipeline of this section; empty if there is none. The section
    decodes the datasets that policies evaluate models on. Raises: NotFoundError: the run or the model does not exist.
    """
    run_id = options.run_id
    if run_id is None and options.model_id is not None:
        run_id = clients.model_storage.describe(options.model_id).version.run_id
        with suppress(NotFoundError):  # The run may have been removed.
            return _columns_of(clients, run_id)
        return {}
    return _columns_of(clients, run_id)


def _columns_of(clients: SimulationClients, run_id: str | None) -> dict[str, Any]:
    pipeline = clients.supervisor.run(run_id).pipeline if run_id else {}
    return {PREPROCESSING: pipeline[PREPROCESSING]} if PREPROCESSING in pipeline else {}


def _open_dataset(clients: SimulationClients, options: SimulationOptions, label_delays: Set[int]) -> SimulatedStream:
    assert options.dataset is not None
    info = clients.storage.dataset(options.dataset)
    total = clients.storage.count_samples(info.name, options.interval, info.next_key, info.identity)
    run_id, retrier = temporary_run_id(), Retrier(RetryPolicy(RETRY_S))
    source = StreamSource(options.dataset, RunMode.EXPERIMENT, options.interval, BATCH_SIZE, info.next_key, info.identity)
    trainings = None if options.model_id is None else _trainings_of_model(clients, options.model_id)
    pipeline = None if trainings is None else trainings.pipeline
    data = (
        {"data": options.data or {}}
        if pipeline is None
        else pipeline.as_dict() | {"data": options.data or pipeline.section("data")}
    )
    delay = _one_delay({label_delay(data)} - {0} | label_delays)
    stream = SimulatedDataset(run_id, source, clients.storage, clients.selector, retrier, delay)
    decoding = None if pipeline is None else Decoding.of_pipeline(pipeline)
    if options.data is not None:
        decoding = Decoding({"batch_size": _BATCH_SIZE} | dict(options.data), "cpu" if decoding is None else decoding.device)
    known = decoding or _UNKNOWN
    known = replace(known, section={**known.section, "dataset_id": options.dataset})
    answers = RunEvidence(run_id, known, clients.evaluator, clients.selector, retrier, trainings)
    evidence = DatasetEvidence(stream, answers, decodes=decoding is not None, has_model=options.model_id is not None)
    forecast = TrainingForecast(seconds=options.seconds, model_id=options.model_id)
    seed = None if pipeline is None else pipeline.training.seed
    return SimulatedStream(stream.batches, total, forecast, evidence, seed, delay, close=stream.close)


def _one_delay(delays: Set[int]) -> int:
    """Return the delay of labels. Raises InvalidArgumentError if there are several delays."""
    if len(delays) > 1:
        found = ", ".join(map(format_duration, sorted(delays)))
        raise InvalidArgumentError(
            f"labels come late by {found}, as the data and the policies say: a label comes once, so simulate these apart"
        )
    return next(iter(delays), 0)


def _trainings_of_model(clients: SimulationClients, model_id: int) -> RunTrainings | None:
    """Return the trainings of a model's run; None if no run has trained the model, or the run was removed. Raises: NotFoundError: no such model."""
    run_id = clients.model_storage.describe(model_id).version.run_id
    with suppress(NotFoundError):
        if run_id:
            pipeline = load_pipeline(clients.supervisor.run(run_id).yaml, run_id)
            return _trainings(run_id, pipeline, clients.supervisor.triggers(run_id, with_losses=False))
    return None


def _trainings(run_id: RunId, pipeline: Pipeline, triggers: Iterable[TriggerRecord]) -> RunTrainings:
    by_model = {trigger.model_id: trigger for trigger in triggers}
    return RunTrainings(run_id, pipeline, by_model.get)


def _open_run(clients: SimulationClients, options: SimulationOptions, run_id: RunId, label_delays: Set[int]) -> SimulatedStream:
    run = clients.supervisor.run(run_id)
    pipeline = load_pipeline(run.yaml, run.run_id)
    triggers = clients.supervisor.triggers(run_id, with_losses=False)
    forecast = TrainingForecast(triggers, pipeline.selection_strategy, options.seconds, options.model_id)
    retrier = Retrier(RetryPolicy(RETRY_S))
    trainings: RunTrainings | None = None
    if options.model_id is None:
        trainings = _trainings(run_id, pipeline, triggers)
    else:
        with suppress(NotFoundError):  # If a policy asks about the model, the first question fails.
            trainings = _trainings_of_model(clients, options.model_id)
    evidence = RunEvidence(run_id, Decoding.of_pipeline(pipeline), clients.evaluator, clients.selector, retrier, trainings)
    selector, delay = RunSelector(clients.selector, run_id, retrier), _one_delay({pipeline.label_delay} | label_delays)
    batches = partial(_batches_of_run, selector, run_id, run.num_samples)
    return SimulatedStream(batches, run.num_samples, forecast, evidence, pipeline.training.seed, delay, selector.samples)


def _batches_of_run(selector: RunSelector, run_id: RunId, total: int) -> Iterator[SampleBatch]:
    """Yield the samples in the order of the selector's log. The positions of these samples are the positions in the run's stream."""
    position = 0
    while position < total:
        batch = selector.samples(position, min(BATCH_SIZE, total - position))
        if not len(batch):
            raise ConflictError(
                f"the selector holds {position} samples of run {run_id}, which has received {total}: some were lost"
            )
        position += len(batch)
        yield batch
