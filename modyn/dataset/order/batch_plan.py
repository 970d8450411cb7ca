"""Plan which samples form which batch. The plan depends only on the size of a trigger set, the options and the seed.

The plan of an epoch is one sequence of samples, cut into batches. In a stream from batch `first` on, worker (g - first) mod n of n workers makes
batch g. The batches are the same for any number of workers, all are full except the last of an epoch, and a resumed stream is the tail of the whole
stream.

A `Plan` yields `PartitionRead`s, each with its `BatchSlice`s. A `PartitionRead` contains no keys, weights or payloads; readers look them up. A
`BatchPosition` is the start of a stream of batches.
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
"""Purposes of random generators. The purpose is part of the seed, so that no two generators share a sequence."""

_CORES = len(os.sched_getaffinity(0))


def num_batches(num_keys: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of batches of an epoch over `num_keys` samples, for any partitions and workers. `drop_last` leaves an incomplete batch out.

    >>> num_batches(10, 4, drop_last=False), num_batches(10, 4, drop_last=True)
    (3, 2)
    """
    return num_keys // batch_size if drop_last else -(-num_keys // batch_size)


def samples_per_epoch(num_keys: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of samples in the batches of one epoch. This number is smaller than `num_keys` only with `drop_last`.

    >>> samples_per_epoch(10, 4, drop_last=True)
    8
    """
    return num_keys - num_keys % batch_size if drop_last else num_keys


def augmentation_seed(seed: int, trigger_id: int, epoch: int, batch: int) -> int:
    """Return the seed of the random transformations of a batch: 63 bits that depend only on the arguments.

    Args: batch: number of the batch in its epoch.
    """
    words = np.random.SeedSequence([seed, trigger_id, epoch, batch, _AUGMENTATION]).generate_state(2, np.uint32)
    return (int(words[0]) << 31) | (int(words[1]) >> 1)


@dataclass(frozen=True, slots=True, order=True)
class BatchPosition:
    """A position in the stream of batches, not of samples: `batch` batches of epoch `epoch`, and all earlier epochs, have been consumed.

    one_epoch: whether the stream ends with this epoch; if not, the stream ends with the last epoch.
    """

    epoch: int = 0
    batch: int = 0
    one_epoch: bool = False


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """Rows [start, stop) of a `PartitionRead`, which belong to batch `index` of epoch `epoch`. last: whether these rows complete the batch."""

    epoch: int
    index: int
    start: int
    stop: int
    last: bool


class PartitionRead:
    """Rows of one partition that one worker needs in one epoch. These rows are prefetched together.

    Args: partition: number of the partition. rows: positions within the partition in the order of use, int64 (n,), or a function that returns them,
    called once. slices: the batch slices of the rows, in order.
    """

    def __init__(self, partition: int, rows: Int64Array | Callable[[], Int64Array], slices: tuple[BatchSlice, ...]) -> None:
        self.partition = partition
        self.slices = slices
        self._rows = rows
        # Held while the rows are made, so that another thread waits for them instead of making them again.
        self._making = threading.Lock()

    def rows(self) -> Int64Array:
        """Positions within the partition in the order of use, without duplicates: int64 (n,). The first call makes the positions, which takes a while
        for a large partition. Thread-safe.
        """
        with self._making:
            if callable(self._rows):
                self._rows = self._rows()
            return self._rows


@dataclass(frozen=True, slots=True)
class Plan:
    """The order in which a trigger set is served. Partition p holds positions [p·size, (p+1)·size) of its `num_keys` keys.

    Raises: InvalidArgumentError: a size below 1, or another number below 0.
    """

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
        """Number of partitions of the set; the last may be shorter."""
        return -(-self.num_keys // self.partition_size)

    @property
    def num_batches(self) -> int:
        """Number of batches of one epoch."""
        return num_batches(self.num_keys, self.batch_size, self.drop_last)

    def batches_before(self, position: BatchPosition) -> int:
        """Return the number of batches consumed at `position`, counted over all epochs."""
        return position.epoch * self.num_batches + position.batch

    def check_position(self, position: BatchPosition, epochs: int) -> None:
        """Check that a stream of `epochs` epochs has this position. Raises InvalidArgumentError otherwise."""
        inside = position.epoch >= 0 and 0 <= position.batch <= self.num_batches
        if not inside or position > BatchPosition(epochs):
            raise InvalidArgumentError(
                f"there is no position of {position.batch} batches in epoch {position.epoch}: epochs count from 0, "
                f"{self.num_batches} batches make one, and the last batch served is of epoch {epochs - 1}"
            )

    def partition_length(self, partition: int) -> int:
        """Return the number of keys in a partition."""
        return min(self.partition_size, self.num_keys - partition * self.partition_size)

    def partition_order(self, epoch: int) -> Int64Array:
        """Return the numbers of the partitions in the order in which an epoch visits them: int64 (num_partitions,)."""
        if not self.shuffle:
            return np.arange(self.num_partitions, dtype=np.int64)
        rng = np.random.default_rng([self.seed, self.trigger_id, epoch, _ORDER_OF_PARTITIONS])
        return rng.permutation(self.num_partitions).astype(np.int64)

    def sample_order(self, epoch: int, partition: int, threads: int = 1) -> Int64Array:
        """Return the positions within a partition, int64 (n,), in the order in which an epoch visits them. The result is the same for any number of
        `threads`.
        """
        length = self.partition_length(partition)
        if not self.shuffle:
            return np.arange(length, dtype=np.int64)
        entropy = [self.seed, self.trigger_id, epoch, _ORDER_OF_SAMPLES, partition]
        # A permutation in C++ is seeded by these words only, so it is the same on any number of threads.
        words = np.random.SeedSequence(entropy).generate_state(4, np.uint64)
        return permutation(tuple(words.tolist()), length, threads)

    def reads(self, epochs: int, first_batch: int = 0, worker: int = 0, num_workers: int = 1) -> Iterator[PartitionRead]:
        """Yield the partition reads of worker `worker` of `num_workers`, in order, from batch `first_batch` (counted over all epochs) to the end of
        the last epoch. Partitions that the worker does not need are left out.
        """
        per_epoch = self.num_batches
        for epoch in range(first_batch // per_epoch if per_epoch else epochs, epochs):
            first = max(0, first_batch - epoch * per_epoch)
            # The first batch of this worker in this epoch, from `first` on.
            # Batch k, counted from `first_batch`, belongs to worker k modulo `num_workers`, over all epochs.
            mine = first + (worker - (epoch * per_epoch + first - first_batch)) % num_workers
            start = 0
            for partition in self.partition_order(epoch).tolist():
                read = self._read(epoch, partition, start, mine, num_workers)
                if read.slices:
                    yield read
                start += self.partition_length(partition)

    def _read(self, epoch: int, partition: int, start: int, index: int, stride: int) -> PartitionRead:
        """Return the rows in batches `index`, `index + stride`, … of a partition that begins with sample `start` of the epoch."""
        size, used = self.batch_size, samples_per_epoch(self.num_keys, self.batch_size, self.drop_last)
        length = self.partition_length(partition)
        stop = min(start + length, used)
        # Batches that end before the partition begins are skipped.
        index += max(0, -(-(start // size - index) // stride)) * stride
        slices: list[BatchSlice] = []
        bounds: list[tuple[int, int]] = []
        taken = 0
        while index * size < stop:
            begin, end = max(index * size, start), min((index + 1) * size, stop)
            # The last batch of an epoch may have fewer samples. This batch is complete with the last sample that is used.
            slices.append(BatchSlice(epoch, index, taken, taken + end - begin, end == min((index + 1) * size, used)))
            bounds.append((begin - start, end - start))
            taken += end - begin
            index += stride

        def rows() -> Int64Array:
            # The first batch waits for this order, so all cores help to make it.
            order = self.sample_order(epoch, partition, max(1, _CORES // stride))
            return order if taken == length else np.concatenate([order[begin:end] for begin, end in bounds])

        return PartitionRead(partition, rows, tuple(slices))
