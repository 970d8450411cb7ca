"""The sampler `opportunistic`: a batch uses cached samples if there are any, and random samples are prepared for later."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmark.cache.samplers.base import Sampler, Serving
from benchmark.cache.samplers.substitution import substitute
from modyn.cache.sample_numbers import NO_SAMPLES
from modyn.cache.sharing.cache_job import CacheJob
from modyn.cache.sharing.rules import RULES
from modyn.records import Int64Array


class Opportunistic(Sampler):
    """Serve by `OpportunisticRule`: what production does through `SharedJob`, in numbers of samples. Drops a value after J hits.

    J is the number of jobs that train on the sample. Missed samples are not kept: what is cached was prepared in the background.
    """

    @property
    def expected(self) -> npt.NDArray[np.uint8]:
        """The number of jobs that train on the sample."""
        return self.values.sharers

    def choose(self, job: CacheJob, size: int) -> Serving:
        """Decide. See the class."""
        values, rule = self.values, RULES["opportunistic"]
        hand = int(job.generator.integers(max(1, values.capacity)))
        candidates = job.ahead(2 * size)
        num_hits = rule.num_hits(values.sharers[candidates[:size]], len(values) / max(1, values.capacity), size, 0.5)
        batch = substitute(values, job, candidates, size, num_hits, hand, self.augmented)
        refilled = self._random_samples(rule.num_refilled(values.num_free + len(batch.served_out)), job.generator)
        return Serving.mixed(batch.hits, batch.missed, job.generator, evicted=batch.served_out, refilled=refilled)

    def _random_samples(self, count: int, generator: np.random.Generator) -> Int64Array:
        """Return random samples that are not cached and that a job trains on: `count` samples, or all if there are fewer."""
        values = self.values
        if not count:
            return NO_SAMPLES
        drawn = generator.integers(self.num_samples, size=4 * count)
        drawn = drawn[(values.slot_of[drawn] < 0) & (values.sharers[drawn] > 0)]
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        if len(drawn) < count:
            drawn = np.flatnonzero((values.slot_of < 0) & (values.sharers > 0))
            drawn = generator.choice(drawn, min(count, len(drawn)), replace=False)
        return drawn[:count]
