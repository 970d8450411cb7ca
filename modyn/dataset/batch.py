"""Batches of tensors, and operations on streams of batches: cut to a bound, join a batch of one sample, copy to a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from modyn.cache.sample_numbers import NO_SAMPLES
from modyn.dataset.preparation_clock import NO_TIMES, PreparationTimes
from modyn.models.calls import Data
from modyn.preprocessing.columns import ReadColumns
from modyn.records import Int64Array


def map_tensors(data: Data, function: Callable[[torch.Tensor], Any]) -> Any:
    """Apply `function` to each tensor of `data`. Tuples and dictionaries keep their form."""
    if isinstance(data, torch.Tensor):
        return function(data)
    if isinstance(data, tuple):
        return tuple(map(function, data))
    return {name: function(part) for name, part in data.items()}


class CachedCounts(NamedTuple):
    """Number of samples from each tier of a cache."""

    encoded: int = 0
    decoded: int = 0
    augmented: int = 0


NONE_CACHED: Final = CachedCounts()


class CacheWork(NamedTuple):
    """Work that only the cache needs, in addition to the samples of a batch."""

    read: int = 0
    """Samples that were read from storage."""
    decoded: int = 0
    augmented: int = 0
    evicted: int = 0
    """Values that the sampler removed from the cache."""
    not_asked: int = 0
    """Samples that were not looked up, because the store had just been slow or unavailable."""

    def plus(self, other: CacheWork) -> CacheWork:
        """Return the sum of both."""
        return CacheWork._make(a + b for a, b in zip(self, other, strict=True))


NO_WORK: Final = CacheWork()


class TierReport(NamedTuple):
    """Changes that a batch, and samples prepared in the background, made to the tier of a sampler."""

    kept: Int64Array = NO_SAMPLES
    """Keys of samples whose values were put into the tier."""
    lost: Int64Array = NO_SAMPLES
    """Keys of samples that the tier does not have, because the tier lost a value that the sampler expected, or refused a new value."""

    def plus(self, other: TierReport) -> TierReport:
        """Return one report with the keys of both."""
        return TierReport(np.concatenate([self.kept, other.kept]), np.concatenate([self.lost, other.lost]))


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that could not be decoded: its key, its file and position or a command that prints them, and the reason."""

    key: int
    place: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """n samples. keys: int64 (n,). data: n rows. labels: n rows. weights: float32 (n,).

    epoch and index (from 0, within the epoch) identify the batch in the plan. n is the batch size, or less in the last batch of an epoch and in a
    batch with samples left out. num_skipped: number of samples that were left out, because they were deleted after selection or are bad
    (`on_bad_sample`). bad: the bad samples. cached: number of samples from each tier of a cache. times: times of preparing the samples. report:
    changes in the tier of a sampler. work: work for the cache only. columns: n rows of the section `preprocessing`, on the CPU;
    `modyn.dataset.batch_preprocessing` turns them into `data`, which is empty before. read: the columns, converted when the batch was made; valid
    while `read.source` is `columns`.
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
        """Return the batch with data, labels and weights on `device`. Keys are not moved.

        Args: non_blocking: return before copies from page-locked memory to a GPU are done.
        """
        return _mapped(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory, from which copies to a GPU are asynchronous."""
        return _mapped(self, torch.Tensor.pin_memory)

    def take(self, positions: torch.Tensor, weights: torch.Tensor) -> Batch:
        """Return the samples at these positions, int64 (k,) on the CPU, with new weights, float32 (k,)."""
        rows = positions.to(self.labels.device)
        data = map_tensors(self.data, lambda tensor: tensor[rows])
        columns = None if self.columns is None else self.columns.take(pa.array(positions.numpy()))
        return replace(self, keys=self.keys[positions], data=data, labels=self.labels[rows], weights=weights, columns=columns)

    def slices(self, size: int) -> Iterator[Batch]:
        """Split the batch into slices of at most `size` samples, without copying."""
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            data = map_tensors(self.data, lambda tensor, rows=rows: tensor[rows])  # type: ignore[misc]
            columns = None if self.columns is None else self.columns.slice(first, size)
            labels, weights = self.labels[rows], self.weights[rows]
            yield replace(self, keys=self.keys[rows], data=data, labels=labels, weights=weights, columns=columns)


def _mapped(batch: Batch, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """Apply `function` to data, labels and weights."""
    data = map_tensors(batch.data, function)
    return replace(batch, data=data, labels=function(batch.labels), weights=function(batch.weights))


def bounded(batches: Iterator[Batch], num_samples: int) -> Iterator[Batch]:
    """Yield batches until they contain `num_samples` samples. The last batch is cut."""
    left = num_samples
    while left > 0 and (batch := next(batches, None)) is not None:
        yield batch if len(batch) <= left else next(batch.slices(left))
        left -= len(batch)


def joined(batches: Iterator[Batch], batches_in: Callable[[int], int], leave_out: Callable[[Batch], object]) -> Iterator[Batch]:
    """Join each batch of a single sample to the batch before it in its epoch, or, if it is the first, to the batch after it, because BatchNorm cannot
    use a single sample. The only batch of an epoch is left out if it has one sample. Reads one batch ahead.

    Args: batches_in: returns the number of batches of an epoch. leave_out: called with each batch that is left out.
    """

    def usable(batch: Batch | None) -> Iterator[Batch]:
        # A single sample that has no neighbour in its epoch is left out.
        if batch is not None and len(batch) == 1:
            leave_out(batch)
        elif batch is not None:
            yield batch

    held: Batch | None = None
    for batch in batches:
        if held is not None and batch.epoch == held.epoch and 1 in (len(batch), len(held)):
            # A training resumes after this index, so the index must cover these samples. The plan has no index for a last batch of one sample.
            held = _concatenated(held, batch, min(batch.index, batches_in(batch.epoch) - 1))
            continue
        yield from usable(held)
        held = batch
    yield from usable(held)


def on_device(batches: Iterator[Batch], device: torch.device | str) -> Iterator[Batch]:
    """Yield the batches with data, labels and weights on `device`. Keys are not moved.

    For a CUDA device, a separate stream copies each batch while the batch before it is in use. Only the computing stream waits for the copy. Copies
    from page-locked memory (`Batch.pin_memory`) run in parallel with the computation.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return _copy_ahead(batches, device)
    # Batches are made on the CPU. Even a call of `to` without effect would take longer than the bookkeeping of a step.
    return batches if device.type == "cpu" else (batch.to(device) for batch in batches)


def _copy_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    copies = _Copies(device)
    copied: tuple[Batch, _NewCopies] | None = None
    for batch in batches:
        # The copy of this batch starts before the previous batch is used, so that the copy runs during the step with the previous batch.
        before, copied = copied, copies.start(batch)
        if before is not None:
            yield _use_copy(*before)
    if copied is not None:
        yield _use_copy(*copied)


_MOST_SHARED_BYTES: Final = 2**25
"""Largest memory that is copied whole for the tensors that are views of it."""


class _NewCopies(NamedTuple):
    """Copies that a batch needs and no batch before it."""

    done: torch.cuda.Event | None
    """Marks the end of the copies in their stream. None: there are none."""
    tensors: list[torch.Tensor]


class _Copies:
    """Copies batches to a device, in a stream of their own. Batches that are views of one block of memory share one copy of the block, because small
    copies for each batch would take as long as the steps of a small model.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._shared: dict[tuple[int, torch.dtype], tuple[torch.UntypedStorage, torch.Tensor]] = {}
        """The blocks of the newest batch by address, with their copies. While a block is here, no other memory gets its address."""

    def start(self, batch: Batch) -> tuple[Batch, _NewCopies]:
        before, self._shared = self._shared, {}
        new: list[torch.Tensor] = []

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            block = tensor.untyped_storage()
            if not tensor.is_cpu or not tensor.nbytes < block.nbytes() <= _MOST_SHARED_BYTES:
                new.append(tensor.to(self._device, non_blocking=True))
                return new[-1]
            name = block.data_ptr(), tensor.dtype
            found = before.get(name) or self._shared.get(name)
            if found is None:
                whole = torch.empty(0, dtype=tensor.dtype).set_(block)
                found = block, whole.to(self._device, non_blocking=True)
                new.append(found[1])
            self._shared[name] = found
            return found[1].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

        # PyTorch's allocator reuses page-locked memory only after the copies from it are done.
        with torch.cuda.stream(self._stream):
            moved = _mapped(batch, copy)
            done = self._stream.record_event() if new else None
        return moved, _NewCopies(done, new)


def _use_copy(batch: Batch, new: _NewCopies) -> Batch:
    """Make the current stream wait for the copies. Their memory is reused only after this stream has read it."""
    if new.done is not None:
        using = torch.cuda.current_stream(batch.labels.device)
        using.wait_event(new.done)
        for tensor in new.tensors:
            # Without this call, the allocator could give the memory to another copy while the training still reads it.
            tensor.record_stream(using)
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
