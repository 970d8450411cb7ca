"""What a simulation runs on: the samples of a dataset as a replay gives them, or those that a run has received, with its models and seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from modyn.config.durations import format_duration
from modyn.config.label_delay import label_delay
from modyn.config.pipeline import Pipeline, load_pipeline
from modyn.errors import ConflictError, InvalidArgumentError, NotFoundError
from modyn.evaluator.client import EvaluatorClient
from modyn.model_storage.client import ModelStorageClient
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Interval, RunId, SampleBatch
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.supervisor.client import SupervisorClient
from modyn.supervisor.records import RunMode, TriggerRecord
from modyn.supervisor.run_evidence import DecodedBy, RunEvidence, RunTrainings
from modyn.supervisor.simulate import Simulation
from modyn.supervisor.simulated_dataset import DatasetEvidence, SimulatedDataset, temporary_run_id
from modyn.supervisor.stream import StreamSource
from modyn.supervisor.training_forecast import TrainingForecast
from modyn.supervisor.triggers.evidence import EvidenceSource
from modyn.supervisor.triggers.label_clock import ReadSamples
from modyn.supervisor.triggers.training_seconds import TrainingSeconds

BATCH_SIZE: Final = 262_144
"""Samples that are asked for at once."""
RETRY_S: Final = 60.0
"""For how long a service that cannot be reached is called again."""
_BATCH_SIZE: Final = 64
"""Samples that are decoded at once, and passed through a model, where no training says it."""
_UNKNOWN: Final = DecodedBy({"batch_size": _BATCH_SIZE, "record_layout": {"dtype": "uint8"}})
"""For questions about labels, which read no content of samples: the layout is a stand-in that is never used."""


class SimulationClients(Protocol):
    """The services that a simulation calls."""

    @property
    def storage(self) -> StorageClient:
        """Streams the samples of datasets."""

    @property
    def selector(self) -> SelectorClient:
        """Holds the streams of runs."""

    @property
    def supervisor(self) -> SupervisorClient:
        """Knows the run that is the reference."""

    @property
    def evaluator(self) -> EvaluatorClient:
        """Answers policies that look at data."""

    @property
    def model_storage(self) -> ModelStorageClient:
        """Knows of which run the given model is."""


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """What policies are simulated on."""

    dataset: str | None = None
    """Its samples in the order (timestamp, key)."""
    run_id: str | None = None
    """In place of a dataset: what this run has received, in its order; its models, and the seconds of its trainings."""
    from_timestamp: int | None = None
    """Of a dataset: only samples with timestamps in [from, to)."""
    to_timestamp: int | None = None
    model_id: int | None = None
    """The model of all triggers, in place of those of the run. On a dataset, its samples are decoded as in the run of the model."""
    seconds: TrainingSeconds | None = None
    """Of a training, in place of those of the run."""
    data: Mapping[str, Any] | None = None
    """On a dataset, how its samples are decoded, in place of how the run of the model does: a `data` section, maybe without its dataset."""

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
        """The timestamps [start, end) whose samples are simulated on."""
        return Interval(
            MIN_TIMESTAMP if self.from_timestamp is None else self.from_timestamp,
            MAX_TIMESTAMP if self.to_timestamp is None else self.to_timestamp,
        )


@dataclass(frozen=True, slots=True)
class SimulatedStream:
    """The samples of a simulation, and what is known of them beside."""

    batches: Callable[[Simulation], Iterator[SampleBatch]]
    """Yields the samples behind where a simulation stands, to the end."""
    bounds: Mapping[str, Any]
    """What fixes the samples, as JSON: a simulation that is resumed gets the same ones."""
    forecast: TrainingForecast
    evidence: EvidenceSource
    seed: int | None = None
    """`training.seed` of the run, on a dataset of the model's run."""
    label_delay: int = 0
    """Seconds of stream time that labels come late."""
    restore_labels: Callable[[Simulation], None] = lambda simulation: None
    """Lets the labels of a simulation that is resumed wait as they did."""
    read: ReadSamples | None = None
    """Reads samples of the stream; None: what waits for its label is held in memory."""
    close: Callable[[], None] = lambda: None
    """Removes what was stored to look at samples."""

    @property
    def total(self) -> int:
        """How many samples there were at the start; a few may have been deleted since."""
        return int(self.bounds["total"])


def open_stream(
    clients: SimulationClients,
    options: SimulationOptions,
    bounds: Mapping[str, Any] | None = None,
    label_delays: Set[int] = frozenset(),
) -> SimulatedStream:
    """Open what policies are simulated on.

    Args: bounds: of the simulation that is resumed; None: a new one. label_delays: how late labels come, as the policies say, in seconds.
    Raises: InvalidArgumentError: the options contradict each other. NotFoundError: there is no such dataset or run.
    """
    options.check()
    if options.run_id is not None:
        return _open_run(clients, options, RunId(options.run_id), bounds, label_delays)
    assert options.dataset is not None
    info = clients.storage.dataset(options.dataset)
    if bounds is not None:
        return _open_dataset(clients, options, bounds, label_delays, may_be_left=True)
    total = clients.storage.count_samples(info.name, options.interval, info.next_key, info.identity)
    bounds = {"identity": info.identity, "end_key": info.next_key, "total": total, "run_id": temporary_run_id()}
    return _open_dataset(clients, options, bounds, label_delays, may_be_left=False)


def _open_dataset(
    clients: SimulationClients,
    options: SimulationOptions,
    bounds: Mapping[str, Any],
    label_delays: Set[int],
    *,
    may_be_left: bool,
) -> SimulatedStream:
    """Args: may_be_left: whether the selector may know the temporary run, from before a crash."""
    assert options.dataset is not None
    mode, run_id, retrier = RunMode.EXPERIMENT, RunId(bounds["run_id"]), Retrier(RetryPolicy(RETRY_S))
    source = StreamSource(options.dataset, mode, options.interval, BATCH_SIZE, bounds["end_key"], bounds["identity"])
    pipeline = None if options.model_id is None else _pipeline_of_model(clients, options.model_id)
    of_data = (
        {"data": options.data or {}}
        if pipeline is None
        else pipeline.as_dict() | {"data": options.data or pipeline.section("data")}
    )
    delay = _one_delay({label_delay(of_data)} - {0} | label_delays)
    stream = SimulatedDataset(run_id, source, clients.storage, clients.selector, retrier, delay)
    stream.may_be_left = may_be_left
    decoded = None if pipeline is None else DecodedBy.pipeline(pipeline)
    if options.data is not None:
        decoded = DecodedBy({"batch_size": _BATCH_SIZE} | dict(options.data), "cpu" if decoded is None else decoded.device)
    known = decoded or _UNKNOWN
    known = replace(known, section={**known.section, "dataset_id": options.dataset})
    trainings = None if options.model_id is None else _trainings_of_model(clients, options.model_id)
    answers = RunEvidence(run_id, known, clients.evaluator, clients.selector, retrier, trainings)
    evidence = DatasetEvidence(stream, answers, decodes=decoded is not None, has_model=options.model_id is not None)
    forecast = TrainingForecast(seconds=options.seconds, model_id=options.model_id)
    seed = None if pipeline is None else pipeline.training.seed
    return SimulatedStream(stream.batches, bounds, forecast, evidence, seed, delay, stream.restore_labels, close=stream.close)


def _one_delay(delays: Set[int]) -> int:
    """How late labels come. Raises InvalidArgumentError: there are several answers."""
    if len(delays) > 1:
        found = ", ".join(map(format_duration, sorted(delays)))
        raise InvalidArgumentError(
            f"labels come late by {found}, as the data and the policies say: a label comes once, so simulate these apart"
        )
    return next(iter(delays), 0)


def _pipeline_of_model(clients: SimulationClients, model_id: int) -> Pipeline | None:
    """The pipeline that has trained a model; None: none has, or its run was removed. Raises: NotFoundError: there is no such model."""
    run_id = clients.model_storage.describe(model_id).version.run_id
    with suppress(NotFoundError):
        return load_pipeline(clients.supervisor.run(run_id).yaml, run_id) if run_id else None
    return None


def _trainings_of_model(clients: SimulationClients, model_id: int) -> RunTrainings | None:
    """The training of a model, in its own run; None: it is not known."""
    with suppress(NotFoundError):
        if run_id := clients.model_storage.describe(model_id).version.run_id:
            pipeline = load_pipeline(clients.supervisor.run(run_id).yaml, run_id)
            return _trainings(run_id, pipeline, clients.supervisor.triggers(run_id, with_losses=False))
    return None


def _trainings(run_id: RunId, pipeline: Pipeline, triggers: Iterable[TriggerRecord]) -> RunTrainings:
    by_model = {trigger.model_id: trigger for trigger in triggers}
    return RunTrainings(run_id, pipeline, by_model.get)


def _open_run(
    clients: SimulationClients,
    options: SimulationOptions,
    run_id: RunId,
    bounds: Mapping[str, Any] | None,
    label_delays: Set[int],
) -> SimulatedStream:
    run = clients.supervisor.run(run_id)
    pipeline = load_pipeline(run.yaml, run.run_id)
    triggers = clients.supervisor.triggers(run_id, with_losses=False)
    forecast = TrainingForecast(triggers, pipeline.selection_strategy, options.seconds, options.model_id)
    retrier = Retrier(RetryPolicy(RETRY_S))
    if options.model_id is None:
        trainings: RunTrainings | None = _trainings(run_id, pipeline, triggers)
    else:
        trainings = _trainings_of_model(clients, options.model_id)
    evidence = RunEvidence(run_id, DecodedBy.pipeline(pipeline), clients.evaluator, clients.selector, retrier, trainings)
    bounds = bounds or {"total": run.num_samples}
    selector, delay = retrier.wrap(clients.selector), _one_delay({pipeline.label_delay} | label_delays)
    batches, read = partial(_batches_of_run, selector, run_id, int(bounds["total"])), partial(selector.samples, run_id)
    return SimulatedStream(batches, bounds, forecast, evidence, pipeline.training.seed, delay, _restore_labels, read)


def _restore_labels(simulation: Simulation) -> None:
    if simulation.labels is not None:
        simulation.labels.restore(simulation.first_waiting, simulation.position, simulation.newest)


def _batches_of_run(selector: SelectorClient, run_id: RunId, total: int, simulation: Simulation) -> Iterator[SampleBatch]:
    """As the selector's log holds them: positions are those of the run."""
    position = simulation.position
    while position < total:
        batch = selector.samples(run_id, position, min(BATCH_SIZE, total - position))
        if not len(batch):
            raise ConflictError(
                f"the selector holds {position} samples of run {run_id}, which has received {total}: some were lost"
            )
        position += len(batch)
        yield batch
