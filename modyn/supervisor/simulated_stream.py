"""What a simulation runs on: the samples of a dataset as a replay gives them, or those that a run has received, with its models and seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from modyn.config.pipeline import load_pipeline
from modyn.errors import ConflictError, InvalidArgumentError
from modyn.evaluator.client import DriftQuestion, EvaluatorClient, MeasuredDrift, Rows, Score
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Interval, RunId, SampleBatch, StreamWindow
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.supervisor.client import SupervisorClient
from modyn.supervisor.records import RunMode
from modyn.supervisor.run_evidence import RunEvidence
from modyn.supervisor.simulate import Simulation
from modyn.supervisor.stream import SampleStream, StreamSource
from modyn.supervisor.training_forecast import TrainingForecast
from modyn.supervisor.triggers.evidence import EvidenceSource
from modyn.supervisor.triggers.training_seconds import TrainingSeconds

BATCH_SIZE: Final = 262_144
"""Samples that are asked for at once."""
RETRY_S: Final = 60.0
"""For how long a service that cannot be reached is called again."""


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
    """The model of all triggers, in place of those of the run."""
    seconds: TrainingSeconds | None = None
    """Of a training, in place of those of the run."""

    def check(self) -> None:
        """Raise InvalidArgumentError for options that contradict each other."""
        if (self.dataset is None) == (self.run_id is None):
            raise InvalidArgumentError("give one of a dataset and a run: the samples that the policies are simulated on")
        if self.run_id is not None and (self.from_timestamp is not None or self.to_timestamp is not None):
            raise InvalidArgumentError("a run is simulated on all samples that it has received; times go with a dataset")
        if self.run_id is None and self.model_id is not None:
            raise InvalidArgumentError("a model looks at the samples of a run's stream; name the run too")

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
    """`training.seed` of the run."""

    @property
    def total(self) -> int:
        """How many samples there were at the start; a few may have been deleted since."""
        return int(self.bounds["total"])


def open_stream(
    clients: SimulationClients, options: SimulationOptions, bounds: Mapping[str, Any] | None = None
) -> SimulatedStream:
    """Open what policies are simulated on.

    Args: bounds: of the simulation that is resumed; None: a new one.
    Raises: InvalidArgumentError: the options contradict each other. NotFoundError: there is no such dataset or run.
    """
    options.check()
    if options.run_id is not None:
        return _open_run(clients, options, RunId(options.run_id), bounds)
    assert options.dataset is not None
    info = clients.storage.dataset(options.dataset)
    if bounds is None:
        total = clients.storage.count_samples(info.name, options.interval, info.next_key, info.identity)
        bounds = {"identity": info.identity, "end_key": info.next_key, "total": total}
    source = StreamSource(info.name, RunMode.EXPERIMENT, options.interval, BATCH_SIZE, bounds["end_key"], bounds["identity"])
    batches = partial(_batches_of_dataset, clients.storage, source)
    return SimulatedStream(batches, bounds, TrainingForecast(seconds=options.seconds), NoRunEvidence())


def _batches_of_dataset(storage: StorageClient, source: StreamSource, simulation: Simulation) -> Iterator[SampleBatch]:
    """As a run in experiment mode would receive them; samples that were ingested since the start are left out."""
    with closing(SampleStream(storage, source, simulation.last, Retrier(RetryPolicy(RETRY_S)))) as stream:
        while (batch := stream.read(idle=lambda: None)) is not None:
            yield batch


def _open_run(
    clients: SimulationClients, options: SimulationOptions, run_id: RunId, bounds: Mapping[str, Any] | None
) -> SimulatedStream:
    run = clients.supervisor.run(run_id)
    pipeline = load_pipeline(run.yaml, run.run_id)
    triggers = clients.supervisor.triggers(run_id, with_losses=False)
    forecast = TrainingForecast(triggers, pipeline.selection_strategy, options.seconds, options.model_id)
    retrier = Retrier(RetryPolicy(RETRY_S))
    evidence = RunEvidence(run_id, pipeline, clients.evaluator, clients.selector, retrier)
    bounds = bounds or {"total": run.num_samples}
    batches = partial(_batches_of_run, retrier.wrap(clients.selector), run_id, int(bounds["total"]))
    return SimulatedStream(batches, bounds, forecast, evidence, pipeline.training.seed)


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


class NoRunEvidence:
    """The source of a simulation on a dataset: what looks at data asks in vain, since only the stream of a run has positions."""

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        """Raises InvalidArgumentError."""
        raise self._error()

    def scores(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Sequence[Score]:
        """Raises InvalidArgumentError."""
        raise self._error()

    def outcomes(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Rows | None:
        """Raises InvalidArgumentError."""
        raise self._error()

    def _error(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            "it looks at samples or models, which are found by the positions of a run's stream: simulate it on a run of this dataset with "
            "--run RUN, and with --model ID by one model"
        )
