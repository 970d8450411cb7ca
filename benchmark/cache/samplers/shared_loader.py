"""The sampler `shared_loader`: one loader for all jobs. All jobs read in the same order and wait for each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmark.cache.samplers.base import Sampler, Serving
from modyn.cache.sample_numbers import NO_SAMPLES
from modyn.cache.sharing.cache_job import CacheJob
from modyn.records import Int64Array


class SharedLoader(Sampler):
    """Serve all jobs one random order, pass by pass; a value stays until all have read it, and the job that is ahead waits while there is no room.

    A job that joins begins with the next pass, and one that has ended its epoch waits for that. `next_batch` then serves an empty batch: ask again
    later. The slowest job sets the speed of all.

    Stands for loaders such as DALI where one pipeline feeds several trainings.
    """

    def __init__(self, num_samples: int, capacity: int, seed: int = 0, augmented: bool = False) -> None:
        super().__init__(num_samples, capacity, seed, augmented)
        self._readers = np.zeros(num_samples, np.uint8)
        self._order = np.empty(0, np.int64)
        self._reads: dict[int, Int64Array] = {}
        """By place, what a job reads in this pass."""
        self._reading: set[int] = set()
        """Places of the jobs that have not ended the pass."""

    @property
    def expected(self) -> npt.NDArray[np.uint8]:
        """The number of jobs that read the sample in this pass."""
        return self._readers

    def leave(self, job: CacheJob) -> None:
        """End a job, or give up a dead job, so that other jobs need not wait for it."""
        self._readers[self._reads.pop(job.place, NO_SAMPLES)] -= 1
        self._reading.discard(job.place)
        super().leave(job)

    def next_batch(self, job: CacheJob, size: int) -> Serving:
        """Serve the next batch of a job; an empty batch if the job has to wait for others."""
        self._check_request(job, size)
        left_over = NO_SAMPLES if self._reading else self._begin_pass()
        if job.place not in self._reading:
            return Serving(NO_SAMPLES, np.zeros(0, np.bool_), job.hand)
        serving = super().next_batch(job, size)
        if not job.num_left:
            self._reading.remove(job.place)
        return serving._replace(evicted=np.concatenate([left_over, serving.evicted]))

    def choose(self, job: CacheJob, size: int) -> Serving:
        """Decide. `CacheJob.hand` is an index of the order."""
        values, hand, width = self.values, job.hand, size
        while True:
            window = self._order[hand : hand + width]
            at = np.flatnonzero(~job.seen[window])[:size]
            if len(at) == size or hand + width >= len(self._order):
                break
            width *= 2
        samples = window[at]
        hits = values.slot_of[samples] >= 0
        keeps = ~hits & (self._readers[samples] > 1)
        fits = np.cumsum(keeps) <= values.num_free
        if any(self.jobs[place].hand < hand for place in self._reading):
            # Others catch up meanwhile. The last one never waits, or all would.
            samples, hits, keeps, at, fits = samples[fits], hits[fits], keeps[fits], at[fits], fits[fits]
        read = samples[hits]
        evicted = read[values.servings[values.slot_of[read]] + 1 >= self._readers[read]]
        hand += int(at[-1]) + 1 if len(at) else 0
        return Serving(samples, hits, hand, evicted, samples[keeps & fits])

    def _begin_pass(self) -> Int64Array:
        """Let all jobs read a new order. Returns the samples of values that the last pass left over, since a job prepared them for itself."""
        left_over = self.values.samples
        self.values.evict(left_over)
        self._readers[:] = 0
        self._reads.clear()
        for place, job in self.jobs.items():
            if not job.num_left:
                job.begin_epoch(job.epoch + 1)
            self._reads[place] = read = job.trigger_set[~job.seen[job.trigger_set]]
            self._readers[read] += 1
            job.hand = 0
        self._reading = set(self.jobs)
        self._order = self.generator.permutation(np.flatnonzero(self._readers))
        return left_over
