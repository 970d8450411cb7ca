"""One reader: the batches that one process makes of a stream of partition reads. The order of this file is the order in which it runs.

partition reads → keys (prefetched) → chunks, by the local or the Flight flow → gathered, several small batches at once → decode → augment → Batch
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from modyn.cache.keys import TierName
from modyn.cache.sample_numbers import NO_SAMPLES
from modyn.config.base import refuse
from modyn.config.preprocessing import PREPROCESSING
from modyn.dataset.bad_samples import BadSamples
from modyn.dataset.batch import NO_WORK, BadSample, Batch
from modyn.dataset.chunks import Chunk, GatheredSamples, KeyStream, PartitionKeys, ReadOptions
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import PayloadReader
from modyn.dataset.decode import BatchPipeline, as_tensor
from modyn.dataset.field_names import with_names, wrong_names
from modyn.dataset.flight_batches import FlightBatches
from modyn.dataset.local_batches import LocalBatches
from modyn.dataset.order.plan import PartitionRead
from modyn.dataset.prefetch import Prefetcher
from modyn.dataset.preparation_clock import PreparationClock
from modyn.dataset.sample_cache import SampleCache
from modyn.errors import DataError, ModynError, UserCodeError
from modyn.records import Int64Array, KeysAndWeights
from modyn.storage.client import DatasetSchema
from modyn.storage.payloads import PayloadClient

BATCHES_AHEAD = 2
"""Batches, or blocks of small ones, that are made ahead of the one in use, at least."""
BLOCK_BATCHES, BLOCK_BYTES = 16, 2**20
"""What a block holds at most; one batch may be larger. To read a small batch alone, and hand it to another thread, takes as long as a step of a
small model."""

KeysOf = Callable[[PartitionRead], KeysAndWeights]
"""Returns keys and weights of the whole partition of a read. Called by prefetch threads, several at once."""

_Block = list[list[Chunk[Any]]]
"""The chunks of each of some batches in a row, which are made at once."""
_Gathered = tuple[Chunk[Any], GatheredSamples]
"""The last chunk of a batch, which names it, and its samples."""
_Made = Sequence[Batch | _Gathered]
"""What a thread has made of a block: each batch of it, or what it is to be made of."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """The user's functions, compiled, and the samples of this process that they could not decode."""

    pipeline: BatchPipeline
    bad_samples: BadSamples

    @classmethod
    def made_for(cls, data: DataConfig, payloads: PayloadReader, options: ReadOptions) -> Decoder:
        """Compile the functions. Raises: ConfigError: the section `preprocessing` names other columns than the files of the dataset."""
        section = data.preprocessing
        schema = None if section is None else payloads.schema(data.dataset_id)
        if section is not None:
            data = _with_field_names(data, section, schema)
        # Whether files of JSON Lines lack a field was looked at when they were indexed; any other object stands for itself.
        absent_is_missing = schema is not None and schema.payloads == "json"
        pipeline = BatchPipeline(data, training=options.training, classes=options.classes, absent_is_missing=absent_is_missing)
        return cls(pipeline, BadSamples(data, payloads))


def _with_field_names(data: DataConfig, section: Mapping[str, Any], schema: DatasetSchema | None) -> DataConfig:
    """Return `data` with the names of the fields of CSV rows that the files of its dataset give. Args: section: `preprocessing`.

    Raises: as `Decoder.made_for`.
    """
    refuse(wrong_names(section, data.dataset_id, schema))
    if section.get("format") != "csv" or schema is None or schema.payloads != "csv" or not schema.names:
        return data
    return data.model_copy(update={PREPROCESSING: with_names(section, schema.names)})


class BatchReader:
    """Serves the batches of `reads`, once: keys from `keys_of`, payloads from `payloads`, tensors as `data` says."""

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
        """Args: decoder: for readers that follow one another; None: one of its own. cache: of the dataset's samples; None: there is none."""
        self._options = options
        self._keys_of = keys_of
        decoder = decoder or Decoder.made_for(data, payloads, options)
        self._pipeline, self._bad_samples = decoder.pipeline, decoder.bad_samples
        self._cache = cache if cache is None or self._pipeline.keeps_decoded else cache.without("decoded")
        self._num_planned: int | None = None
        self._batch_sizes: dict[tuple[int, int], int] = {}
        """Samples that are planned for a batch (epoch, index), from its first read until it is made: one thread adds, another removes."""
        keys: KeyStream = Prefetcher(
            self._counted(reads), self._load_keys, ahead=options.ahead, threads=options.requests, name="prefetch-keys"
        )
        self._flow: FlightBatches | LocalBatches = (
            FlightBatches(keys, payloads, data.dataset_id, options, self._cache)
            if isinstance(payloads, PayloadClient)
            else LocalBatches(keys, payloads, data.dataset_id, options, self._cache)
        )
        self._serving: Prefetcher[_Block, _Made] | None = None
        self._most_bytes = 0
        """Of a batch so far; 0: none was read. Written by any thread: an older number will do to bound the blocks that come."""

    def batches(self, num_threads: int) -> Generator[Batch, None, None]:
        """All batches, in order; one whose samples are all deleted is empty.

        Args: num_threads: threads that make batches; 0: the caller's own, where decoding draws random numbers. A thread gathers payloads
        ahead even then.
        Raises: what any thread raised; ModynError: the stream ended before its plan.
        """
        with closing(self._serve(self._make if num_threads else self._gather, num_threads or 1)) as blocks:
            for block in blocks:
                batches = (one if isinstance(one, Batch) else self._to_tensors(*one) for one in block)
                # Views are made in a row: between two steps, each would take twice as long.
                yield from list(batches) if self._pipeline.takes_views else batches

    def stop(self) -> None:
        """Make an iteration that runs in another thread end, wherever it waits."""
        self._flow.stop()
        if self._serving is not None:
            self._serving.stop()

    def _close(self) -> None:
        """End all threads. The flow is stopped first: a serving thread that waits inside `chunks` notices only that. It is joined last, since
        its threads are started by the serving thread that asks for the first chunk."""
        self.stop()
        if self._serving is not None:
            self._serving.join()
        self._flow.join()

    def _counted(self, reads: Iterator[PartitionRead]) -> Iterator[PartitionRead]:
        """The reads; counts the batches, whose number is known once the reads have come to their end, and not if they break off."""
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
        read.rows()  # made ahead of use too, unless the flow waits for this read and has made them
        yield keys

    def _serve(self, make: Callable[[_Block], _Made], num_threads: int) -> Generator[_Made, None, None]:
        """What `make` returns for each block, in order, on threads, which end with it."""
        ahead = max(BATCHES_AHEAD, num_threads)
        self._serving = Prefetcher(
            self._blocks(), lambda block: iter((make(block),)), ahead=ahead, threads=num_threads, name="serve"
        )
        num_served = 0
        try:
            for _, made in self._serving:
                for block in made:
                    yield block
                    num_served += len(block)
        finally:
            self._close()
        # A consumer that stops early stops at the `yield`. A stream that loses its end must not look like one that is complete.
        if num_served != self._num_planned:
            planned = "not all were planned" if self._num_planned is None else f"{self._num_planned} were planned"
            raise ModynError(f"the batches ended after {num_served}, but {planned}: this is an error in Modyn; please report it")

    def _chunks_by_batch(self) -> Iterator[list[Chunk[Any]]]:
        """The chunks of each batch, as soon as its last one is there; without a batch that is cut off because the reader is stopped."""
        chunks: list[Chunk[Any]] = []
        for chunk in self._flow.chunks():
            chunks.append(chunk)
            if chunk.last:
                yield chunks
                chunks = []

    def _blocks(self) -> Iterator[_Block]:
        """The batches in blocks, each at most twice as long as the one before, so that the first batch is there soon. A batch is a block where it
        is used as soon as it arrives, and where Python runs for each sample, which takes longer than what blocks save."""
        alone = isinstance(self._flow, FlightBatches) or self._pipeline.runs_per_sample
        grown, block = 1, _Block()
        for chunks in self._chunks_by_batch():
            block.append(chunks)
            fitting = BLOCK_BYTES // self._most_bytes if self._most_bytes and not alone else 1
            if len(block) >= min(grown, fitting):
                yield block
                grown, block = min(2 * len(block), BLOCK_BATCHES), []
        if block:
            yield block

    def _gather(self, block: _Block) -> list[_Gathered]:
        gathered = self._flow.gather(block)
        self._most_bytes = max(self._most_bytes, *(samples.payloads.data.nbytes for samples in gathered))
        return [(chunks[-1], samples) for chunks, samples in zip(block, gathered, strict=True)]

    def _make(self, block: _Block) -> _Made:
        """The batches of a block, or what they are made of, where that takes a few microseconds: two threads that run Python in turns wait for each
        other longer than that."""
        gathered = self._gather(block)
        if len(gathered) > 1 and self._pipeline.takes_views:
            return gathered
        return [self._to_tensors(*one) for one in gathered]

    def _to_tensors(self, chunk: Chunk[Any], samples: GatheredSamples) -> Batch:
        """The same for both flows: payloads → decode → augment; samples that a cache holds prepared come in between."""
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
                bad.append(self._bad_samples.leave_out(error))
                samples = samples.take(np.flatnonzero(samples.payloads.keys != bad[-1].key))
        if cache is not None:
            cache.keep_payloads(samples, np.concatenate(kept))
        keys, weights = as_tensor(samples.payloads.keys), as_tensor(samples.weights)
        num_skipped = self._batch_sizes.pop((chunk.epoch, chunk.index)) - len(samples.payloads)
        batch = Batch(
            keys, data, labels, weights, chunk.epoch, chunk.index, num_skipped, tuple(bad), samples.cached, clock.times,
            work=NO_WORK if self._cache is None else self._cache.work, columns=None if read is None else read.source, read=read,
        )  # fmt: skip
        return batch.pin_memory() if self._options.pin_memory else batch
