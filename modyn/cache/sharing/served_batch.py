"""What a job at a shared cache decides for a batch, and what a checkpoint keeps of its order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from modyn.cache.sample_numbers import NO_SAMPLES
from modyn.cache.samplers.base import CacheJob
from modyn.records import BoolArray, Float32Array, Int64Array

MOST_UNTRAINED: Final = 4096
"""More than any loader decides ahead: two batches for each of its processes, and a few."""


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """What one batch serves, and what is to be done for the cache. `BatchSampler.made` reports it."""

    number: int
    """Counts the batches of this object, from 0."""
    epoch: int
    keys: Int64Array
    """(n,), sample keys, in the order of the batch."""
    hits: BoolArray
    """(n,), whether the value of each is in the tier, most probably. The others are prepared."""
    admitted: BoolArray
    """(n,), whether the value of each, which is no hit, is to be put into the tier once it is prepared."""
    evicted: Int64Array
    """Keys of samples that are to be dropped from the tier: hits of the batch once it has them, others before it is made."""
    refilled: Int64Array = field(default_factory=NO_SAMPLES.copy)
    """Keys of other samples, which are to be prepared beside the batch and put into the tier."""
    stamps: Int64Array | None = None
    """(n,), of the values of hits and of admitted samples. Each value that a sampler admits has another stamp, which the tier keeps with it: whoever
    reads finds the value that was decided on, or none. None: the values of a sample are equally good, for they are not random."""
    refilled_stamps: Int64Array | None = None
    """Stamps of the values of `refilled`, as `stamps` has them."""

    def stamps_of(self, keys: Int64Array) -> Int64Array | None:
        """The stamps of some of its hits and admitted samples."""
        return _found(keys, self.keys, self.stamps)

    def refilled_stamps_of(self, keys: Int64Array) -> Int64Array | None:
        """The stamps of some of `refilled`."""
        return _found(keys, self.refilled, self.refilled_stamps)


def _found(keys: Int64Array, among: Int64Array, stamps: Int64Array | None) -> Int64Array | None:
    if stamps is None:
        return None
    order = np.argsort(among, kind="stable")
    found: Int64Array = stamps[order[np.searchsorted(among, keys, sorter=order)]]
    return found


class BatchSampler(Protocol):
    """Decides the batches of one training. For one thread at a time."""

    @property
    def epoch(self) -> int:
        """Of the last batch."""

    @property
    def num_left(self) -> int:
        """Samples that this epoch has still to serve; 0: the next batch begins the next one."""

    def next_batch(self, size: int) -> SharedBatch:
        """Decide the next batch: `size` samples, at the end of an epoch as many as are left; then the next epoch begins."""

    def made(self, number: int, kept: Int64Array = NO_SAMPLES, lost: Int64Array = NO_SAMPLES) -> None:
        """Report that a batch is made. Args: kept: keys of its samples whose values were put into the tier. lost: keys of hits that the tier did
        not have."""

    def rank(self, keys: Int64Array, losses: Float32Array) -> None:
        """Learn the losses of samples that were trained on. A sampler that does not choose by importance makes nothing of them.

        Args: keys, losses: (n,) each.
        """

    def end_epoch(self) -> None:
        """Let the next batch begin the next epoch: what this one has not served is left out."""

    def state_dict(self, trained: int | None = None) -> dict[str, Any]:
        """What a checkpoint keeps. Args: trained: as of `UntrainedBatches.state_of`."""

    def report(self) -> None:
        """Say that this job lives, where it asks for no batch for long."""

    def leave(self) -> Int64Array:
        """End. Others wait for nothing that this job would have done. Returns keys whose values are to be dropped from the tier, once no process
        makes batches of the job any more."""


class UntrainedBatches:
    """Batches of a job that were decided, until a checkpoint says that they are trained on: the newest MOST_UNTRAINED."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, int, Int64Array]] = deque(maxlen=MOST_UNTRAINED)
        """Number, epoch and samples of each."""

    def add(self, number: int, epoch: int, samples: Int64Array) -> None:
        """Note a batch."""
        self._batches.append((number, epoch, samples))

    def state_of(self, job: CacheJob, trained: int | None) -> dict[str, Any]:
        """The state of the job when it goes on.

        Args: trained: number of the last batch that was trained on: those decided after it are served again. −1: none was. None: all were. Batches
        before it are forgotten: a later call gives the same number or a greater one.
        """
        state = job.state_dict()
        if trained is None:
            return state
        while self._batches and self._batches[0][0] <= trained:
            self._batches.popleft()
        if not self._batches:
            return state
        epoch = self._batches[0][1]
        seen = job.seen.copy() if epoch == job.epoch else np.ones(len(job.seen), np.bool_)
        for _, of_epoch, samples in self._batches:
            if of_epoch == epoch:
                seen[samples] = False
        return state | {"epoch": epoch, "seen": np.packbits(seen[job.trigger_set])}
