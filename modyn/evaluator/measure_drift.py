"""The task of a worker that measures drift: it lists the samples of pairs of windows, computes the compared values, and calls the metrics."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from modyn.config.base import load_section
from modyn.config.policy import load_policy
from modyn.config.trigger_parts import ComparedData
from modyn.dataset.connections import DatasetSource
from modyn.dataset.key_loader import load_keys
from modyn.dataset.session_connections import SessionConnections
from modyn.errors import ConfigError, DataError, ModynError, UserCodeError
from modyn.evaluator.config import DriftDataConfig
from modyn.evaluator.drawn_samples import DrawnSamples, drawn_of
from modyn.evaluator.drift import DRIFT_METRICS, DriftMetric, compare
from modyn.evaluator.drift.base import UNFIT, TooFewSamplesError, centred_rows, compare_kept, num_unfit
from modyn.evaluator.drift.kept_sums import KeptSums, PartedWindow, PartOfWindow, SumKeeper
from modyn.evaluator.drift.projections import PROJECTIONS, Projection
from modyn.evaluator.evaluate import EvaluationInput, measure
from modyn.evaluator.kept_values import KeptValues
from modyn.evaluator.metrics.outcomes import probabilities
from modyn.evaluator.outputs import DriftJob
from modyn.evaluator.records import (
    AtPositions,
    DriftDistance,
    DriftQuestion,
    DriftRequest,
    MeasuredDrift,
    OfKeys,
    OutputKind,
)
from modyn.evaluator.samples import SampleLister
from modyn.evaluator.session_model import SessionModel
from modyn.evaluator.trigger_section import metric_options
from modyn.evaluator.versions import DataVersion
from modyn.json_codec import to_json
from modyn.models.calls import Data
from modyn.records import Float32Array, Int64Array, LabelArray, RunId
from modyn.rpc.logs import configure_logs
from modyn.workers import JobConnection

_OUTPUTS: Final = {ComparedData.EMBEDDINGS: OutputKind.EMBEDDINGS, ComparedData.PREDICTIONS: OutputKind.LOGITS}
_UNFIT_ADVICE: Final = {
    ComparedData.EMBEDDINGS: "model {id} has diverged: lower its learning rate or clip its gradients, or compare what needs no model (on: payload)",
    ComparedData.PREDICTIONS: "model {id} has diverged: lower its learning rate or clip its gradients, or compare what needs no model (on: payload)",
    ComparedData.PAYLOAD: "its samples hold them, or what decodes them makes them: correct data.bytes_parser_function",
    ComparedData.LABELS: "its labels hold them",
}


@dataclass(slots=True)
class DriftMemory:
    """State of a worker session: values of samples, and registered datasets of runs, which never change (see `SampleLister.registered`)."""

    values: KeptValues
    model: SessionModel | None = None
    """The model of the current request; None between requests."""
    registered: dict[RunId, tuple[str, str]] = field(default_factory=dict)
    sums: KeptSums = field(default_factory=KeptSums)
    """Sums over pairs of samples."""


def run(job: DriftJob, connection: JobConnection) -> list[MeasuredDrift]:
    """Run the task of a worker process: answer the question for each pair of windows. The model and the values of samples stay in memory for the
    session.

    Raises CancelledError when the job is stopped, and the errors of `measure_drifts`.
    """
    request, config = job.request, job.config
    configure_logs("evaluator_worker", config.evaluator.log_level)
    memory: DriftMemory = connection.memory.setdefault("drift", DriftMemory(KeptValues()))
    dataset = load_section(DriftDataConfig, request.dataset, "data")
    connections = SessionConnections.of(connection.memory, config)
    if request.question.data.needs_model:
        model_id = request.question.model_id
        assert model_id is not None, "the service has checked the question"
        memory.model = SessionModel.of(model_id, connections.models, job.scratch, connection)
    source = DatasetSource(config, dataset.dataset_id, dataset.dataloader_workers)
    connection.check()
    inputs = EvaluationInput(
        dataset=dataset,
        source=AtPositions(request.run_id, []),
        storage=connections.storage,
        payloads=connections.payloads(source, job.data.identity),
        identity=job.data.identity,
        device=connection.device,
        progress=lambda seen, total: connection.check(),
        selector=connections.selector,
        payload_source=source,
        cache=connections.cache(config, request.cache, dataset),
        preprocessing=None if memory.model is None else memory.model.preprocessing(dataset),
    )
    answers = measure_within(config.evaluator.session_embeddings_bytes, request, job.data, inputs, memory)
    # The session holds the model. A second reference would keep it in memory while the next job loads another model.
    memory.model = None
    return answers


def measure_within(
    limit: int, request: DriftRequest, data: DataVersion, inputs: EvaluationInput, memory: DriftMemory
) -> list[MeasuredDrift]:
    """Call `measure_drifts`, and keep at most `limit` bytes of values in memory afterwards."""
    # `trim` keeps the values that this request uses as long as possible, because the next pair of windows needs most of these values.
    since, answers = memory.values.clock + 1, list[MeasuredDrift]()
    for measured in measure_drifts(request, data, inputs, memory):
        answers.append(measured)
        if memory.values.num_bytes > limit:
            memory.values.trim(limit, since)
    memory.values.trim(limit, since)
    return answers


def measure_drifts(
    request: DriftRequest, data: DataVersion, inputs: EvaluationInput, memory: DriftMemory
) -> Iterator[MeasuredDrift]:
    """Answer the question for each pair of windows in turn: draw the samples of both windows, compute the values that are not cached, and measure.

    Args: data: version of the dataset and of the decoding. inputs: options for decoding samples and for the model; the source of the samples is
    replaced. memory: holds the model, if a model is needed; new values are added to the memory.
    Yields: distances of the metrics that have at least `min_samples` samples; no distances if the projection has too few samples.
    Raises: ConfigError: a metric or the projection is wrong, the model has no embedding, or the device does not exist. DataError: a compared value
    is not finite. UserCodeError: a metric or the decoding of samples failed. NotFoundError, UnavailableError: samples cannot be read.
    """
    question, pairs = request.question, request.asked_pairs
    metrics = {name: _metric(section, name, question.seed) for name, section in question.metrics.items()}
    lister = SampleLister(
        inputs.dataset.dataset_id,
        inputs.identity,
        inputs.storage,
        inputs.selector,
        inputs.keys_per_listing,
        memory.registered,
    )
    windows = list(dict.fromkeys(window for pair in pairs for window in (pair.reference, pair.current)))
    drawn_windows = drawn_of(request, windows, lister)
    values = _Values(question, data, inputs, memory, _projection(question))
    sums = SumKeeper(memory.sums)
    for pair in pairs:
        yield _measure(question, metrics, values, (drawn_windows[pair.reference], drawn_windows[pair.current]), sums)


def _measure(
    question: DriftQuestion,
    metrics: Mapping[str, DriftMetric],
    values: _Values,
    drawn_pair: tuple[DrawnSamples, DrawnSamples],
    sums: SumKeeper,
) -> MeasuredDrift:
    """Measure one pair. Args: drawn_pair: the samples of the reference and the current window."""
    reference, current = drawn_pair
    projection, inputs = values.projection, values.inputs
    if not _measurable(metrics, projection, len(reference), len(current)):
        return MeasuredDrift({}, len(reference), len(current))
    num_embedded = 0
    if question.data is not ComparedData.LABELS:
        reference, current, num_embedded = values.make_for(reference, current)
    found = MeasuredDrift({}, len(reference), len(current), num_embedded)
    metrics = _measurable(metrics, projection, len(reference), len(current))
    if not metrics:  # Samples were deleted during the question, or left out by `on_bad_sample`.
        return found
    compared = _Compared(values, reference, current)
    distances = {}
    for name, metric in metrics.items():
        # `progress` raises CancelledError if the job was stopped.
        inputs.progress(0, 0)
        if question.data is ComparedData.LABELS and metric.by_category:
            _refuse_quantities(name, np.concatenate([reference.labels, current.labels]))
        with suppress(TooFewSamplesError):
            distances[name] = _distance(name, metric, compared, sums)
    return replace(found, distances=distances)


def _measurable(
    metrics: Mapping[str, DriftMetric], projection: Projection | None, num_reference: int, num_current: int
) -> dict[str, DriftMetric]:
    """Return the metrics that have enough samples in both windows; no metrics if the projection has too few samples to learn from."""
    if projection is not None and num_reference < projection.min_samples:
        return {}
    return {name: metric for name, metric in metrics.items() if min(num_reference, num_current) >= metric.min_samples}


def _metric(section: Mapping[str, Any], name: str, seed: int) -> DriftMetric:
    options: Any = metric_options(section)
    metric, config = load_policy(DRIFT_METRICS, options, "id", f"metrics.{name}")
    try:
        return metric(config, seed)
    except Exception as error:
        raise UserCodeError(
            f"drift metric '{name}' ({metric.__name__}) cannot be built: {type(error).__name__}: {error}"
        ) from error


def _projection(question: DriftQuestion) -> Projection | None:
    if question.projection is None:
        return None
    projection, config = load_policy(PROJECTIONS, question.projection, "id", "projection")
    return projection(config, question.seed)


class _Compared:
    """The values of two windows. A metric reads all values together, or part by part."""

    def __init__(self, values: _Values, reference: DrawnSamples, current: DrawnSamples) -> None:
        self._values = values
        self._samples = {"reference": reference, "current": current}

    def __str__(self) -> str:
        """Describe the windows for messages."""
        reference, current = self.rows
        return f"{len(reference)} reference and {len(current)} current samples of {reference[0].numel()} values"

    @cached_property
    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of the reference, (n, d), and of the current window, (m, d), projected. Raises: DataError: the values cannot be
        compared.
        """
        x, y = (self._fit(window) for window in ("reference", "current"))
        projection = self._values.projection
        if projection is not None and projection.is_fitted:
            projection.fit(x)
            return projection.apply(x), projection.apply(y)
        return x, y

    @cached_property
    def parts(self) -> tuple[PartedWindow, PartedWindow] | None:
        """Return both windows in parts; None if the values depend on a projection that is fitted to the reference."""
        if self._values.projection is not None and self._values.projection.is_fitted:
            return None
        return self._parted("reference"), self._parted("current")

    def _fit(self, window: str) -> torch.Tensor:
        rows = self._values.read(self._samples[window], slice(None))
        _refuse_unfit(self._values.question, window, rows)
        return rows

    def _parted(self, window: str) -> PartedWindow:
        samples = self._samples[window]
        parts = samples.parts()
        name = self._values.name

        def read(number: int) -> torch.Tensor:
            rows = self._values.read(samples, parts[number])
            if num_unfit(rows):
                self._fit("reference")
                self._fit(window)
            return rows

        named = [PartOfWindow(name(samples.keys[part]), len(part)) for part in parts]
        return PartedWindow(named, read, lambda: centred_rows(self._fit(window)))


def _distance(name: str, metric: DriftMetric, compared: _Compared, sums: SumKeeper) -> DriftDistance:
    """Measure the distance and the time. The name of the metric is added to its errors."""
    began, parts = time.perf_counter(), compared.parts
    try:
        drift = None if parts is None else compare_kept(metric, *parts, sums)
        if drift is None:
            rows = compared.rows
            began = time.perf_counter()
            drift = compare(metric, *rows)
    except ModynError as error:
        raise type(error)(f"drift metric '{name}': {error.message}") from error
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UserCodeError(
            f"drift metric '{name}' ({type(metric).__name__}) raised {type(error).__name__}: {error}; it compared {compared}"
        ) from error
    return DriftDistance(drift.distance, drift.p_value, time.perf_counter() - began)


@dataclass(frozen=True)
class _Values:
    """The compared values of samples. Values come from the cache of the session, or are computed and added to this cache."""

    question: DriftQuestion
    data: DataVersion
    inputs: EvaluationInput
    memory: DriftMemory
    projection: Projection | None

    def make_for(self, reference: DrawnSamples, current: DrawnSamples) -> tuple[DrawnSamples, DrawnSamples, int]:
        """Compute the missing values of two windows. Returns: the samples of both windows that have a value, and the number of computed values.
        Samples without a value were deleted meanwhile, or left out by `on_bad_sample`.
        """
        values = self.memory.values
        table, num_made = values.table(self._made_by), 0
        with closing(self._make(table.missing(np.union1d(reference.keys, current.keys)))) as chunks:
            try:
                for keys, rows in chunks:
                    table.add(keys, rows)
                    num_made += len(keys)
            finally:
                if num_made:
                    table.index()
        # The reference gets the later tick, because a reference is more likely to be used again.
        of_current, of_reference = (table.found(samples.keys, values.tick()) for samples in (current, reference))
        return reference.take(of_reference), current.take(of_current), num_made

    def read(self, samples: DrawnSamples, which: Int64Array | slice) -> torch.Tensor:
        """Return the values of some of these samples on the device, (m, d). All selected samples must have a value. Args: which: indices."""
        if self.question.data is ComparedData.LABELS:
            rows: NDArray[Any] = samples.labels[which].astype(np.float64).reshape(-1, 1)
        else:
            rows = self.memory.values.table(self._made_by).take(samples.keys[which])
        return torch.from_numpy(rows).to(self.inputs.device)

    def name(self, keys: Int64Array) -> bytes:
        """Name the values of these samples uniquely. The name begins with a hash of the keys alone, because the order of names decides the order in
        which two parts are compared. Results are therefore equal to the last bit, even if the dataset was registered again."""
        return hashlib.blake2b(keys.tobytes(), digest_size=16).digest() + self._key

    @cached_property
    def _key(self) -> bytes:
        made_by = to_json([*self._made_by, str(self.inputs.device)])
        return hashlib.blake2b(made_by.encode(), digest_size=16).digest()

    @cached_property
    def _made_by(self) -> tuple[str, ...]:
        weights = self.memory.model.weights_sha256 if self.question.data.needs_model and self.memory.model else ""
        at_once = self._at_once and [self.question.projection, self.question.seed]
        return weights, self.data.digest, self.question.data, to_json(at_once, sort_keys=True)

    @property
    def _at_once(self) -> Projection | None:
        return self.projection if self.projection is not None and not self.projection.is_fitted else None

    def _make(self, keys: Int64Array) -> Generator[tuple[Int64Array, Float32Array], None, None]:
        """Yield keys and values of the samples, in batches and in any order."""
        projection, is_fitted = self._at_once, False
        with closing(self._pass_samples(keys)) as chunks:
            for found, rows in chunks:
                values = rows.float().reshape(len(found), -1)
                if projection is not None:
                    if not is_fitted:
                        projection.fit(values)
                    is_fitted, values = True, projection.apply(values)
                yield found, values.numpy()

    def _pass_samples(self, keys: Int64Array) -> Generator[tuple[Int64Array, torch.Tensor], None, None]:
        if not len(keys):
            return
        if not self.question.data.needs_model:
            yield from _payloads(self.inputs, keys)
            return
        assert self.memory.model is not None, "the task has built the model"
        inputs = replace(self.inputs, source=OfKeys(keys))
        for rows in measure(self.memory.model.network, inputs, _OUTPUTS[self.question.data]):
            values = torch.from_numpy(rows.outputs)
            yield rows.keys, probabilities(values.float()) if self.question.data is ComparedData.PREDICTIONS else values


def _payloads(inputs: EvaluationInput, keys: Int64Array) -> Iterator[tuple[Int64Array, torch.Tensor]]:
    """Yield keys and decoded samples, flattened, in batches."""
    dataset = inputs.dataset
    if dataset.preprocessing is not None:
        raise ConfigError(
            f"payloads of dataset '{dataset.dataset_id}' are rows of columns: compare embeddings, predictions or labels"
        )
    batches = load_keys(
        keys,
        dataset,
        dataset.batch_size,
        num_threads=dataset.dataloader_workers,
        identity=inputs.identity,
        payloads=inputs.payloads,
        source=inputs.payload_source,
        cache=inputs.cache,
    )
    seen = 0
    with closing(batches):
        for batch in batches:
            yield batch.keys.numpy(), flattened(batch.data)
            seen += len(batch)
            inputs.progress(seen, len(keys))


def flattened(data: Data) -> torch.Tensor:
    """Flatten each sample of a batch, float32 (n, d). Several tensors are joined in the order of positions or of names."""
    if isinstance(data, dict):
        data = tuple(data[name] for name in sorted(data))
    parts = data if isinstance(data, tuple) else (data,)
    return torch.cat([part.reshape(len(part), -1).float() for part in parts], 1)


def _refuse_unfit(question: DriftQuestion, window: str, rows: torch.Tensor) -> None:
    """Raise DataError with advice if a sample of a window cannot be compared."""
    if number := num_unfit(rows):
        advice = _UNFIT_ADVICE[question.data].format(id=question.model_id)
        raise DataError(
            f"{number} of {len(rows)} {window} samples have {question.data} that are {UNFIT}, so drift cannot be measured; {advice}"
        )


def _refuse_quantities(name: str, labels: LabelArray) -> None:
    """Raise DataError if labels are quantities instead of classes. Args: name: the metric, which compares classes. labels: (n,)."""
    between = labels[np.isfinite(labels) & (labels != np.rint(labels))]
    if len(between):
        raise DataError(
            f"drift metric '{name}' compares labels as classes, and {len(between)} of {len(labels)} are not whole numbers, such as {between[0]:g}: "
            "compare quantities by another metric, such as KSDriftMetric"
        )
