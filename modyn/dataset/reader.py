"""Make the batches of a stream of partition reads in one process. The functions in this file are in the order in which they run.

partition reads → keys (prefetched) → chunks, by the local or the Flight flow → gathered, several small batches at once → decode → augment → Batch
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from modyn.cache.keys import TierName
from modyn.cache.sample_numbers import NO_SAMPLES
from modyn.config.base import refuse
from modyn.config.preprocessing import PREPROCESSING
from modyn.dataset.bad_samples import BadSamples
from modyn.dataset.batch import NO_WORK, BadSample, Batch
from modyn.dataset.cached.sample_cache import SampleCache
from modyn.dataset.chunks import Chunk, GatheredSamples, KeyStream, PartitionKeys, ReadOptions, split_samples
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import PayloadReader
from modyn.dataset.decode import BatchPipeline, as_tensor
from modyn.dataset.field_names import with_names, wrong_names
from modyn.dataset.flight_batches import FlightBatches
from modyn.dataset.local_batches import LocalBatches
from modyn.dataset.order.batch_plan import PartitionRead
from modyn.dataset.prefetch import Prefetcher
from modyn.dataset.preparation_clock import NO_TIMES, PreparationClock
from modyn.errors import DataError, ModynError, UserCodeError
from modyn.records import Int64Array, KeysAndWeights
from modyn.storage.client import DatasetSchema
from modyn.storage.payloads import PayloadClient

BATCHES_AHEAD = 2
"""Smallest number of batches, or blocks of small batches, that are made ahead of the batch in use."""
BLOCK_BATCHES, BLOCK_BYTES, PINNED_BLOCK_BYTES = 16, 2**20, 2**24
"""Largest number of batches and of bytes in a block, and of bytes in page-locked memory. A single batch may have more bytes. Without blocks, reading
small batches one by one on another thread would take as long as the steps of a small model. A block in page-locked memory is larger than a
processor's cache."""

KeysOf = Callable[[PartitionRead], KeysAndWeights]
"""Returns keys and weights of the whole partition of a read. Several prefetch threads call it at once."""

_Block = list[list[Chunk[Any]]]
"""The chunks of consecutive batches that are made together."""
_Gathered = tuple[Chunk[Any], GatheredSamples]
"""The last chunk of a batch, which identifies the batch, and the samples of the batch."""


class _Whole(NamedTuple):
    """A block as one batch, of which its batches are views."""

    batch: Batch
    last_chunks: list[Chunk[Any]]
    """The last chunk of each batch."""
    bounds: list[int]
    """First row of each batch, and the number of all rows."""


_Made = Sequence[Batch | _Gathered] | _Whole
"""Result of a thread for a block: its batches, or what they are made from."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """The compiled functions of the user, and the samples that they could not decode in this process."""

    pipeline: BatchPipeline
    bad_samples: BadSamples

    @classmethod
    def made_for(cls, data: DataConfig, payloads: PayloadReader, options: ReadOptions) -> Decoder:
        """Compile the functions. Raises: ConfigError: the section `preprocessing` does not match the columns in the files of the dataset."""
        section = data.preprocessing
        schema = None if section is None else payloads.schema(data.dataset_id)
        if section is not None:
            data = _with_field_names(data, section, schema)
        # The index of JSON Lines files shows fields that no object has. Therefore a field that is absent in one object is a missing value there. In
        # other JSON payloads, an absent field is refused.
        absent_is_missing = schema is not None and schema.payloads == "json"
        pipeline = BatchPipeline(data, training=options.training, classes=options.classes, absent_is_missing=absent_is_missing)
        return cls(pipeline, BadSamples(data, payloads))


def _with_field_names(data: DataConfig, section: Mapping[str, Any], schema: DatasetSchema | None) -> DataConfig:
    """Return `data`, with the field names of CSV rows from the files of its dataset. Args: section: `preprocessing`.

    Raises: as `Decoder.made_for`.
    """
    refuse(wrong_names(section, data.dataset_id, schema))
    if section.get("format") != "csv" or schema is None or schema.payloads != "csv" or not schema.names:
        return data
    return data.model_copy(update={PREPROCESSING: with_names(section, schema.names)})


class BatchReader:
    """Serves the batches of `reads` once. Keys come from `keys_of`, payloads from `payloads`. `data` says how payloads become tensors."""

    def __init__(
        self,
        reads: Iterator[PartitionRead],
        keys_of: KeysOf,
        payloads: PayloadReader,
        data: DataConfig,
        options: ReadOptions,
        decoder: Decoder | None = None,
        cache: SampleCache | None = None,
    ) -> None:
        """Args: decoder: a decoder that successive readers share; None: a new one. cache: cache of the dataset's samples, or None."""
        self._options = options
        self._keys_of = keys_of
        decoder = decoder or Decoder.made_for(data, payloads, options)
        self._pipeline, self._bad_samples = decoder.pipeline, decoder.bad_samples
        self._cache = cache if cache is None or self._pipeline.keeps_decoded else cache.without("decoded")
        self._num_planned: int | None = None
        self._batch_sizes: dict[tuple[int, int], int] = {}
        """Number of planned samples of each batch (epoch, index), from its first read until it is made. One thread adds entries, and another thread
        removes entries."""
        keys: KeyStream = Prefetcher(
            self._count_reads(reads), self._load_keys, ahead=options.ahead, threads=options.requests, name="prefetch-keys"
        )
        self._flow: FlightBatches | LocalBatches = (
            FlightBatches(keys, payloads, data.dataset_id, options, self._cache)
            if isinstance(payloads, PayloadClient)
            else LocalBatches(keys, payloads, data.dataset_id, options, self._cache)
        )
        self._serving: Prefetcher[_Block, _Made] | None = None
        self._most_bytes = 0
        """Largest number of bytes of a batch so far; 0 before the first batch. Any thread writes the number without a lock, because an old number
        still bounds later blocks well enough."""

    def batches(self, num_threads: int) -> Generator[Batch, None, None]:
        """Yield all batches, in order. A batch is empty if its samples are all deleted.

        Args: num_threads: threads that make batches; 0: the caller's thread, for decoding that draws random numbers. With 0, a thread still gathers
        payloads ahead.
        Raises: the error of any thread; ModynError: the stream ended before the last planned batch.
        """
        with closing(self._serve(self._make if num_threads else self._gather, num_threads or 1)) as blocks:
            for block in blocks:
                if isinstance(block, _Whole):
                    yield from self._split(block)
                else:
                    yield from (one if isinstance(one, Batch) else self._to_tensors(*one) for one in block)

    def stop(self) -> None:
        """End an iteration in another thread, wherever it waits."""
        self._flow.stop()
        if self._serving is not None:
            self._serving.stop()

    def _close(self) -> None:
        """End all threads. The flow stops first, because only its stop ends the wait of a serving thread inside `chunks`. The flow is joined last,
        because a serving thread starts the flow's threads when it asks for the first chunk.
        """
        self.stop()
        if self._serving is not None:
            self._serving.join()
        self._flow.join()

    def _count_reads(self, reads: Iterator[PartitionRead]) -> Iterator[PartitionRead]:
        """Yield the reads, and count the batches. The count is set after the last read, and stays unset after an error."""
        num_planned = 0
        for read in reads:
            for batch_slice in read.slices:
                num_planned += batch_slice.last
                batch = (batch_slice.epoch, batch_slice.index)
                self._batch_sizes[batch] = self._batch_sizes.get(batch, 0) + batch_slice.stop - batch_slice.start
            yield read
        self._num_planned = num_planned

    def _load_keys(self, read: PartitionRead) -> Iterator[PartitionKeys]:
        keys = PartitionKeys(self._keys_of(read))
        read.rows()  # the rows are made ahead of use too, unless the flow waits for this read and has made them
        yield keys

    def _serve(self, make: Callable[[_Block], _Made], num_threads: int) -> Generator[_Made, None, None]:
        """Yield the result of `make` for each block, in order. The threads that call `make` end with the generator."""
        ahead = max(BATCHES_AHEAD, num_threads)
        self._serving = Prefetcher(
            self._blocks(), lambda block: iter((make(block),)), ahead=ahead, threads=num_threads, name="serve"
        )
        num_served = 0
        try:
            for _, made in self._serving:
                for block in made:
                    yield block
                    num_served += len(block.last_chunks) if isinstance(block, _Whole) else len(block)
        finally:
            self._close()
        # If the consumer stops early, this line is not reached. A stream that ends early must not look complete.
        if num_served != self._num_planned:
            planned = "not all were planned" if self._num_planned is None else f"{self._num_planned} were planned"
            raise ModynError(f"the batches ended after {num_served}, but {planned}: this is an error in Modyn; please report it")

    def _chunks_by_batch(self) -> Iterator[list[Chunk[Any]]]:
        """Yield the chunks of each batch when its last chunk has arrived. A batch that is incomplete because the reader stopped is left out."""
        chunks: list[Chunk[Any]] = []
        for chunk in self._flow.chunks():
            chunks.append(chunk)
            if chunk.last:
                yield chunks
                chunks = []

    def _blocks(self) -> Iterator[_Block]:
        """Group the batches into blocks, each with at most twice as many batches as the previous block, so that the first batch is ready soon. Over
        Flight, a block is one batch, because batches are used as soon as they arrive. If Python runs for each sample, a block is also one batch,
        because blocks would save little of the time."""
        alone = isinstance(self._flow, FlightBatches) or self._pipeline.runs_per_sample
        most_bytes = PINNED_BLOCK_BYTES if self._options.pin_memory else BLOCK_BYTES
        grown, block = 1, _Block()
        for chunks in self._chunks_by_batch():
            block.append(chunks)
            fitting = most_bytes // self._most_bytes if self._most_bytes and not alone else 1
            if len(block) >= min(grown, fitting):
                yield block
                grown, block = min(2 * len(block), BLOCK_BATCHES), []
        if block:
            yield block

    def _gather(self, block: _Block) -> list[_Gathered]:
        return self._identified(block, self._flow.gather(block))

    def _identified(self, block: _Block, gathered: list[GatheredSamples]) -> list[_Gathered]:
        self._most_bytes = max(self._most_bytes, *(samples.payloads.data.nbytes for samples in gathered))
        return [(chunks[-1], samples) for chunks, samples in zip(block, gathered, strict=True)]

    def _make(self, block: _Block) -> _Made:
        """Make the batches of a block; as one batch, if they are views of it."""
        if len(block) > 1 and self._pipeline.makes_views and self._cache is None and isinstance(self._flow, LocalBatches):
            return self._make_whole(block, *self._flow.gather_block(block))
        return [self._to_tensors(*one) for one in self._gather(block)]

    def _make_whole(self, block: _Block, samples: GatheredSamples, bounds: list[int]) -> _Made:
        self._most_bytes = max(self._most_bytes, samples.payloads.data.nbytes // len(block))
        clock = PreparationClock(samples.times)
        try:
            data, labels = self._pipeline.run(samples.payloads, clock=clock)
        except DataError:
            # Only the batch of the bad sample is made again without it.
            return [self._to_tensors(*one) for one in self._identified(block, split_samples(samples, bounds))]
        keys, weights = as_tensor(samples.payloads.keys), as_tensor(samples.weights)
        batch = Batch(keys, data, labels, weights, times=clock.times)
        return _Whole(batch.pin_memory() if self._options.pin_memory else batch, [chunks[-1] for chunks in block], bounds)

    def _split(self, whole: _Whole) -> list[Batch]:
        """Make all views of a block at once: a view that is made between two steps takes twice as long. The first batch has the times of all."""
        batch = whole.batch
        assert isinstance(batch.data, torch.Tensor)
        sizes = [last - first for first, last in pairwise(whole.bounds)]
        tensors = [torch.split(tensor, sizes) for tensor in (batch.keys, batch.data, batch.labels, batch.weights)]
        batches: list[Batch] = []
        for chunk, size, keys, data, labels, weights in zip(whole.last_chunks, sizes, *tensors, strict=True):
            num_skipped = self._batch_sizes.pop((chunk.epoch, chunk.index)) - size
            times = NO_TIMES if batches else batch.times
            batches.append(Batch(keys, data, labels, weights, chunk.epoch, chunk.index, num_skipped, times=times))
        return batches

    def _to_tensors(self, chunk: Chunk[Any], samples: GatheredSamples) -> Batch:
        """Make a batch, for both flows: payloads → decode → augment. Samples from a cache skip the steps that they have passed already."""
        seed_of = self._options.seed_of if self._pipeline.takes_seed else None
        seed = None if seed_of is None else seed_of(chunk.epoch, chunk.index)
        cache, kept = self._cache, [NO_SAMPLES]

        def keep(tier: TierName, keys: Int64Array, values: Sequence[Any]) -> None:
            assert cache is not None
            found = cache.keep(tier, keys, values)
            if tier == "decoded":
                kept.append(found)

        bad: list[BadSample] = []
        clock = PreparationClock(samples.times)
        while True:
            try:
                data, labels = self._pipeline.run(
                    samples.payloads, seed, samples.prepared, None if cache is None else keep, clock
                )
                read = self._pipeline.columns(samples.payloads, clock)
                break
            except (DataError, UserCodeError) as error:
                # A bad sample is left out, and the rest of the batch is made again.
                bad.append(self._bad_samples.leave_out(error))
                samples = samples.take(np.flatnonzero(samples.payloads.keys != bad[-1].key))
        if cache is not None:
            cache.keep_payloads(samples, np.concatenate(kept))
        keys, weights = as_tensor(samples.payloads.keys), as_tensor(samples.weights)
        # Samples that were deleted or left out.
        num_skipped = self._batch_sizes.pop((chunk.epoch, chunk.index)) - len(samples.payloads)
        batch = Batch(
            keys, data, labels, weights, chunk.epoch, chunk.index, num_skipped, tuple(bad), samples.cached, clock.times,
            work=NO_WORK if self._cache is None else self._cache.work, columns=None if read is None else read.source, read=read,
        )  # fmt: skip
        return batch.pin_memory() if self._options.pin_memory else batch
