"""Decision of a job for one batch at a shared cache, and the state of the job's order for a checkpoint."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from modyn.cache.sample_numbers import NO_SAMPLES
from modyn.cache.sharing.cache_job import CacheJob
from modyn.records import BoolArray, Int64Array

MOST_UNTRAINED: Final = 4096
"""Largest number of untrained batches. A loader decides fewer batches in advance: two for each process, and a few more."""


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """Samples of one batch, and the additional work for the cache. `BatchSampler.report_made` reports a finished batch."""

    number: int
    """Number of the batch in its sampler, from 0."""
    epoch: int
    keys: Int64Array
    """(n,), sample keys, in the order of the batch."""
    hits: BoolArray
    """(n,), whether the value of each sample is most likely in the tier. The other samples are prepared."""
    admitted: BoolArray
    """(n,), whether the prepared value of each sample that is not a hit is put into the tier."""
    evicted: Int64Array
    """Keys to drop from the tier. Hits of the batch are dropped after the batch has read them, other samples before the batch is made."""
    refilled: Int64Array = field(default_factory=NO_SAMPLES.copy)
    """Keys of other samples, to be prepared in the background and put into the tier."""
    stamps: Int64Array | None = None
    """(n,), stamps of the values of hits and admitted samples. Each admitted value has its own stamp, which the tier stores with the value, so that a
    reader finds exactly this value or none. None: all values of a sample are equal, because they are not random."""
    refilled_stamps: Int64Array | None = None
    """Stamps of the values of `refilled`, see `stamps`."""

    def stamps_of(self, keys: Int64Array) -> Int64Array | None:
        """Return the stamps of some hits and admitted samples of the batch."""
        return _found(keys, self.keys, self.stamps)

    def refilled_stamps_of(self, keys: Int64Array) -> Int64Array | None:
        """Return the stamps of some samples of `refilled`."""
        return _found(keys, self.refilled, self.refilled_stamps)


def _found(keys: Int64Array, among: Int64Array, stamps: Int64Array | None) -> Int64Array | None:
    if stamps is None:
        return None
    order = np.argsort(among, kind="stable")
    found: Int64Array = stamps[order[np.searchsorted(among, keys, sorter=order)]]
    return found


class BatchSampler(Protocol):
    """Decides the batches of one training. Not thread-safe: the caller holds a lock."""

    @property
    def epoch(self) -> int:
        """Epoch of the last batch."""

    @property
    def num_left(self) -> int:
        """Number of samples that this epoch must still serve; 0: the next batch begins the next epoch."""

    def next_batch(self, size: int) -> SharedBatch:
        """Decide the next batch: `size` samples, or fewer at the end of the epoch. Then the next batch begins the next epoch."""

    def report_made(self, number: int, kept: Int64Array = NO_SAMPLES, lost: Int64Array = NO_SAMPLES) -> None:
        """Report that a batch is made. Args: kept: keys of samples whose values were put into the tier. lost: keys of hits that the tier did not
        have. `kept` and `lost` include samples that were prepared in the background since the last report."""

    def end_epoch(self) -> None:
        """Let the next batch begin the next epoch. Samples that this epoch has not served are left out."""

    def state_dict(self, trained: int | None = None) -> dict[str, Any]:
        """State for a checkpoint. Args: trained: as for `UntrainedBatches.state_of`."""

    def report(self) -> None:
        """Send a heartbeat while no batch is needed."""

    def leave(self) -> Int64Array:
        """Leave the cache, so that other jobs no longer wait for this job's values. Returns the keys of values to drop: the caller drops these values
        from the tier after all processes have stopped making batches of the job."""


class UntrainedBatches:
    """Decided batches of a job that no checkpoint marks as trained, at most the newest MOST_UNTRAINED."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, int, Int64Array]] = deque(maxlen=MOST_UNTRAINED)
        """Number, epoch and samples of each batch."""

    def add(self, number: int, epoch: int, samples: Int64Array) -> None:
        """Add a decided batch."""
        self._batches.append((number, epoch, samples))

    def state_of(self, job: CacheJob, trained: int | None) -> dict[str, Any]:
        """State from which the job resumes.

        Args: trained: number of the last trained batch; later batches are served again. −1: no batch was trained. None: all batches were trained. The
        call forgets the batches up to `trained`, so a later call must not give a smaller number.
        """
        state = job.state_dict()
        if trained is None:
            return state
        while self._batches and self._batches[0][0] <= trained:
            self._batches.popleft()
        if not self._batches:
            return state
        # The job resumes in the epoch of the oldest untrained batch. That batch and later batches of this epoch are served again.
        epoch = self._batches[0][1]
        # If a later epoch of the job has begun, all samples of this epoch were served.
        seen = job.seen.copy() if epoch == job.epoch else np.ones(len(job.seen), np.bool_)
        for _, of_epoch, samples in self._batches:
            if of_epoch == epoch:
                seen[samples] = False
        return state | {"epoch": epoch, "seen": np.packbits(seen[job.trigger_set])}
