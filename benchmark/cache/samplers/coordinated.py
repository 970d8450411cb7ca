"""The sampler `coordinated`: each job prepares its share of the samples, and each value is prepared for all jobs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmark.cache.samplers.base import Sampler, Serving
from benchmark.cache.samplers.substitution import substitute
from modyn.cache.sample_numbers import among
from modyn.cache.sharing.cache_job import CacheJob
from modyn.cache.sharing.rules import RULES


class Coordinated(Sampler):
    """Serve by `CoordinatedRule`: what production does through `SharedJob`, in numbers of samples.

    Where the cache is full, the oldest values make room for a job's own share. Each serving counts, also that for which the value was prepared.
    """

    @property
    def expected(self) -> npt.NDArray[np.uint8]:
        """The number of jobs that train on the sample."""
        return self.values.sharers

    def choose(self, job: CacheJob, size: int) -> Serving:
        """Decide. See the class."""
        values, rule = self.values, RULES["coordinated"]
        candidates = job.ahead(2 * size)
        fullness = len(values) / max(1, values.capacity)
        num_hits = rule.num_hits(values.sharers[candidates[:size]], fullness, size, job.generator.random())
        batch = substitute(values, job, candidates, size, num_hits, job.hand, self.augmented)
        num_free = values.num_free + len(batch.served_out)
        kept = batch.new[values.sharers[batch.new] > 1][: values.capacity]
        kept = kept[: rule.most_kept(values.sharers[candidates[:size]], num_free, size)]
        missing = len(kept) - num_free
        evicted = batch.served_out
        if missing > 0:
            oldest = values.oldest(missing)
            evicted = np.concatenate([evicted, oldest[~among(oldest, evicted)]])
        kept = kept[: values.num_free + len(evicted)]
        return Serving.mixed(batch.hits, batch.missed, job.generator, hand=batch.hand, evicted=evicted, admitted=kept)
