"""The samplers `none` and `static`: every batch is the next one of the job's order."""

from __future__ import annotations

from benchmark.cache.samplers.base import Sampler, Serving
from modyn.cache.sharing.cache_job import CacheJob


class Uncached(Sampler):
    """Prepare every sample. Other samplers are compared with this sampler."""

    def choose(self, job: CacheJob, size: int) -> Serving:
        """Decide: nothing is cached."""
        samples = job.ahead(size)
        return Serving(samples, self.values.slot_of[samples] >= 0)


class Static(Sampler):
    """Keep the first samples that fit, forever.

    Source: MinIO, in Mohan, Phanishayee, Raniwala, Chidambaram: Analyzing and Mitigating Data Stalls in DNN Training, 2021, section 4.
    """

    serves_again = True

    def choose(self, job: CacheJob, size: int) -> Serving:
        """Decide: hits occur by chance; samples are kept while there is space."""
        samples = job.ahead(size)
        hits = self.values.slot_of[samples] >= 0
        return Serving(samples, hits, admitted=samples[~hits][: self.values.num_free])
