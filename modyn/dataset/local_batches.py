"""The local flow (short cut): make batches whose payloads this process reads from the files itself.

    PartitionRead → keys (prefetched) → one Chunk for each batch slice → keys looked up, samples located and read when batches are made

Only the payloads of batches that are being made are in memory, for any size of partition. Small batches are read together, which takes the least
time. Each of these batches is a view of one buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from modyn.dataset.cached.sample_cache import SampleCache
from modyn.dataset.chunks import (
    Chunk,
    GatheredSamples,
    KeyStream,
    PartitionKeys,
    ReadOptions,
    join,
    select_payloads,
    split_samples,
    spread,
)
from modyn.dataset.preparation_clock import ReadClock
from modyn.records import Float32Array

if TYPE_CHECKING:
    from modyn.storage.payloads import LocalPayloads, LocatedSamples


class LocalBatches:
    """Turns the partition reads of `keys` into chunks. A chunk names rows of a partition. `gather` reads the samples of these rows.

    `gather` looks up the keys, in the thread that makes the batch. In random order, the look-up of a whole partition is slow, and the first batch
    would have to wait for it.
    """

    def __init__(
        self, keys: KeyStream, payloads: LocalPayloads, dataset: str, options: ReadOptions, cache: SampleCache | None = None
    ) -> None:
        self._cache = cache
        self._keys = keys
        self._payloads = payloads
        self._dataset = dataset
        self._options = options

    def chunks(self) -> Iterator[Chunk[PartitionKeys]]:
        """Yield one chunk for each batch slice, in order. Starts the threads that prefetch keys."""
        for read, arrived in self._keys:
            rows = read.rows()  # made while the keys are fetched
            keys = next(arrived, None)
            if keys is None:
                return  # The prefetcher was stopped.
            for batch_slice in read.slices:
                yield Chunk(
                    batch_slice.epoch, batch_slice.index, batch_slice.last, keys, rows[batch_slice.start : batch_slice.stop]
                )

    def gather(self, batches: Sequence[Sequence[Chunk[PartitionKeys]]]) -> list[GatheredSamples]:
        """Read the samples of some batches, except for cached samples. Without a cache, one read returns the samples of all batches. Thread-safe."""
        if self._cache is not None:
            return [self._gather(self._located(chunks), self._cache) for chunks in batches]
        return split_samples(*self.gather_block(batches))

    def gather_block(self, batches: Sequence[Sequence[Chunk[PartitionKeys]]]) -> tuple[GatheredSamples, list[int]]:
        """Read the samples of some batches, without a cache. Returns the samples, and the bounds of the batches in them. Thread-safe."""
        located, weights = self._located([chunk for chunks in batches for chunk in chunks])
        clock, read = ReadClock(), located.take(slice(None))
        bounds = np.searchsorted(located.where, np.cumsum([0, *(sum(map(len, chunks)) for chunks in batches)])).tolist()
        return GatheredSamples(read, weights, times=clock.times(len(read), int(read.offsets[-1]))), bounds

    def _located(self, chunks: Sequence[Chunk[PartitionKeys]]) -> tuple[LocatedSamples, Float32Array]:
        """Locate the samples of chunks, without deleted ones. Returns their locations and weights."""
        by_source = groupby((chunk for chunk in chunks if len(chunk)), attrgetter("source"))
        looked_up = [source.look_up(join([np.asarray(chunk.rows) for chunk in found])) for source, found in by_source]
        keys = join([found.keys for found in looked_up] or [np.empty(0, np.int64)])
        weights = join([found.weights for found in looked_up] or [np.empty(0, np.float32)])
        located = self._payloads.locate(self._dataset, keys, self._options.on_missing, self._options.identity)
        return located, weights if len(located) == len(keys) else weights[located.where]

    def _gather(self, wanted: tuple[LocatedSamples, Float32Array], cache: SampleCache) -> GatheredSamples:
        """Gather the samples of one batch. Samples that are not cached are read now."""
        located, weights = wanted
        found = cache.find(located.keys)
        rows = found.missing(np.ones(len(located), np.bool_))
        known = located.without_bytes(slice(None))
        clock, read = ReadClock(), located.take(rows) if len(rows) else select_payloads(known, slice(0, 0))
        times = clock.times(len(read), int(read.offsets[-1]))
        return replace(found.gathered(spread(read, rows, known.keys, known.labels), weights), times=times)

    def stop(self) -> None:
        """End `chunks` in the thread that runs it. The call ends the wait of this thread for keys."""
        self._keys.stop()

    def join(self) -> None:
        """Wait for the threads, after `stop`."""
        self._keys.join()
