"""Code that local reads and reads over Flight share: keys of a partition, chunks of samples for a batch, functions that join and split payloads, and
read options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from modyn._core import Column, find_runs, pick, take
from modyn.dataset.batch import NONE_CACHED, CachedCounts
from modyn.dataset.order.batch_plan import PartitionRead
from modyn.dataset.prefetch import Prefetcher
from modyn.dataset.preparation_clock import NO_TIMES, PreparationTimes
from modyn.models.classes import LabelClasses
from modyn.records import BoolArray, Float32Array, Int64Array, KeysAndWeights, LabelArray
from modyn.storage.model.samples import UInt8Array
from modyn.storage.payloads import OnMissing, Payloads

S = TypeVar("S")
Array = TypeVar("Array", Int64Array, Float32Array)

_MAX_PROGRESSIONS = 64
"""Largest number of arithmetic progressions in which keys are stored. With more progressions, finding the progression of a key would take longer than
a memory access, so keys are stored as an array."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Bounds of one Flight request.

    fetch_samples: largest number of samples in one fetch. fetch_bytes: largest number of bytes in one fetch, estimated from earlier samples; a single
    sample may be larger. first_fetch: number of samples of the first fetch, at most a batch. The first fetch is small, because the size of its
    samples is unknown (a sample may be a video).
    """

    fetch_samples: int = 262_144
    fetch_bytes: int = 64 * 2**20
    first_fetch: int = 256


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for turning a stream of partition reads into batches.

    training: whether `random_transformations` are applied. shuffled: whether the rows of a read are in random order. ahead: number of reads, beyond
    the one in use, whose keys are prefetched; over Flight also the number of fetch slices whose payloads are prefetched. requests: number of parallel
    key requests. on_missing: "skip" leaves deleted samples out of their batch, "raise" raises NotFoundError. identity: identity of the dataset of the
    keys; empty: any. seed_of(epoch, index): seed of the random generators for decoding this batch; None: the generators are not seeded. pin_memory:
    whether batches are in page-locked memory. classes: allowed classes; a sample with another label is bad; None: labels are not checked.
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
    """Keys and weights of a partition by row. Consecutive keys and equal weights are computed, so that they take no memory. Thread-safe."""

    def __init__(self, partition: KeysAndWeights) -> None:
        keys, weights = np.ascontiguousarray(partition.keys), np.ascontiguousarray(partition.weights)
        self._keys: Column | Int64Array = keys
        self._weights: np.float32 | Float32Array = weights
        if len(keys):
            # A few progressions are looked up faster than an array, and take no memory. More progressions would be slower.
            progressions = find_runs(keys, _MAX_PROGRESSIONS)
            if progressions is not None:
                self._keys = Column(np.concatenate(progressions).view(np.uint8), "runs", 8, len(keys))
            if weights.min() == weights.max():
                self._weights = weights[0]

    def look_up(self, rows: Int64Array) -> KeysAndWeights:
        """Return the keys and weights of `rows`, int64 (n,), in this order."""
        keys = self._keys.take(rows) if isinstance(self._keys, Column) else pick(self._keys, rows)
        if isinstance(self._weights, np.ndarray):
            return KeysAndWeights(keys, pick(self._weights, rows))
        return KeysAndWeights(keys, np.full(len(rows), self._weights, np.float32))


KeyStream = Prefetcher[PartitionRead, PartitionKeys]
"""Stream of partition reads. Each read has one result: the keys of its partition."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk(Generic[S]):
    """Samples of one batch from one source, in the order of the batch.

    epoch, index: the batch. last: whether this chunk completes the batch. source: object to which `rows` refer: `PartitionKeys` for local reads,
    `Payloads` over Flight. rows: int64 (n,) or a slice. weights: float32 (n,); None: the weights are looked up with the keys.
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
    """Cached values of n samples in two forms. A value that the cache does not contain is None."""

    augmented: Sequence[Any]
    decoded: Sequence[Any]
    """Decoded values, only of samples without an augmented value."""

    @property
    def missing(self) -> BoolArray:
        """Which samples have a value in neither form: bool (n,)."""
        return self.not_augmented & np.array([value is None for value in self.decoded], np.bool_)

    @property
    def not_augmented(self) -> BoolArray:
        """Which samples have no augmented value: bool (n,)."""
        return np.array([value is None for value in self.augmented], np.bool_)

    def take(self, rows: Sequence[int]) -> PreparedValues:
        """Return the values of the samples at `rows`."""
        return PreparedValues([self.augmented[row] for row in rows], [self.decoded[row] for row in rows])

    def counts(self, num_encoded: int) -> CachedCounts:
        """Return the number of samples that were found. Args: num_encoded: number of samples whose payload was found."""
        found = [sum(value is not None for value in values) for values in (self.decoded, self.augmented)]
        return CachedCounts(num_encoded, *found)


@dataclass(frozen=True, slots=True, eq=False)
class GatheredSamples:
    """The n samples of a batch before decoding.

    payloads: one buffer, with offsets from 0; samples in `prepared` have no bytes there. weights: float32 (n,). prepared: values from a cache; None:
    there are none. cached: number of samples from each tier. times: times of reading. is_held: bool (n,), whether the payload came from the tier of
    encoded samples; None: there is no cache.
    """

    payloads: Payloads
    weights: Float32Array
    prepared: PreparedValues | None = None
    cached: CachedCounts = NONE_CACHED
    times: PreparationTimes = NO_TIMES
    is_held: BoolArray | None = None

    def take(self, rows: Int64Array) -> GatheredSamples:
        """Return the samples at `rows`, int64 (m,)."""
        prepared = None if self.prepared is None else self.prepared.take(rows.tolist())
        is_held = None if self.is_held is None else self.is_held[rows]
        payloads = select_payloads(self.payloads, rows)
        return replace(self, payloads=payloads, weights=self.weights[rows], prepared=prepared, is_held=is_held)


def no_payloads() -> Payloads:
    """Return payloads of zero samples, with int64 labels."""
    nothing = np.empty(0, np.int64)
    return Payloads(nothing, nothing, np.empty(0, np.uint8), np.zeros(1, np.int64))


def join(columns: Sequence[Array]) -> Array:
    """Concatenate the arrays. A single array is not copied."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def select_payloads(payloads: Payloads, rows: Int64Array | slice) -> Payloads:
    """Select samples. For a slice (start, stop), the result has views. For positions, int64 (n,), the result has copies in this order; duplicates are
    allowed. Offsets begin with 0.
    """
    if isinstance(rows, slice):
        bounds = payloads.offsets[rows.start : rows.stop + 1]
        data, offsets = payloads.data[bounds[0] : bounds[-1]], bounds - bounds[0] if bounds[0] else bounds
        return Payloads(payloads.keys[rows], payloads.labels[rows], data, offsets, payloads.record_size)
    size = payloads.common_size
    if size:
        # Samples of one size are copied by row, without offsets.
        data, offsets = take(payloads.data[payloads.offsets[0] : payloads.offsets[-1]], size, rows)
    else:
        data, offsets = take(payloads.data, payloads.offsets, rows)
    return Payloads(payloads.keys[rows], payloads.labels[rows], data, offsets, size)


def split_samples(samples: GatheredSamples, bounds: Sequence[int]) -> list[GatheredSamples]:
    """Split samples that are in no cache at `bounds`, without copying. The first part has the times of all."""
    parts = [
        GatheredSamples(select_payloads(samples.payloads, slice(first, last)), samples.weights[first:last])
        for first, last in pairwise(bounds)
    ]
    return [replace(parts[0], times=samples.times), *parts[1:]]


def concatenate_payloads(answers: Sequence[Payloads]) -> Payloads:
    """Concatenate the samples of all answers, in order, in one buffer. A single answer is not copied."""
    if len(answers) == 1:
        return answers[0]
    buffer = PayloadBuffer(sum(map(len, answers)), room=sum(int(answer.offsets[-1] - answer.offsets[0]) for answer in answers))
    for answer in answers:
        buffer.add(answer)
    return buffer.payloads()


def spread(read: Payloads, rows: Int64Array, keys: Int64Array, labels: LabelArray) -> Payloads:
    """Return the samples of `keys`. The samples at `rows` have the bytes of `read`, which are not copied. Other samples have no bytes.

    Args: read: payloads of m samples. rows: int64 (m,), ascending. keys, labels: (n,).
    """
    if len(rows) == len(keys):
        return read
    sizes = np.zeros(len(keys), np.int64)
    sizes[rows] = np.diff(read.offsets)
    return Payloads(keys, labels, read.data[read.offsets[0] : read.offsets[-1]], _offsets(sizes))


def fill_in(payloads: Payloads, parts: Mapping[int, UInt8Array]) -> Payloads:
    """Return the samples, with added bytes. Args: parts: row → bytes, for rows that have no bytes in `payloads`."""
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
    """One buffer to which answers are copied as they arrive, so that an answer does not stay in memory until the last answer arrives.

    Args: most: largest number of samples. usual_bytes: usual upper bound of the bytes of these samples. room: number of bytes to allocate at once, if
    known.
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
        """Append the samples of `answer`."""
        if not len(answer):
            return
        start, stop = self._num_samples, self._num_samples + len(answer)
        used = int(self._offsets[start])
        # The answer's offsets may begin anywhere in its data.
        ends = answer.offsets[1:] + (used - answer.offsets[0])
        if ends[-1] > len(self._data):
            self._grow(used, int(ends[-1]), stop)
        # The type of the labels is not known before the first answer.
        if not start:
            self._labels = np.empty_like(answer.labels, shape=self._most)
        self._keys[start:stop] = answer.keys
        self._labels[start:stop] = answer.labels
        self._offsets[start + 1 : stop + 1] = ends
        self._data[used : ends[-1]] = answer.data[answer.offsets[0] : answer.offsets[-1]]
        self._sizes.add(answer.record_size)
        self._num_samples = stop

    def _grow(self, used: int, needed: int, num_samples: int) -> None:
        """Make room for all samples, assuming that later samples are as large as earlier ones. Beyond `usual_bytes`, allocate at most twice the bytes
        that are needed now, because the size of one sample says little about the sizes of others.
        """
        expected = -(-needed * self._most // num_samples)
        grown = np.empty(max(needed, min(expected, max(2 * needed, self._usual_bytes))), np.uint8)
        grown[:used] = self._data[:used]
        self._data = grown

    def payloads(self) -> Payloads:
        """Return all added samples, in order, as views of the buffer."""
        n = self._num_samples
        offsets = self._offsets[: n + 1]
        size = next(iter(self._sizes)) if len(self._sizes) == 1 else None
        return Payloads(self._keys[:n], self._labels[:n], self._data[: offsets[-1]], offsets, size)
