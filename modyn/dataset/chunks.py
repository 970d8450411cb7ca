"""What both flows share: the keys of a partition, chunks of samples on their way into a batch, their payloads put together and taken apart, and the
options of reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from modyn._core import Column, find_runs, pick, take
from modyn.dataset.batch import NONE_CACHED, CachedCounts
from modyn.dataset.order.plan import PartitionRead
from modyn.dataset.prefetch import Prefetcher
from modyn.dataset.preparation_clock import NO_TIMES, PreparationTimes
from modyn.models.classes import LabelClasses
from modyn.records import BoolArray, Float32Array, Int64Array, KeysAndWeights, LabelArray
from modyn.storage.model.samples import UInt8Array
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
    page-locked memory. classes: that labels are; another label is a bad sample; None: labels are not looked at.
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
    classes: LabelClasses | None = None


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


class PreparedValues(NamedTuple):
    """Values of n samples that a cache holds, in two forms; None in place of each that it does not hold."""

    augmented: Sequence[Any]
    decoded: Sequence[Any]
    """Of those only that are not there augmented."""

    @property
    def missing(self) -> BoolArray:
        """bool (n,), which are there in neither form."""
        return self.not_augmented & np.array([value is None for value in self.decoded], np.bool_)

    @property
    def not_augmented(self) -> BoolArray:
        """bool (n,)."""
        return np.array([value is None for value in self.augmented], np.bool_)

    def take(self, rows: Sequence[int]) -> PreparedValues:
        """Those of the samples at `rows`."""
        return PreparedValues([self.augmented[row] for row in rows], [self.decoded[row] for row in rows])

    def counts(self, num_encoded: int) -> CachedCounts:
        """How many samples were found. Args: num_encoded: as they are stored."""
        found = [sum(value is not None for value in values) for values in (self.decoded, self.augmented)]
        return CachedCounts(num_encoded, *found)


@dataclass(frozen=True, slots=True, eq=False)
class GatheredSamples:
    """The n samples of a batch, on their way to be decoded.

    payloads: in one buffer, offsets from 0; of samples in `prepared` without bytes. weights: float32 (n,). prepared: values from a cache; None:
    of no sample. cached: how many samples came from where in the cache. times: what reading
    them took. is_held: bool (n,), whose payloads the tier of encoded samples has given; None: there is no cache.
    """

    payloads: Payloads
    weights: Float32Array
    prepared: PreparedValues | None = None
    cached: CachedCounts = NONE_CACHED
    times: PreparationTimes = NO_TIMES
    is_held: BoolArray | None = None

    def take(self, rows: Int64Array) -> GatheredSamples:
        """The samples at `rows`, int64 (m,)."""
        prepared = None if self.prepared is None else self.prepared.take(rows.tolist())
        is_held = None if self.is_held is None else self.is_held[rows]
        payloads = select_payloads(self.payloads, rows)
        return replace(self, payloads=payloads, weights=self.weights[rows], prepared=prepared, is_held=is_held)


def no_payloads() -> Payloads:
    """Payloads of no sample, with int64 labels."""
    nothing = np.empty(0, np.int64)
    return Payloads(nothing, nothing, np.empty(0, np.uint8), np.zeros(1, np.int64))


def join(columns: Sequence[Array]) -> Array:
    """The arrays one behind the other; a single one is not copied."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def select_payloads(payloads: Payloads, rows: Int64Array | slice) -> Payloads:
    """Samples `rows`: a slice (start, stop) as views, int64 (n,) as copies, in that order, duplicates allowed. Offsets begin with 0."""
    if isinstance(rows, slice):
        bounds = payloads.offsets[rows.start : rows.stop + 1]
        data, offsets = payloads.data[bounds[0] : bounds[-1]], bounds - bounds[0] if bounds[0] else bounds
        return Payloads(payloads.keys[rows], payloads.labels[rows], data, offsets, payloads.record_size)
    size = payloads.common_size
    if size:
        data, offsets = take(payloads.data[payloads.offsets[0] : payloads.offsets[-1]], size, rows)
    else:
        data, offsets = take(payloads.data, payloads.offsets, rows)
    return Payloads(payloads.keys[rows], payloads.labels[rows], data, offsets, size)


def concatenate_payloads(answers: Sequence[Payloads]) -> Payloads:
    """The samples of all answers, in order, in one buffer; a single one is not copied."""
    if len(answers) == 1:
        return answers[0]
    buffer = PayloadBuffer(sum(map(len, answers)), room=sum(int(answer.offsets[-1] - answer.offsets[0]) for answer in answers))
    for answer in answers:
        buffer.add(answer)
    return buffer.payloads()


def spread(read: Payloads, rows: Int64Array, keys: Int64Array, labels: LabelArray) -> Payloads:
    """The samples of `keys`, of which those at `rows` have the bytes of `read`, without copying these, and others none.

    Args: read: of m samples. rows: int64 (m,), ascending. keys, labels: (n,).
    """
    if len(rows) == len(keys):
        return read
    sizes = np.zeros(len(keys), np.int64)
    sizes[rows] = np.diff(read.offsets)
    return Payloads(keys, labels, read.data[read.offsets[0] : read.offsets[-1]], _offsets(sizes))


def fill_in(payloads: Payloads, parts: Mapping[int, UInt8Array]) -> Payloads:
    """The same samples, of which those at the rows of `parts`, which have no bytes, get these."""
    if not parts:
        return payloads
    sizes = np.diff(payloads.offsets)
    sizes[list(parts)] = [len(part) for part in parts.values()]
    offsets, data = _offsets(sizes), np.empty(int(sizes.sum()), np.uint8)
    for row in range(len(payloads)):
        data[offsets[row] : offsets[row + 1]] = parts[row] if row in parts else payloads.payload(row)
    return Payloads(payloads.keys, payloads.labels, data, offsets)


def _offsets(sizes: Int64Array) -> Int64Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


class PayloadBuffer:
    """One buffer for answers as they come, so that none of them waits in memory for the last.

    Args: most: samples at most. usual_bytes: of all of them, or more than that. room: bytes to allocate at once, where they are known.
    """

    def __init__(self, most: int, usual_bytes: int = 0, room: int = 0) -> None:
        self._most = most
        self._usual_bytes = usual_bytes
        self._num_samples = 0
        self._keys = np.empty(most, np.int64)
        self._labels: LabelArray = np.empty(0, np.int64)
        self._offsets = np.zeros(most + 1, np.int64)
        self._data = np.empty(room, np.uint8)
        self._sizes: set[int | None] = set()

    def add(self, answer: Payloads) -> None:
        """Copy the samples of `answer` behind those that the buffer holds."""
        if not len(answer):
            return
        start, stop = self._num_samples, self._num_samples + len(answer)
        used = int(self._offsets[start])
        ends = answer.offsets[1:] + (used - answer.offsets[0])
        if ends[-1] > len(self._data):
            self._grow(used, int(ends[-1]), stop)
        if not start:
            self._labels = np.empty_like(answer.labels, shape=self._most)
        self._keys[start:stop] = answer.keys
        self._labels[start:stop] = answer.labels
        self._offsets[start + 1 : stop + 1] = ends
        self._data[used : ends[-1]] = answer.data[answer.offsets[0] : answer.offsets[-1]]
        self._sizes.add(answer.record_size)
        self._num_samples = stop

    def _grow(self, used: int, needed: int, num_samples: int) -> None:
        """Make room for all samples if those to come are as large as those that have; but for more than `usual_bytes` only up to twice the
        bytes needed now, since one sample says little of the others."""
        expected = -(-needed * self._most // num_samples)
        grown = np.empty(max(needed, min(expected, max(2 * needed, self._usual_bytes))), np.uint8)
        grown[:used] = self._data[:used]
        self._data = grown

    def payloads(self) -> Payloads:
        """All samples that were added, in that order, as views of the buffer."""
        n = self._num_samples
        offsets = self._offsets[: n + 1]
        size = next(iter(self._sizes)) if len(self._sizes) == 1 else None
        return Payloads(self._keys[:n], self._labels[:n], self._data[: offsets[-1]], offsets, size)
