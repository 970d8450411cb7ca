"""What both flows share: the keys of a partition, chunks of samples on their way into a batch, and the options of reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from modyn._core import Column, find_runs, pick
from modyn.dataset.batch import NONE_CACHED, CachedCounts
from modyn.dataset.order.plan import PartitionRead
from modyn.dataset.payload_buffer import select_payloads
from modyn.dataset.prefetch import Prefetcher
from modyn.records import Float32Array, Int64Array, KeysAndWeights
from modyn.storage.payloads import OnMissing, Payloads

S = TypeVar("S")
Array = TypeVar("Array", Int64Array, Float32Array)

_MAX_PROGRESSIONS = 64
"""Keys in more progressions than these are kept as an array: the search for the right one would take longer than a memory access."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Bounds of what is asked for at once over Flight.

    fetch_samples: samples of a partition in one fetch. fetch_bytes: their bytes, estimated from the samples before; one sample
    may be larger. first_fetch: samples of the first fetch, whose size is unknown (a sample may be a film); never more than a batch.
    """

    fetch_samples: int = 262_144
    fetch_bytes: int = 64 * 2**20
    first_fetch: int = 256


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a stream of partition reads becomes batches.

    training: whether `random_transformations` are applied. shuffled: the rows of a read are in random order. ahead: reads whose keys, and
    (over Flight) fetch slices whose payloads, are prefetched beyond the one in use. requests: key requests at once. on_missing: "skip" leaves
    deleted samples out of their batch, "raise" makes them a NotFoundError. identity: of the dataset that the keys are of; empty: any.
    seed_of(epoch, index): seed of the random generators while that batch is decoded; None leaves them alone. pin_memory: batches are in
    page-locked memory.
    """

    training: bool
    shuffled: bool = False
    ahead: int = 1
    requests: int = 1
    on_missing: OnMissing = "skip"
    identity: str = ""
    seed_of: Callable[[int, int], int] | None = None
    pin_memory: bool = False
    limits: ReadLimits = ReadLimits()


class PartitionKeys:
    """Keys and weights of a partition by row. Consecutive keys, as those of all new samples, and equal weights are computed: they take no
    memory. May be used by any thread."""

    def __init__(self, partition: KeysAndWeights) -> None:
        keys, weights = np.ascontiguousarray(partition.keys), np.ascontiguousarray(partition.weights)
        self._keys: Column | Int64Array = keys
        self._weights: np.float32 | Float32Array = weights
        if len(keys):
            progressions = find_runs(keys, _MAX_PROGRESSIONS)
            if progressions is not None:
                self._keys = Column(np.concatenate(progressions).view(np.uint8), "runs", 8, len(keys))
            if weights.min() == weights.max():
                self._weights = weights[0]

    def look_up(self, rows: Int64Array) -> KeysAndWeights:
        """The keys and weights of `rows`, int64 (n,), in that order."""
        keys = self._keys.take(rows) if isinstance(self._keys, Column) else pick(self._keys, rows)
        if isinstance(self._weights, np.ndarray):
            return KeysAndWeights(keys, pick(self._weights, rows))
        return KeysAndWeights(keys, np.full(len(rows), self._weights, np.float32))


KeyStream = Prefetcher[PartitionRead, PartitionKeys]
"""Partition reads, each with its keys as the only result."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk(Generic[S]):
    """Samples of one batch that come from one source, in the order of the batch.

    epoch, index: the batch. last: the batch is complete with this chunk. source: what the rows are rows of: `PartitionKeys` where payloads
    are read locally, `Payloads` over Flight. rows: int64 (n,) or a slice. weights: float32 (n,); None where they are looked up with the keys.
    """

    epoch: int
    index: int
    last: bool
    source: S
    rows: Int64Array | slice
    weights: Float32Array | None = None

    def __len__(self) -> int:
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class GatheredSamples:
    """The n samples of a batch, on their way to be decoded.

    payloads: in one buffer, offsets from 0; of samples in `decoded` without bytes. weights: float32 (n,). decoded: values from a cache, None in
    place of each that it does not hold; None: of all. cached: how many samples came from where in the cache.
    """

    payloads: Payloads
    weights: Float32Array
    decoded: Sequence[Any] | None = None
    cached: CachedCounts = NONE_CACHED

    def take(self, rows: Int64Array) -> GatheredSamples:
        """The samples at `rows`, int64 (m,)."""
        decoded = None if self.decoded is None else [self.decoded[row] for row in rows.tolist()]
        return replace(self, payloads=select_payloads(self.payloads, rows), weights=self.weights[rows], decoded=decoded)


def no_payloads() -> Payloads:
    """Payloads of no sample, with int64 labels."""
    nothing = np.empty(0, np.int64)
    return Payloads(nothing, nothing, np.empty(0, np.uint8), np.zeros(1, np.int64))


def join(columns: Sequence[Array]) -> Array:
    """The arrays one behind the other; a single one is not copied."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
