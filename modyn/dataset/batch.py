"""Batches of tensors, and what is made of a stream of them: cut to a bound, joined where one holds a single sample, copied to a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
import torch

from modyn.dataset.preparation_clock import NO_TIMES, PreparationTimes
from modyn.models.calls import Data
from modyn.preprocessing.columns import ReadColumns
from modyn.records import Int64Array


def map_tensors(data: Data, function: Callable[[torch.Tensor], Any]) -> Any:
    """`function` applied to each tensor of `data`; tuples and dictionaries keep their form."""
    if isinstance(data, torch.Tensor):
        return function(data)
    if isinstance(data, tuple):
        return tuple(map(function, data))
    return {name: function(part) for name, part in data.items()}


class CachedCounts(NamedTuple):
    """How many samples came from each tier of a cache."""

    encoded: int = 0
    decoded: int = 0
    augmented: int = 0


NONE_CACHED: Final = CachedCounts()


class CacheWork(NamedTuple):
    """What was done for a cache only, beside the samples of a batch."""

    read: int = 0
    """Samples that were read from storage."""
    decoded: int = 0
    augmented: int = 0
    evicted: int = 0
    """Values that the sampler had dropped from its tier."""
    not_asked: int = 0
    """Samples that were not looked up, since the store was slow or away just before."""

    def plus(self, other: CacheWork) -> CacheWork:
        """Both together."""
        return CacheWork._make(a + b for a, b in zip(self, other, strict=True))


NO_WORK: Final = CacheWork()


class TierReport(NamedTuple):
    """What became of a batch in the tier that a sampler manages."""

    kept: Int64Array
    """Keys of samples whose values were put there."""
    lost: Int64Array
    """Keys of samples that the sampler took for cached, and the tier did not have."""


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that could not be decoded: where it lies, or how to find that out, and why."""

    key: int
    place: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """n samples. keys: int64 (n,). data: n rows. labels: n rows. weights: float32 (n,).

    epoch and index (from 0, within the epoch) say which batch of the plan it is. n is the batch size, except for the last batch of an
    epoch and where samples were left out; num_skipped: how many, deleted after they had been selected or bad (`on_bad_sample`); bad: of
    these the bad ones. cached: how many samples came from a cache. times: what preparing them took. report: of a batch that a sampler of the
    cache has decided. work: what was done for the cache only. columns: n rows of the section `preprocessing`, which become `data` where the
    statistics of the model are (`modyn.dataset.features`), and stay on the CPU; `data` holds no values until then. read: what was read of them when
    the batch was made, so that the loop need not; to be used while `columns` are still its source.
    """

    keys: torch.Tensor
    data: Data
    labels: torch.Tensor
    weights: torch.Tensor
    epoch: int = 0
    index: int = 0
    num_skipped: int = 0
    bad: tuple[BadSample, ...] = ()
    cached: CachedCounts = NONE_CACHED
    times: PreparationTimes = NO_TIMES
    report: TierReport | None = None
    work: CacheWork = NO_WORK
    columns: pa.RecordBatch | None = None
    read: ReadColumns | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        """The same batch with data, labels and weights on `device`; keys stay where they are.

        Args: non_blocking: copies from page-locked memory to a GPU are not waited for.
        """
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory, from which copies to a GPU need not be waited for."""
        return self._map(torch.Tensor.pin_memory)

    def take(self, positions: torch.Tensor, weights: torch.Tensor) -> Batch:
        """The samples at these positions, int64 (k,) on the CPU, with these weights, float32 (k,)."""
        rows = positions.to(self.labels.device)
        data = map_tensors(self.data, lambda tensor: tensor[rows])
        columns = None if self.columns is None else self.columns.take(pa.array(positions.numpy()))
        return replace(self, keys=self.keys[positions], data=data, labels=self.labels[rows], weights=weights, columns=columns)

    def slices(self, size: int) -> Iterator[Batch]:
        """The batch in pieces of at most `size` samples, without copying."""
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            data = map_tensors(self.data, lambda tensor, rows=rows: tensor[rows])  # type: ignore[misc]
            columns = None if self.columns is None else self.columns.slice(first, size)
            labels, weights = self.labels[rows], self.weights[rows]
            yield replace(self, keys=self.keys[rows], data=data, labels=labels, weights=weights, columns=columns)

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        data = map_tensors(self.data, function)
        return replace(self, data=data, labels=function(self.labels), weights=function(self.weights))


def bounded(batches: Iterator[Batch], num_samples: int) -> Iterator[Batch]:
    """The batches, the last of them cut so that they hold `num_samples` samples in all."""
    left = num_samples
    while left > 0 and (batch := next(batches, None)) is not None:
        yield batch if len(batch) <= left else next(batch.slices(left))
        left -= len(batch)


def joined(batches: Iterator[Batch], batches_in: Callable[[int], int], leave_out: Callable[[Batch], object]) -> Iterator[Batch]:
    """The batches; one with a single sample, because an epoch or deletions left no more, is part of the batch before it in its epoch,
    else of the one behind it, and left out where it is the only one of its epoch: BatchNorm cannot use it alone. Looks one batch ahead.

    Args: batches_in: returns how many batches an epoch has. leave_out: is given each batch that is left out.
    """

    def usable(batch: Batch | None) -> Iterator[Batch]:
        if batch is not None and len(batch) == 1:
            leave_out(batch)
        elif batch is not None:
            yield batch

    held: Batch | None = None
    for batch in batches:
        if held is not None and batch.epoch == held.epoch and 1 in (len(batch), len(held)):
            # The index says where a resumed training goes on, so never before these samples; the plan has none for a last batch of one.
            held = _concatenated(held, batch, min(batch.index, batches_in(batch.epoch) - 1))
            continue
        yield from usable(held)
        held = batch
    yield from usable(held)


def on_device(batches: Iterator[Batch], device: torch.device | str) -> Iterator[Batch]:
    """The same batches with data, labels and weights on `device`; keys stay where they are.

    For a CUDA device each batch is copied by a stream of its own, one ahead of the batch in use, and only the computing stream waits for the
    copy: from page-locked memory (`Batch.pin_memory`), copies run beside the computation.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return _copy_ahead(batches, device)
    # As they are made, they are on the CPU: to copy nothing would take longer than a step's own bookkeeping.
    return batches if device.type == "cpu" else (batch.to(device) for batch in batches)


def _copy_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    copied: tuple[Batch, torch.cuda.Event] | None = None
    for batch in batches:
        before, copied = copied, _start_copy(batch, device, copies)
        if before is not None:
            yield _use_copy(*before)
    if copied is not None:
        yield _use_copy(*copied)


def _start_copy(batch: Batch, device: torch.device, copies: torch.cuda.Stream) -> tuple[Batch, torch.cuda.Event]:
    # Page-locked memory is not used anew before the copies out of it are done: PyTorch's allocator sees to that.
    with torch.cuda.stream(copies):
        moved = batch.to(device, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(copies)
    return moved, done


def _use_copy(batch: Batch, done: torch.cuda.Event) -> Batch:
    """The batch, for use by the current stream: it waits for the copy, and the memory is not used anew before it is done with it."""
    using = torch.cuda.current_stream(batch.labels.device)
    using.wait_event(done)

    def record(tensor: torch.Tensor) -> torch.Tensor:
        tensor.record_stream(using)
        return tensor

    map_tensors((batch.labels, batch.weights), record)
    map_tensors(batch.data, record)
    return batch


def _concatenated(a: Batch, b: Batch, index: int) -> Batch:
    keys, labels, weights = (torch.cat(pair) for pair in ((a.keys, b.keys), (a.labels, b.labels), (a.weights, b.weights)))
    cached = CachedCounts(*map(sum, zip(a.cached, b.cached, strict=True)))
    num_skipped = a.num_skipped + b.num_skipped
    times = a.times.plus(b.times)
    work = a.work.plus(b.work)
    columns = None if a.columns is None or b.columns is None else pa.concat_batches([a.columns, b.columns])
    return Batch(
        keys, _both(a.data, b.data), labels, weights, a.epoch, index, num_skipped, a.bad + b.bad, cached, times,
        work=work, columns=columns,
    )  # fmt: skip


def _both(a: Data, b: Data) -> Data:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return tuple(torch.cat(pair) for pair in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return {name: torch.cat((part, b[name])) for name, part in a.items()}
    assert isinstance(a, torch.Tensor)
    assert isinstance(b, torch.Tensor)
    return torch.cat((a, b))
