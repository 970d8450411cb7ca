"""The samplers `lru` and `quiver`: every missed sample is kept in place of the least recently used samples."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from benchmark.cache.samplers.base import Sampler, Serving
from modyn.cache.sample_numbers import among
from modyn.cache.sharing.cache_job import CacheJob
from modyn.records import BoolArray, Int64Array


class LRU(Sampler):
    """Keep every missed sample; drop the least recently used values. The next samples of the order are served, cached or not."""

    serves_again = True
    oversampling: ClassVar[int] = 1
    """Number of samples to examine for each sample that a batch serves; cached samples are served first."""

    def __init__(self, num_samples: int, capacity: int, seed: int = 0, augmented: bool = False) -> None:
        super().__init__(num_samples, capacity, seed, augmented)
        self._last_use = np.full(num_samples, -1)
        """Index of each sample's last use in `_uses`; earlier uses no longer count."""
        self._uses = np.zeros(4 * self.values.capacity + 1, np.int64)
        self._first, self._end = 0, 0

    def choose(self, job: CacheJob, size: int) -> Serving:
        """Decide. See the class."""
        values = self.values
        samples = job.ahead(self.oversampling * size)
        hits = values.slot_of[samples] >= 0
        first = np.argsort(~hits, kind="stable")[:size]
        samples, hits = samples[first], hits[first]
        admitted = samples[~hits][-values.capacity :] if values.capacity else samples[:0]
        evicted = self._least_recent(len(admitted) - values.num_free, samples[hits])
        return Serving(samples, hits, evicted=evicted, admitted=admitted)

    def next_batch(self, job: CacheJob, size: int) -> Serving:
        """Serve the next batch of a job, and record the used samples. Hits are recorded first, because they were used before the others were kept."""
        serving = super().next_batch(job, size)
        used = np.concatenate([serving.samples[serving.hits], serving.admitted])
        used = used[self.values.slot_of[used] >= 0]
        if self._end + len(used) > len(self._uses):
            live = self._uses[self._first : self._end]
            live = live[self._counts(live, self._first)]
            live = live[~among(live, used)]
            self._uses[: len(live)], self._first, self._end = live, 0, len(live)
            self._last_use[live] = np.arange(len(live))
        self._uses[self._end : self._end + len(used)] = used
        self._last_use[used] = np.arange(self._end, self._end + len(used))
        self._end += len(used)
        window = self._uses[self._first : min(self._end, self._first + 4 * size)]
        counts = self._counts(window, self._first)
        self._first += int(np.argmax(counts)) if counts.any() else len(window)
        return serving

    def _counts(self, uses: Int64Array, start: int) -> BoolArray:
        """Return which of these uses, which begin at index `start`, are the last use of a cached sample."""
        last: BoolArray = (self._last_use[uses] == np.arange(start, start + len(uses))) & (self.values.slot_of[uses] >= 0)
        return last

    def _least_recent(self, count: int, hits: Int64Array) -> Int64Array:
        """Return the cached samples that were used longest ago; hits of this batch come last."""
        width, found = 2 * count, self._uses[:0]
        while count > 0:
            window = self._uses[self._first : min(self._end, self._first + width)]
            found = window[self._counts(window, self._first)]
            found = found[~among(found, hits)]
            if len(found) >= count or self._first + width >= self._end:
                break
            width *= 2
        return np.concatenate([found, hits])[: max(0, count)]


class Quiver(LRU):
    """Examine ten times as many samples as a batch serves, and serve cached samples first.

    Source: Kumar, Sivathanu: Quiver, an informed storage cache for deep learning, 2020, substitutable hits. It keeps and drops chunks of the
    dataset for all jobs; here single samples are kept as by LRU.
    """

    oversampling = 10
