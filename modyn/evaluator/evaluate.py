"""The task of an evaluation worker: one model, one dataset, many intervals, and one forward pass for each sample."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from modyn.dataset.batch import Batch, on_device
from modyn.dataset.batch_preprocessing import transform_batch
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.code.functions import UserFunction, compile_function
from modyn.dataset.connections import DatasetSource, PayloadReader, PayloadSource
from modyn.dataset.key_loader import KEYS_PER_READ, load_keys
from modyn.dataset.session_connections import SessionConnections
from modyn.errors import ConfigError, ModynError, UserCodeError
from modyn.evaluator.config import EvaluationDatasetConfig, load_dataset
from modyn.evaluator.metrics.metrics import TRANSFORMER, Metric, MetricValue, build_metrics
from modyn.evaluator.metrics.outcomes import outcomes
from modyn.evaluator.outputs import EvaluationJob, KeptOutputs, write_rows
from modyn.evaluator.records import AtPositions, InIntervals, OutputKind, Rows, SampleSource, Score
from modyn.evaluator.samples import SampleLister
from modyn.evaluator.session_model import SessionModel
from modyn.models.calls import Data, embedding, forward, logits
from modyn.preprocessing import Preprocessing
from modyn.records import Int64Array, Interval, SampleBatch, has_label
from modyn.rpc.logs import configure_logs, get_logger
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.workers import JobConnection
from modyn.workers.devices import missing_device

PROGRESS_EVERY_S: Final = 0.3
"""Smallest number of seconds between two progress messages."""


@dataclass(frozen=True, slots=True)
class EvaluationInput:
    """The data and the options of an evaluation."""

    dataset: EvaluationDatasetConfig
    source: SampleSource
    """The samples to evaluate on. The intervals are distinct, but may overlap."""
    storage: StorageClient
    payloads: PayloadReader
    identity: str = ""
    """Identity of the expected registration of the dataset; NotFoundError if the dataset has another identity. Empty accepts any identity."""
    device: str = "cpu"
    progress: Callable[[int, int], None] = lambda seen, total: None
    """Function called after each batch with the number of samples seen and the number of all samples. An exception ends the evaluation."""
    kept: KeptOutputs | None = None
    """Outputs of earlier evaluations, which are reused; new outputs are added if the evaluation succeeds. None if outputs are not kept."""
    keys_per_listing: int = KEYS_PER_READ
    """Number of keys in one batch of the listing."""
    selector: SelectorClient | None = None
    """Client that reads the samples at positions of a stream."""
    payload_source: PayloadSource | None = None
    """Client from which decoding processes fetch payloads; None if threads decode."""
    cache: CacheSource | None = None
    """Cache from which samples are read; None without a cache."""
    preprocessing: Preprocessing | None = None
    """Preprocessing with the model's fixed statistics, which makes the model's inputs from columns. None if samples are decoded to the model's
    inputs.
    """

    @property
    def intervals(self) -> Sequence[Interval]:
        """Return the intervals to score. For keys and positions, the result is one interval that contains all times."""
        return self.source.intervals if isinstance(self.source, InIntervals) else [Interval()]

    @property
    def _lister(self) -> SampleLister:
        return SampleLister(self.dataset.dataset_id, self.identity, self.storage, self.selector, self.keys_per_listing)

    def count_samples(self) -> int:
        """Return the approximate number of samples, for progress."""
        return self._lister.count(self.source)

    def list_samples(self) -> Iterator[SampleBatch]:
        """Yield the samples of the source. For intervals and keys, samples without labels are left out. For positions, the windows decide whether
        samples without labels are included.
        """
        for batch in self._lister.batches(self.source):
            if isinstance(self.source, AtPositions) or (has := has_label(batch.labels)).all():
                yield batch
            else:
                yield SampleBatch(batch.keys[has], batch.timestamps[has], batch.labels[has])


def run(job: EvaluationJob, connection: JobConnection) -> list[Score] | list[Path]:
    """Run the task of a worker process: fetch the model, pass the samples through it, return the scores or the files with the rows.

    Progress messages are pairs: number of samples seen, number of all samples. Raises CancelledError when the job is stopped.
    """
    last = 0.0

    def progress(seen: int, total: int) -> None:
        nonlocal last
        # `check` raises CancelledError if the job was stopped. It is called for every batch, but a message is sent only for some batches.
        connection.check()
        if time.monotonic() - last >= PROGRESS_EVERY_S or seen == total:
            last = time.monotonic()
            connection.send((seen, total))

    request, config = job.request, job.config
    configure_logs("evaluator_worker", config.evaluator.log_level)
    dataset = load_dataset(request.dataset)
    connections = SessionConnections.of(connection.memory, config)
    model = SessionModel.of(request.model_id, connections.models, job.scratch, connection)
    source = DatasetSource(config, dataset.dataset_id, dataset.dataloader_workers)
    connection.check()
    inputs = EvaluationInput(
        dataset=dataset,
        source=job.source,
        storage=connections.storage,
        payloads=connections.payloads(source, job.data.identity),
        identity=job.data.identity,
        device=connection.device,
        progress=progress,
        kept=job.kept_outputs(model.weights_sha256),
        selector=connections.selector,
        payload_source=source,
        cache=connections.cache(config, request.cache, dataset),
        preprocessing=model.preprocessing(dataset),
    )
    if job.kind is OutputKind.SCORES:
        return evaluate(model.network, inputs)
    return _write_chunks(measure(model.network, inputs, job.kind), job.scratch)


def evaluate(model: nn.Module, inputs: EvaluationInput) -> list[Score]:
    """Compute every metric of the input's dataset on every interval. Scores are ordered by interval, then by metric in the order of the section.

    Each sample of the source is fetched, decoded and passed through the model once, unless the sample's output is kept. Afterwards the model is in
    evaluation mode on the input's device.

    Raises: ConfigError: the device does not exist. UserCodeError: a function of the section failed. DataError, NotFoundError, UnavailableError:
    samples cannot be read.
    """
    dataset, intervals = inputs.dataset, inputs.intervals
    by_metric = [build_metrics(section, len(intervals)) for section in dataset.metrics]
    metrics_by_interval = [IntervalMetrics(interval, metrics) for interval, *metrics in zip(intervals, *by_metric, strict=True)]
    transform = _Transformers(dataset)
    samples = _FreshSamples(inputs)
    with closing(_pass_samples(model, forward, inputs, samples)) as batches:
        for batch in batches:
            outputs = transform(batch.output, batch.keys)
            for number, inside in members(intervals, batch.timestamps):
                metrics_by_interval[number].update(outputs, batch.labels, inside)
    return [
        score for metrics, listed in zip(metrics_by_interval, samples.listed, strict=True) for score in metrics.scores(listed)
    ]


def measure(model: nn.Module, inputs: EvaluationInput, kind: OutputKind) -> Iterator[Rows]:
    """Return the logits, embeddings or outcomes of the samples of the source, in batches and in any order. For other errors, see `evaluate`.

    Raises: ConfigError: the model has no last layer, or outcomes are requested and the model is not a classifier. UserCodeError: the model's
    `embedding` does not return one row for each sample.
    """
    call = embedding if kind is OutputKind.EMBEDDINGS else logits
    with closing(_pass_samples(model, call, inputs, _FreshSamples(inputs))) as batches:
        for batch in batches:
            if not isinstance(batch.output, torch.Tensor) or batch.output.shape[:1] != (len(batch.keys),):
                raise UserCodeError(f"`embedding` of {type(model).__name__} must return one tensor with one row for each sample")
            output = outcomes(batch.output, batch.labels) if kind is OutputKind.OUTCOMES else batch.output
            labels, output = (t.float() if t.dtype is torch.bfloat16 else t for t in (batch.labels, output))
            yield Rows(batch.keys, batch.timestamps, np.array(labels.cpu().numpy()), np.array(output.cpu().numpy()))


def _write_chunks(chunks: Iterator[Rows], folder: Path) -> list[Path]:
    """Write rows into files of the folder, and return the files."""
    files = []
    for number, rows in enumerate(chunks):
        files.append(folder / f"measured-{number}")
        write_rows(files[-1], rows)
    return files


@dataclass(frozen=True, slots=True)
class _Passed:
    """Samples that have passed through the model, and the model's output for these samples, on the device."""

    keys: Int64Array
    timestamps: Int64Array
    labels: torch.Tensor
    output: Any


def _pass_samples(
    model: nn.Module, call: Callable[[nn.Module, Data], Any], inputs: EvaluationInput, samples: _FreshSamples
) -> Generator[_Passed, None, None]:
    """Pass each sample of the source through the model once, or read the sample's kept output. Args: call: calls the model for a batch."""
    dataset, device, kept = inputs.dataset, inputs.device, inputs.kept
    total, seen, cached = inputs.count_samples(), 0, Counter[str]()
    batches = load_keys(
        samples.keys(),
        dataset,
        dataset.batch_size,
        num_threads=dataset.dataloader_workers,
        identity=inputs.identity,
        pin_memory=device.startswith("cuda"),
        payloads=inputs.payloads,
        source=inputs.payload_source,
        cache=inputs.cache,
    )
    with closing(batches), _evaluating(model, device):
        for batch in on_device(batches, device):
            keys = batch.keys.numpy()
            timestamps = samples.take_timestamps(keys)
            if inputs.preprocessing is not None:
                batch = transform_batch(batch, inputs.preprocessing)  # noqa: PLW2901
            output = call(model, batch.data)
            if kept is not None:
                kept.add(_rows(batch, timestamps, output))
            yield _Passed(keys, timestamps, batch.labels, output)
            seen += len(keys)
            cached.update(batch.cached._asdict())
            inputs.progress(seen, total)
        if inputs.cache is not None:
            get_logger("evaluation").info("samples", num_passed=seen, num_cached=dict(+cached))
        if kept:
            # Kept outputs are read after the new outputs, because `samples.listed` is complete only now. Samples that were deleted after the listing
            # count as not evaluated.
            for listed in inputs.list_samples():
                for rows in kept.rows(listed.keys, listed.timestamps, dataset.batch_size):
                    outputs, labels = (torch.from_numpy(column).to(device) for column in (rows.outputs, rows.labels))
                    yield _Passed(rows.keys, rows.timestamps, labels, outputs)
                    seen += len(rows.keys)
                    inputs.progress(seen, total)
    if kept is not None:
        kept.publish()


def _rows(batch: Batch, timestamps: Int64Array, output: Any) -> Rows | None:
    """Copy the rows of a batch for the kept outputs. Return None if the output is not one plain tensor with one row for each sample."""
    if not isinstance(output, torch.Tensor) or output.shape[:1] != (len(batch),) or output.layout != torch.strided:
        return None
    if torch.bfloat16 in (output.dtype, batch.labels.dtype):  # a dtype that NumPy does not have
        return None
    outputs, labels = (np.array(tensor.cpu().numpy()) for tensor in (output, batch.labels))
    return Rows(np.array(batch.keys.numpy()), timestamps, labels, outputs)


class IntervalMetrics:
    """The metrics of one interval, and the number of samples that the metrics have seen."""

    def __init__(self, interval: Interval, metrics: list[Metric]) -> None:
        self._interval = interval
        self._metrics = metrics
        self._seen = 0

    def update(self, outputs: list[Any], labels: torch.Tensor, inside: Int64Array) -> None:
        """Add the samples of one batch that are in the interval.

        Args: outputs: the input of each metric for the batch, in order. labels: (n,). inside: int64, positions in the batch.
        """
        self._seen += len(inside)
        index = slice(None) if len(inside) == len(labels) else torch.from_numpy(inside).to(labels.device)
        for metric, output in zip(self._metrics, outputs, strict=True):
            metric.update(output[index], labels[index])

    def scores(self, num_listed: int) -> Iterator[Score]:
        """Return one score for each metric. Args: num_listed: number of samples of the interval, including samples deleted during the evaluation."""
        for metric in self._metrics:
            found = metric.value() if self._seen else MetricValue(None, "undefined: the interval has no samples")
            notes = [found.note] if found.note else []
            if self._seen < num_listed:
                notes.append(
                    f"{num_listed - self._seen} of {num_listed} samples were not evaluated: deleted meanwhile, or left out by on_bad_sample"
                )
            yield Score(self._interval, metric.label, found.value, "; ".join(notes), self._seen, num_listed)


class _Transformers:
    """The evaluation transformers of the metrics. Each distinct transformer is called once for each batch."""

    def __init__(self, dataset: EvaluationDatasetConfig) -> None:
        self._dataset_id = dataset.dataset_id
        self._texts = [section.get(TRANSFORMER) for section in dataset.metrics]
        self._functions: dict[str | None, UserFunction] = {
            text: compile_function(text, TRANSFORMER) for text in dict.fromkeys(self._texts) if text is not None
        }

    def __call__(self, output: Any, keys: Int64Array) -> list[Any]:
        """Convert the model's output for these samples into the input of each metric."""

        def named() -> str:
            return f"the model's output for {len(keys)} samples of dataset '{self._dataset_id}', the first of which is {int(keys[0])}"

        outputs: dict[str | None, Any] = {None: output}
        for text, function in self._functions.items():
            outputs[text] = function(named, output)
        for text in self._texts:
            found = outputs[text]
            if not isinstance(found, torch.Tensor) or found.shape[:1] != (len(keys),):
                what = "the model" if text is None else TRANSFORMER
                given = (
                    f"a tensor of shape {list(found.shape)}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
                )
                raise UserCodeError(
                    f"metrics need one row for each sample: {what} returned {given} in {named()}; use {TRANSFORMER}"
                )
        return [outputs[text] for text in self._texts]


@contextmanager
def _evaluating(model: nn.Module, device: str) -> Iterator[None]:
    if missing := missing_device(device):
        raise ConfigError(f"evaluation.device: {missing}")
    if device.startswith("cuda"):
        # Otherwise user code that uses the current GPU would allocate memory on GPU 0.
        torch.cuda.set_device(torch.device(device).index or 0)
    model.to(device)
    model.eval()
    with torch.inference_mode():
        yield


class _FreshSamples:
    """The keys of samples without a kept output, as a stream, and the timestamps of these samples until their batches return.

    Two threads use this object without a lock. One thread reads the keys and inserts the timestamps; the other thread removes the timestamps
    afterwards. Inserting and removing a key are atomic operations.
    """

    def __init__(self, inputs: EvaluationInput) -> None:
        self._inputs = inputs
        self._timestamps: dict[int, int] = {}
        self.listed = [0] * len(inputs.intervals)
        """Number of samples that storage listed for each interval; complete once `keys` is exhausted."""

    def keys(self) -> Iterator[Int64Array]:
        kept = self._inputs.kept
        for batch in self._inputs.list_samples():
            for number, inside in members(self._inputs.intervals, batch.timestamps):
                self.listed[number] += len(inside)
            fresh = ~kept.has(batch.keys, batch.timestamps) if kept else slice(None)
            keys, timestamps = batch.keys[fresh], batch.timestamps[fresh]
            if len(keys):
                self._timestamps.update(zip(keys.tolist(), timestamps.tolist(), strict=True))
                yield keys

    def take_timestamps(self, keys: Int64Array) -> Int64Array:
        """Remove and return the timestamps, int64 (n,). This method is called once for each returned batch. Raises ModynError: a key is not in the
        stream."""
        try:
            return np.array([self._timestamps.pop(key) for key in keys.tolist()], np.int64)
        except KeyError as error:
            raise ModynError(f"storage returned key {error}, which was not requested, or listed it twice") from None


def members(intervals: Sequence[Interval], timestamps: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """Yield each interval that contains any of the samples: the number of the interval, and the positions of the samples in the interval.

    Args: intervals: in any order; intervals may overlap. timestamps: int64 (n,).
    """
    if not len(timestamps):
        return
    first, last = int(timestamps.min()), int(timestamps.max())
    for number, interval in enumerate(intervals):
        if interval.start <= last and first < interval.end:
            inside = np.flatnonzero((timestamps >= interval.start) & (timestamps < interval.end))
            if len(inside):
                yield number, inside
