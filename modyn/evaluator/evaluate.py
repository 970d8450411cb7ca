"""The task of an evaluation worker: one model, one dataset, many intervals, one forward pass a sample."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from modyn.dataset.batch import Batch, Data, on_device
from modyn.dataset.connections import PayloadReader
from modyn.dataset.flight_batches import align
from modyn.dataset.functions import UserFunction, compile_function
from modyn.dataset.key_loader import KEYS_PER_READ, load_keys
from modyn.errors import ConfigError, UserCodeError
from modyn.evaluator.config import EvaluationDatasetConfig, load_dataset
from modyn.evaluator.job import EvaluationJob, Score
from modyn.evaluator.metrics import TRANSFORMER, Metric, MetricValue, build_metric
from modyn.evaluator.outputs import KeptOutputs, Rows
from modyn.model_storage.client import ModelStorageClient
from modyn.models.build import build_model
from modyn.models.weights import load_weights
from modyn.records import Int64Array, Interval, SampleBatch
from modyn.storage.client import StorageClient
from modyn.workers import Report

PROGRESS_EVERY_S: Final = 0.3


def run(job: EvaluationJob, report: Report) -> list[Score]:
    """Task of a worker process: fetch the model, evaluate it, return the scores.

    Progress messages are (samples seen, samples in all). Raises CancelledError when the job is asked to stop.
    """
    last = 0.0

    def progress(seen: int, total: int) -> None:
        nonlocal last
        report.check()
        if time.monotonic() - last >= PROGRESS_EVERY_S or seen == total:
            last = time.monotonic()
            report.send((seen, total))

    dataset = load_dataset(job.dataset)
    with ModelStorageClient(job.model_storage) as models:
        stored = models.get(job.model_id, job.scratch / "model.safetensors")
    model = build_model(stored.model_class, stored.model_config)
    load_weights(model, stored.path)
    kept = KeptOutputs(job.outputs, _outputs_name(job, stored.version.weights_sha256), job.scratch) if job.outputs else None
    report.check()
    with StorageClient(job.payloads.storage) as storage, job.payloads.open() as payloads:
        return evaluate(model, dataset, job.intervals, storage, payloads, device=job.device, progress=progress, kept=kept)


def evaluate(
    model: nn.Module,
    dataset: EvaluationDatasetConfig,
    intervals: Sequence[Interval],
    storage: StorageClient,
    payloads: PayloadReader,
    *,
    device: str = "cpu",
    progress: Callable[[int, int], None] = lambda seen, total: None,
    kept: KeptOutputs | None = None,
    keys_per_listing: int = KEYS_PER_READ,
) -> list[Score]:
    """Every metric of `dataset` on every one of the (distinct) intervals: by interval, then by metric in the order of the section.

    Each sample of the union of the intervals is fetched, decoded and passed through the model once, unless its output is `kept`; new
    outputs are kept if all goes well. `progress` is called after each batch with the samples seen and to see; what it raises ends the
    evaluation. keys_per_listing: keys in one batch of storage's listing. The model is left in evaluation mode on `device`.
    """
    tallies = [IntervalMetrics(interval, [build_metric(section) for section in dataset.metrics]) for interval in intervals]
    transform = _Transformers(dataset)
    merged = union(intervals)
    total = sum(storage.count_samples(dataset.dataset_id, interval) for interval in merged)
    samples = _Samples(dataset.dataset_id, intervals, storage, kept, keys_per_listing)
    batches = load_keys(
        samples.keys(),
        dataset,
        dataset.batch_size,
        num_threads=dataset.dataloader_workers,
        pin_memory=device.startswith("cuda"),
        payloads=payloads,
    )
    seen = 0

    def tally(output: Any, keys: Int64Array, labels: torch.Tensor, timestamps: Int64Array) -> None:
        nonlocal seen
        outputs = transform(output, keys)
        for number, inside in members(intervals, timestamps):
            tallies[number].update(outputs, labels, inside)
        seen += len(keys)
        progress(seen, total)

    with closing(batches), _evaluating(model, device):
        for batch in on_device(batches, device):
            timestamps = samples.timestamps_of(batch)
            output = forward(model, batch.data)
            if kept is not None:
                kept.add(_rows(batch, timestamps, output))
            tally(output, batch.keys.numpy(), batch.labels, timestamps)
        for rows in samples.kept_rows(dataset.batch_size):
            tally(torch.from_numpy(rows.outputs).to(device), rows.keys, torch.from_numpy(rows.labels).to(device), rows.timestamps)
    if kept is not None:
        kept.publish()
    return [score for tally, listed in zip(tallies, samples.listed, strict=True) for score in tally.scores(listed)]


def forward(model: nn.Module, data: Data) -> Any:
    """The model's output for a batch; a tuple of inputs is passed by position, a dictionary by name."""
    if isinstance(data, tuple):
        return model(*data)
    return model(**data) if isinstance(data, dict) else model(data)


def _rows(batch: Batch, timestamps: Int64Array, output: Any) -> Rows | None:
    """What is kept of a batch, as copies; None for an output that is not one plain tensor with a row a sample."""
    if not isinstance(output, torch.Tensor) or output.shape[:1] != (len(batch),) or output.layout != torch.strided:
        return None
    if torch.bfloat16 in (output.dtype, batch.labels.dtype):  # unknown to NumPy
        return None
    outputs, labels = (np.array(tensor.cpu().numpy()) for tensor in (output, batch.labels))
    return Rows(np.array(batch.keys.numpy()), timestamps, labels, outputs)


class IntervalMetrics:
    """The metrics of one interval and the number of samples that they have seen."""

    def __init__(self, interval: Interval, metrics: list[Metric]) -> None:
        self._interval = interval
        self._metrics = metrics
        self._seen = 0

    def update(self, outputs: list[Any], labels: torch.Tensor, inside: Int64Array) -> None:
        """Add the samples of one batch that lie in the interval.

        Args: outputs: for each metric, in order, its input for the batch. labels: (n,). inside: int64, positions in the batch.
        """
        self._seen += len(inside)
        index = None if len(inside) == len(labels) else torch.from_numpy(inside).to(labels.device)
        for metric, output in zip(self._metrics, outputs, strict=True):
            if index is None:
                metric.update(output, labels)
            else:
                metric.update(output[index], labels[index])

    def scores(self, num_listed: int) -> Iterator[Score]:
        """Return one score for each metric. num_listed: samples of the interval, those deleted meanwhile included."""
        for metric in self._metrics:
            found = metric.value() if self._seen else MetricValue(None, "undefined: there are no samples in the interval")
            notes = [found.note] if found.note else []
            if self._seen < num_listed:
                notes.append(f"{num_listed - self._seen} of {num_listed} samples were deleted before they could be evaluated")
            yield Score(self._interval, metric.label, found.value, "; ".join(notes), self._seen, num_listed)


class _Transformers:
    """The metrics' evaluation transformers: each distinct one is called once a batch."""

    def __init__(self, dataset: EvaluationDatasetConfig) -> None:
        self._dataset_id = dataset.dataset_id
        self._texts = [section.get(TRANSFORMER) for section in dataset.metrics]
        self._functions: dict[str | None, UserFunction] = {
            text: compile_function(text, TRANSFORMER) for text in dict.fromkeys(self._texts) if text is not None
        }

    def __call__(self, output: Any, keys: Int64Array) -> list[Any]:
        """What each metric gets of the model's output for these samples."""

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
                raise UserCodeError(f"metrics need one row a sample: {what} returned {given} in {named()}; use {TRANSFORMER}")
        return [outputs[text] for text in self._texts]


@contextmanager
def _evaluating(model: nn.Module, device: str) -> Iterator[None]:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"evaluation.device is '{device}', but the evaluator's machine has no usable GPU; write cpu")
    if device.startswith("cuda"):
        # Code that asks for the current GPU must not take memory of the first one.
        torch.cuda.set_device(torch.device(device).index or 0)
    model.to(device)
    model.eval()
    with torch.inference_mode():
        yield


class _Samples:
    """The stream of keys in the intervals without a kept output, and the timestamps of those that come back as batches.

    Used by two threads without a lock: one pulls the keys and appends to `_waiting`, the other takes timestamps from its front, in the
    same order; appending to a deque and taking from it are single operations.
    """

    def __init__(
        self,
        dataset_id: str,
        intervals: Sequence[Interval],
        storage: StorageClient,
        kept: KeptOutputs | None,
        keys_per_listing: int,
    ) -> None:
        self._kept = kept
        self._keys_per_listing = keys_per_listing
        self._dataset_id = dataset_id
        self._intervals = intervals
        self._storage = storage
        self._waiting: deque[SampleBatch] = deque()
        self._done = 0
        self.listed = [0] * len(intervals)
        """Samples that storage listed for each interval; complete once `keys` is exhausted."""

    def keys(self) -> Iterator[Int64Array]:
        for batch in self._list():
            for number, inside in members(self._intervals, batch.timestamps):
                self.listed[number] += len(inside)
            fresh = _without(self._kept, batch) if self._kept else batch
            if len(fresh):
                self._waiting.append(fresh)
                yield fresh.keys

    def kept_rows(self, at_most: int) -> Iterator[Rows]:
        """The samples with a kept output that storage still lists, at most `at_most` at a time. To be called once `keys` is exhausted:
        samples deleted since then count as listed and not seen."""
        if self._kept:
            for batch in self._list():
                yield from self._kept.rows(batch.keys, batch.timestamps, at_most)

    def _list(self) -> Iterator[SampleBatch]:
        for interval in union(self._intervals):
            yield from self._storage.samples_in_interval(self._dataset_id, interval, self._keys_per_listing)

    def timestamps_of(self, batch: Batch) -> Int64Array:
        """int64 (n,). To be called once for each batch, in order; samples that did not come back are skipped."""
        keys = batch.keys.numpy()
        found: list[Int64Array] = []
        while len(keys):
            front = self._waiting[0]
            # Keys are unique in the stream: those of the front that are in the batch are a beginning of it.
            rest = front.keys[self._done :]
            here = int(np.isin(keys, rest).sum())
            where = align(front.keys, self._done, keys[:here])
            found.append(front.timestamps[where])
            keys = keys[here:]
            self._done = int(where[-1]) + 1 if here else self._done
            if len(keys) or self._done == len(front):
                self._waiting.popleft()
                self._done = 0
        return np.concatenate([np.empty(0, np.int64), *found])


def _without(kept: KeptOutputs, batch: SampleBatch) -> SampleBatch:
    fresh = ~kept.has(batch.keys, batch.timestamps)
    return SampleBatch(batch.keys[fresh], batch.timestamps[fresh], batch.labels[fresh])


def _outputs_name(job: EvaluationJob, weights_sha256: str) -> str:
    """The name of the outputs of this model for samples decoded in this way. Contains the weights: another database repeats ids."""
    return f"{job.model_id}-{hashlib.sha256(f'{weights_sha256} {job.decoding}'.encode()).hexdigest()[:32]}"


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals in order that hold the same times; those that touch are joined, empty ones are left out.

    >>> union([Interval(5, 9), Interval(0, 3), Interval(3, 6), Interval(7, 7)])
    [Interval(start=0, end=9)]
    """
    merged: list[Interval] = []
    for interval in sorted((i for i in intervals if i.start < i.end), key=lambda i: (i.start, i.end)):
        if merged and interval.start <= merged[-1].end:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].end, interval.end))
        else:
            merged.append(interval)
    return merged


def members(intervals: Sequence[Interval], timestamps: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """For each interval that holds any of the samples: its number, and the positions of those it holds. timestamps: int64 (n,)."""
    if not len(timestamps):
        return
    first, last = int(timestamps.min()), int(timestamps.max())
    for number, interval in enumerate(intervals):
        if interval.start <= last and first < interval.end:
            inside = np.flatnonzero((timestamps >= interval.start) & (timestamps < interval.end))
            if len(inside):
                yield number, inside
