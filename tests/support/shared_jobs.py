"""Trainings at a shared cache, in one process: a tier that knows only which value of a sample it has, and workers that take time."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from modyn.cache.sharing.served_batch import SharedBatch
from modyn.cache.sharing.shared_job import SharedJob

Values = dict[int, int]
"""A tier: the value of each sample key. Each value is another number."""


class Training:
    """One job with this number of batches in flight. It checks that it receives only allowed samples.

    Args: tier: shared with others. left: sample keys that the first epoch has still to serve; none: all.
    """

    def __init__(
        self, job: SharedJob, keys: npt.NDArray[np.int64], tier: Values, size: int, in_flight: int, augmented: bool = True
    ) -> None:
        self.job, self.keys, self.tier, self.size, self.in_flight, self.augmented = job, keys, tier, size, in_flight, augmented
        self.making: deque[SharedBatch] = deque()
        self.left: set[int] = set(keys.tolist())
        self.served: set[int] = set()
        """Values."""
        self.batches: list[SharedBatch] = []
        self.num_hits = self.num_prepared = 0
        """Hits that were in the tier; values that were prepared."""

    def step(self) -> SharedBatch:
        """Decide a batch; make the oldest one if too many are in flight."""
        batch = self.job.next_batch(self.size)
        for key in batch.evicted.tolist():
            self.tier.pop(key, None)
        if not self.left:
            self.left = set(self.keys.tolist())
        keys = batch.keys.tolist()
        assert len(set(keys)) == len(keys) == min(self.size, len(self.left))
        assert set(keys) <= self.left
        assert not (batch.hits & batch.admitted).any()
        self.left -= set(keys)
        self.batches.append(batch)
        self.making.append(batch)
        while len(self.making) > self.in_flight:
            self.make(self.making.popleft())
        return batch

    def make(self, batch: SharedBatch) -> None:
        """What workers do."""
        kept, lost = [], []
        assert batch.stamps is not None
        columns = (batch.keys, batch.hits, batch.admitted, batch.stamps)
        for key, is_hit, is_admitted, stamp in zip(*(column.tolist() for column in columns), strict=True):
            if is_hit and key in self.tier and STAMPS[self.tier[key]] == stamp:
                value = self.tier[key]
                self.num_hits += 1
            else:
                value = self.prepare(stamp)
                if is_hit:
                    lost.append(key)
                if is_admitted:
                    self.tier[key] = value
                    kept.append(key)
            assert not (self.augmented and value in self.served), "an augmented value was served twice"
            self.served.add(value)
        if batch.refilled_stamps is not None:
            for key, stamp in zip(batch.refilled.tolist(), batch.refilled_stamps.tolist(), strict=True):
                self.tier[key] = self.prepare(stamp)
                kept.append(key)
        self.job.report_made(batch.number, np.array(kept, np.int64), np.array(lost, np.int64))

    def prepare(self, stamp: int) -> int:
        """Return a new value."""
        STAMPS.append(stamp)
        self.num_prepared += 1
        return len(STAMPS) - 1

    def make_all(self) -> None:
        """Make what is in flight."""
        while self.making:
            self.make(self.making.popleft())


STAMPS: list[int] = []
"""Stamps of all values that were ever prepared."""


def hit_rates(trainings: list[Training], epochs: int) -> tuple[float, float]:
    """Let trainings run in step. Returns hits that were there, and preparations, for each served sample, in the epochs after the first."""
    steps = -(-len(trainings[0].keys) // trainings[0].size)
    for _ in range(steps):
        for training in trainings:
            training.step()
    before = [(training.num_hits, training.num_prepared) for training in trainings]
    for _ in range((epochs - 1) * steps):
        for training in trainings:
            training.step()
    hits = sum(training.num_hits - hits for training, (hits, _) in zip(trainings, before, strict=True))
    prepared = sum(training.num_prepared - prepared for training, (_, prepared) in zip(trainings, before, strict=True))
    return hits / (hits + prepared), prepared / (hits + prepared)
