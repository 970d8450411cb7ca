"""The samplers `none` and `static`: every batch is the next one of the job's order."""

from __future__ import annotations

from benchmark.cache.samplers.base import Sampler, Serving
from modyn.cache.sharing.cache_job import CacheJob


class Uncached(Sampler):
    """Prepare every sample. What other samplers are compared with."""

    def choose(self, job: CacheJob, size: int) -> Serving:
        """Decide: nothing is cached."""
        samples = job.ahead(size)
        return Serving(samples, self.values.slot_of[samples] >= 0)


class Static(Sampler):
    """Keep the first samples that fit, for ever.

    Source: MinIO, in Mohan, Phanishayee, Raniwala, Chidambaram: Analyzing and Mitigating Data Stalls in DNN Training, 2021, section 4.
    """

    serves_again = True

    def choose(self, job: CacheJob, size: int) -> Serving:
        """Decide: hits by chance, kept as long as there is room."""
        samples = job.ahead(size)
        hits = self.values.slot_of[samples] >= 0
        return Serving(samples, hits, admitted=samples[~hits][: self.values.num_free])
