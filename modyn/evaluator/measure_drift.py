"""The task of a worker that measures drift: the samples of two windows of a stream, what is compared of them, and the metrics."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from modyn.config.base import load_section
from modyn.config.policy import load_policy
from modyn.dataset.connections import DatasetSource
from modyn.dataset.key_loader import KEYS_PER_READ, load_keys
from modyn.errors import DataError, ModynError, UserCodeError
from modyn.evaluator.config import DriftDataConfig
from modyn.evaluator.connections import SessionConnections
from modyn.evaluator.drift import DRIFT_METRICS, DriftMetric, compare
from modyn.evaluator.drift.base import UNFIT, num_unfit
from modyn.evaluator.drift.projections import PROJECTIONS, Projection
from modyn.evaluator.evaluate import EvaluationInput, measure
from modyn.evaluator.kept_values import KeptValues
from modyn.evaluator.outcomes import probabilities
from modyn.evaluator.outputs import DriftJob
from modyn.evaluator.records import (
    AtPositions,
    ComparedData,
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
from modyn.records import Float32Array, Int64Array, RunId, SampleBatch, StreamWindow
from modyn.rpc.logs import configure_logs
from modyn.workers import JobConnection

_OUTPUTS: Final = {ComparedData.EMBEDDINGS: OutputKind.EMBEDDINGS, ComparedData.PREDICTIONS: OutputKind.LOGITS}


@dataclass(slots=True)
class DriftMemory:
    """What the commands of one session leave for the next: values of samples, and what never changes, the registered datasets of runs
    (`SampleLister.registered`)."""

    values: KeptValues
    model: SessionModel | None = None
    """Whose outputs are compared, while a question is answered."""
    registered: dict[RunId, tuple[str, str]] = field(default_factory=dict)


def run(job: DriftJob, connection: JobConnection) -> MeasuredDrift:
    """Task of a worker process: answer the question. The model and the values of samples stay in the memory of the session.

    Raises CancelledError when the job is asked to stop, and otherwise as `measure_drift`.
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
    )
    since = memory.values.clock + 1
    measured = measure_drift(request, job.data, inputs, memory)
    memory.model = None
    memory.values.trim(config.evaluator.session_embeddings_bytes, since)
    return measured


def measure_drift(request: DriftRequest, data: DataVersion, inputs: EvaluationInput, memory: DriftMemory) -> MeasuredDrift:
    """Answer the question: draw the samples of both windows, make what is compared of those for which none is kept, and measure.

    Args: data: what the samples are decoded from, and how. inputs: by what they are decoded and passed; its source is replaced.
        memory: holds the model, if one is needed; the values that are made are added to it.
    Returns: distances of the metrics that have enough samples, `min_samples`; none where the projection has too few.
    Raises: ConfigError: a metric or the projection is wrong, the model has no embedding, or the device is not there. DataError: what is
    compared is not finite. UserCodeError: a metric or what decodes samples failed. NotFoundError, UnavailableError: samples cannot be read.
    """
    question = request.question
    metrics = {name: _metric(section, name, question.seed) for name, section in question.metrics.items()}
    lister = SampleLister(
        inputs.dataset.dataset_id,
        inputs.identity,
        inputs.storage,
        inputs.selector,
        inputs.keys_per_listing,
        memory.registered,
    )
    reference, current = (_drawn(request, window, lister) for window in (question.reference, question.current))
    projection = _projection(question)
    if not _measurable(metrics, projection, len(reference), len(current)):
        return MeasuredDrift({}, len(reference), len(current))
    if question.data is ComparedData.LABELS:
        a, b, num_embedded = _of_labels(reference), _of_labels(current), 0
    else:
        values = _Values(question, data, inputs, memory, projection)
        a, b, num_embedded = values.of_windows(reference.keys, current.keys)
    found = MeasuredDrift({}, len(a), len(b), num_embedded)
    metrics = _measurable(metrics, projection, len(a), len(b))
    if not metrics:  # samples were deleted meanwhile, or left out by `on_bad_sample`
        return found
    x, y = (torch.from_numpy(rows).to(inputs.device) for rows in (a, b))
    del a, b
    _refuse_unfit(question, x, y)
    if projection is not None and projection.is_fitted:
        projection.fit(x)
        x, y = projection.apply(x), projection.apply(y)
    distances = {}
    for name, metric in metrics.items():
        inputs.progress(0, 0)
        distances[name] = _distance(name, metric, x, y)
    return replace(found, distances=distances)


def _measurable(
    metrics: Mapping[str, DriftMetric], projection: Projection | None, num_reference: int, num_current: int
) -> dict[str, DriftMetric]:
    """The metrics that have enough samples in both windows; none of them where the projection has too few to learn from."""
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


_ADVICE: Final = {
    ComparedData.EMBEDDINGS: "model {id} has diverged: lower its learning rate or clip its gradients, or compare what needs no model (on: payload)",
    ComparedData.PREDICTIONS: "model {id} has diverged: lower its learning rate or clip its gradients, or compare what needs no model (on: payload)",
    ComparedData.PAYLOAD: "its samples hold them, or what decodes them makes them: correct data.bytes_parser_function",
    ComparedData.LABELS: "its labels hold them",
}


def _refuse_unfit(question: DriftQuestion, reference: torch.Tensor, current: torch.Tensor) -> None:
    """Raise DataError if anything that is to be compared cannot be, and say what to do about it."""
    for window, rows in (("reference", reference), ("current", current)):
        if number := num_unfit(rows):
            advice = _ADVICE[question.data].format(id=question.model_id)
            raise DataError(
                f"{number} of {len(rows)} {window} samples have {question.data} that are {UNFIT}, so drift cannot be measured; {advice}"
            )


def _distance(name: str, metric: DriftMetric, reference: torch.Tensor, current: torch.Tensor) -> DriftDistance:
    """Measure and time. Raises: what the metric raises, as an error that names it."""
    began = time.perf_counter()
    try:
        drift = compare(metric, reference, current)
    except ModynError as error:
        raise type(error)(f"drift metric '{name}': {error.message}") from error
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UserCodeError(
            f"drift metric '{name}' ({type(metric).__name__}) raised {type(error).__name__}: {error}; it compared {len(reference)} reference "
            f"and {len(current)} current samples of {reference[0].numel()} values"
        ) from error
    return DriftDistance(drift.distance, drift.p_value, time.perf_counter() - began)


def _drawn(request: DriftRequest, window: StreamWindow, lister: SampleLister) -> SampleBatch:
    """The samples of the window, or `sample_size` of them, ordered by key."""
    size, seed, held = request.question.sample_size, request.question.seed, list[SampleBatch]()
    for batch in lister.batches(AtPositions(request.run_id, [window])):
        held.append(batch)
        if size is not None and sum(map(len, held)) > size + KEYS_PER_READ:
            held = [drawn(SampleBatch.concatenate(held), size, seed)]
    return drawn(SampleBatch.concatenate(held), size, seed)


def drawn(samples: SampleBatch, size: int | None, seed: int) -> SampleBatch:
    """The `size` samples whose keys have the smallest hashes, ordered by key; None: all.

    So two windows that overlap draw mostly the same samples of what they share, and a sample that a window draws is drawn by each part of
    the window that holds it (bottom-k sampling).
    """
    chosen = np.arange(len(samples))
    if size is not None and size < len(samples):
        chosen = np.argpartition(hashes(samples.keys, seed), size - 1)[:size]
    chosen = chosen[np.argsort(samples.keys[chosen], kind="stable")]
    return SampleBatch(samples.keys[chosen], samples.timestamps[chosen], samples.labels[chosen])


def hashes(keys: Int64Array, seed: int) -> NDArray[np.uint64]:
    """A hash of each key, uint64 (n,): keys that differ have hashes that differ. (Steele, Lea and Flood: SplitMix, 2014, the mix of 64 bits.)"""
    seed_bits = np.array([seed & (2**64 - 1)], np.uint64)
    return _mixed(keys.astype(np.int64).view(np.uint64) ^ _mixed(seed_bits))


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _of_labels(samples: SampleBatch) -> NDArray[Any]:
    return samples.labels.astype(np.float64).reshape(-1, 1)


@dataclass(frozen=True, slots=True)
class _Values:
    """What is compared of samples: kept from an earlier question, or made now and kept."""

    question: DriftQuestion
    data: DataVersion
    inputs: EvaluationInput
    memory: DriftMemory
    projection: Projection | None

    def of_windows(self, reference: Int64Array, current: Int64Array) -> tuple[NDArray[Any], NDArray[Any], int]:
        """The values of the samples of two windows, float32 (n, d) and (m, d), and for how many of them they were made now.

        Args: reference, current: int64, keys of samples; those that are deleted meanwhile are left out.
        """
        values = self.memory.values
        table, num_made = values.table(self._made_by()), 0
        with closing(self._made(table.missing(np.union1d(reference, current)))) as chunks:
            try:
                for keys, rows in chunks:
                    table.add(keys, rows)
                    num_made += len(keys)
            finally:
                table.index()
        # The reference counts as used later: it is more likely to be asked for again.
        b = table.take(current, values.tick())
        return table.take(reference, values.tick()), b, num_made

    def _made_by(self) -> tuple[str, ...]:
        weights = self.memory.model.weights_sha256 if self.question.data.needs_model and self.memory.model else ""
        at_once = self._at_once and [self.question.projection, self.question.seed]
        return weights, self.data.digest, self.question.data, to_json(at_once, sort_keys=True)

    @property
    def _at_once(self) -> Projection | None:
        return self.projection if self.projection is not None and not self.projection.is_fitted else None

    def _made(self, keys: Int64Array) -> Generator[tuple[Int64Array, Float32Array], None, None]:
        """Keys and values of the samples, in batches and in any order."""
        projection, is_fitted = self._at_once, False
        with closing(self._passed(keys)) as chunks:
            for found, rows in chunks:
                values = rows.float().reshape(len(found), -1)
                if projection is not None:
                    if not is_fitted:
                        projection.fit(values)
                    is_fitted, values = True, projection.apply(values)
                yield found, values.numpy()

    def _passed(self, keys: Int64Array) -> Generator[tuple[Int64Array, torch.Tensor], None, None]:
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
    """Keys and decoded samples, flattened, in batches."""
    dataset = inputs.dataset
    batches = load_keys(
        keys,
        dataset,
        dataset.batch_size,
        num_threads=dataset.dataloader_workers,
        identity=inputs.identity,
        payloads=inputs.payloads,
        source=inputs.payload_source,
    )
    seen = 0
    with closing(batches):
        for batch in batches:
            yield batch.keys.numpy(), flattened(batch.data)
            seen += len(batch)
            inputs.progress(seen, len(keys))


def flattened(data: Data) -> torch.Tensor:
    """All values of each sample of a batch side by side, float32 (n, d); several tensors by position, or by name in order."""
    if isinstance(data, dict):
        data = tuple(data[name] for name in sorted(data))
    parts = data if isinstance(data, tuple) else (data,)
    return torch.cat([part.reshape(len(part), -1).float() for part in parts], 1)
