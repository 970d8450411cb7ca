"""Which samples make up which batch: pure arithmetic over (trigger set, options, seed).

The plan of an epoch is one sequence of positions, cut into batches; batch g of the whole stream goes to worker (g - first) mod n. So the
batches are the same for any number of workers, all are full but the last of an epoch, and a resumed stream is the tail of the whole one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from modyn._core import permutation
from modyn.errors import InvalidArgumentError
from modyn.records import Int64Array

_ORDER_OF_PARTITIONS, _ORDER_OF_SAMPLES, _AUGMENTATION = 1, 2, 3
"""Purposes that random generators are seeded with, so that no two share a sequence."""

_CORES = len(os.sched_getaffinity(0))


def num_batches(num_keys: int, batch_size: int, drop_last: bool) -> int:
    """Batches of one epoch over `num_keys` samples, whatever the number of partitions and workers.

    >>> num_batches(10, 4, drop_last=False), num_batches(10, 4, drop_last=True)
    (3, 2)
    """
    return num_keys // batch_size if drop_last else -(-num_keys // batch_size)


def samples_per_epoch(num_keys: int, batch_size: int, drop_last: bool) -> int:
    """Samples in the batches of one epoch.

    >>> samples_per_epoch(10, 4, drop_last=True)
    8
    """
    return num_keys - num_keys % batch_size if drop_last else num_keys


def epochs_to_pass(num_samples: int, num_keys: int, batch_size: int, drop_last: bool) -> int:
    """Epochs, the last perhaps not to its end, that pass at least `num_samples`; 0 if an epoch has no batch at all.

    >>> epochs_to_pass(25, 10, 4, drop_last=True)
    4
    """
    each = samples_per_epoch(num_keys, batch_size, drop_last)
    return -(-num_samples // each) if each else 0


def augmentation_seed(seed: int, trigger_id: int, epoch: int, batch: int) -> int:
    """What random transformations of a batch are seeded with: 63 bits that depend on nothing but the arguments."""
    words = np.random.SeedSequence([seed, trigger_id, epoch, batch, _AUGMENTATION]).generate_state(2, np.uint32)
    return (int(words[0]) << 31) | (int(words[1]) >> 1)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in the stream of batches: `batch` batches of epoch `epoch` have been consumed, and all epochs before it."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Positions [start, stop) of a unit's rows belong to batch `index` of epoch `epoch`; `last`: the batch is complete after it."""

    epoch: int
    index: int
    start: int
    stop: int
    last: bool


class Unit:
    """What one worker needs of one partition in one epoch: the unit that is prefetched. Any thread may ask for its rows; the order of a large
    partition takes a while to make, and is made by the first who asks."""

    def __init__(self, partition: int, rows: Int64Array | Callable[[], Int64Array], pieces: tuple[Piece, ...]) -> None:
        self.partition = partition
        self.pieces = pieces
        self._rows = rows
        self._making = threading.Lock()

    @property
    def rows(self) -> Int64Array:
        """int64 (n,), positions within the partition, in the order in which they are used, without repetition."""
        return self.make_rows()

    def make_rows(self) -> Int64Array:
        """Makes the rows, unless somebody has, so that nobody has to wait for them later."""
        with self._making:
            if callable(self._rows):
                self._rows = self._rows()
            return self._rows


@dataclass(frozen=True, slots=True)
class Plan:
    """The order in which a trigger set is served. Partition p holds positions [p·size, (p+1)·size) of its `num_keys` keys."""

    num_keys: int
    partition_size: int
    batch_size: int
    drop_last: bool = False
    shuffle: bool = False
    seed: int = 0
    trigger_id: int = 0

    def __post_init__(self) -> None:
        if self.num_keys < 0 or self.partition_size < 1 or self.batch_size < 1 or self.seed < 0 or self.trigger_id < 0:
            raise InvalidArgumentError(
                f"no batches can be planned for {self}: sizes are at least 1, the other numbers at least 0"
            )

    @property
    def num_partitions(self) -> int:
        return -(-self.num_keys // self.partition_size)

    @property
    def num_batches(self) -> int:
        """Batches of one epoch."""
        return num_batches(self.num_keys, self.batch_size, self.drop_last)

    def partition_length(self, partition: int) -> int:
        return min(self.partition_size, self.num_keys - partition * self.partition_size)

    def partition_order(self, epoch: int) -> Int64Array:
        """The partitions in the order in which an epoch visits them."""
        if not self.shuffle:
            return np.arange(self.num_partitions, dtype=np.int64)
        rng = np.random.default_rng([self.seed, self.trigger_id, epoch, _ORDER_OF_PARTITIONS])
        return rng.permutation(self.num_partitions).astype(np.int64)

    def sample_order(self, epoch: int, partition: int, threads: int = 1) -> Int64Array:
        """The positions within a partition in the order in which an epoch visits them, whatever `threads` make it."""
        length = self.partition_length(partition)
        if not self.shuffle:
            return np.arange(length, dtype=np.int64)
        words = np.random.SeedSequence([self.seed, self.trigger_id, epoch, _ORDER_OF_SAMPLES, partition]).generate_state(
            4, np.uint64
        )
        return permutation(tuple(words.tolist()), length, threads)

    def units(self, epochs: int, first_batch: int = 0, worker: int = 0, num_workers: int = 1) -> Iterator[Unit]:
        """What `worker` of `num_workers` serves of the batches from number `first_batch` (counted over all epochs) to the end of the
        last epoch, in order. Units of which it needs nothing are left out."""
        per_epoch = self.num_batches
        for epoch in range(first_batch // per_epoch if per_epoch else epochs, epochs):
            start = 0
            for partition in self.partition_order(epoch).tolist():
                length = self.partition_length(partition)
                unit = self._unit(
                    epoch, partition, start, length, first_batch=first_batch, worker=worker, num_workers=num_workers
                )
                if unit is not None:
                    yield unit
                start += length

    def _unit(
        self, epoch: int, partition: int, start: int, length: int, *, first_batch: int, worker: int, num_workers: int
    ) -> Unit | None:
        """The part of a partition, whose samples are number `start` … `start + length` of the epoch, that is the worker's."""
        size, used = self.batch_size, samples_per_epoch(self.num_keys, self.batch_size, self.drop_last)
        stop = min(start + length, used)
        index = max(start // size, first_batch - epoch * self.num_batches)
        index += (worker - (epoch * self.num_batches + index - first_batch)) % num_workers
        pieces: list[Piece] = []
        parts: list[tuple[int, int]] = []
        taken = 0
        while index * size < stop:
            begin, end = max(index * size, start), min((index + 1) * size, stop)
            pieces.append(Piece(epoch, index, taken, taken + end - begin, end == min((index + 1) * size, used)))
            parts.append((begin - start, end - start))
            taken += end - begin
            index += num_workers
        if not pieces:
            return None

        def rows() -> Int64Array:
            # The first batch waits for it, and so do the cores.
            order = self.sample_order(epoch, partition, max(1, _CORES // num_workers))
            return order if taken == length else np.concatenate([order[begin:end] for begin, end in parts])

        return Unit(partition, rows, tuple(pieces))
