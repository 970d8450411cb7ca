"""The sampler `shade`: important samples are cached, and are served more often."""

from __future__ import annotations

import numpy as np

from benchmark.cache.samplers.base import Sampler, Serving
from modyn.cache.sample_numbers import NO_SAMPLES
from modyn.cache.sharing.cache_job import CacheJob
from modyn.records import BoolArray, Float32Array, Float64Array, Int64Array


class Shade(Sampler):
    """Draw samples by importance, and keep the most important ones. An epoch is as many servings as the trigger set has samples.

    By definition it serves samples repeatedly in one epoch, and others not at all. Of n ranked samples, the k-th least important is drawn in
    proportion to k; until losses are known, all alike. A sample whose loss is not known yet counts as the mean of those that are.

    Source: Khan, Yazdani, Fan et al.: SHADE, enable fundamental cacheability for distributed deep learning training, 2023, ranks of importance
    and the cache by priority. Its ranks come from the losses within each batch; here from the newest loss of each sample, whichever of the trainings
    that share the cache had it, since these share ranks as well.
    """

    serves_again = True

    def __init__(self, num_samples: int, capacity: int, seed: int = 0, augmented: bool = False) -> None:
        super().__init__(num_samples, capacity, seed, augmented)
        self._ranks = np.ones(num_samples)
        self._losses = np.full(num_samples, np.nan)
        """Newest loss of each sample; NaN: no loss is known."""
        self._important: BoolArray = np.ones(num_samples, np.bool_)
        self._cumulative: dict[int, Float64Array] = {}
        """By place, over the trigger set."""

    def learn(self, samples: Int64Array, losses: Float32Array) -> Int64Array:
        """Rank by these losses from now on, and by those that are known of other samples. Losses that are not finite are left out.

        Args: samples: (n,), that were trained on; of one that is there several times the last counts. losses: (n,).
        Returns: samples whose values are dropped from the cache.
        """
        known = np.isfinite(losses)
        self._losses[samples[known]] = losses[known]
        known = np.isfinite(self._losses)
        if not known.any():
            return NO_SAMPLES
        # What no job trains on takes no place among the most important ones.
        importance = np.where(known, self._losses, self._losses[known].mean())
        return self.rank(np.where(self.values.sharers > 0, importance, -np.inf))

    def rank(self, importance: Float64Array) -> Int64Array:
        """Draw by these numbers from now on, and keep the samples of the highest ones. Args: importance: (num_samples,). Returns: as `learn`."""
        order = np.argsort(importance, kind="stable")
        self._ranks[order] = np.arange(1, self.num_samples + 1)
        self._important = self._ranks > self.num_samples - self.values.capacity
        self._cumulative.clear()
        cached = self.values.samples
        dropped: Int64Array = cached[~self._important[cached]]
        self.values.evict(dropped)
        return dropped

    def leave(self, job: CacheJob) -> None:
        """Let a job end."""
        super().leave(job)
        self._cumulative.pop(job.place, None)

    def choose(self, job: CacheJob, size: int) -> Serving:
        """Decide. See the class."""
        if job.place not in self._cumulative:
            self._cumulative[job.place] = np.cumsum(self._ranks[job.trigger_set])
        cumulative = self._cumulative[job.place]
        at = np.searchsorted(cumulative, job.generator.random(size) * cumulative[-1], side="right")
        samples: Int64Array = job.trigger_set[at]
        hits = self.values.slot_of[samples] >= 0
        missed = np.unique(samples[~hits], return_index=True)[0]  # numpy sorts for that, which is faster here
        return Serving(samples, hits, admitted=missed[self._important[missed]][: self.values.num_free])
