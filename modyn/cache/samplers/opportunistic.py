"""The sampler `opportunistic`: a batch takes cached samples wherever there are any, and random ones are prepared for later."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from modyn.cache.sample_numbers import NO_SAMPLES
from modyn.cache.samplers.base import CacheJob, Sampler, Serving
from modyn.cache.samplers.substitution import substitute
from modyn.records import Int64Array


class Opportunistic(Sampler):
    """Replace all samples of a batch that are not cached by cached ones, drop a value after J hits, and prepare random samples in its place.

    J is the number of jobs that train on the sample. Missed samples are not kept: what is cached was prepared in the background, at first as many
    samples as there is room for. Trainings leave that to a thread of the process that makes the batch; but where random numbers are drawn in the
    process of the training itself, it is done behind each batch (`modyn/dataset/sampler_loader.py`). A value is not served twice to one job, which
    the method's own rule, J hits, does not ensure where jobs are out of step.

    Source: Seneca (FAST 2026), section 5.2, opportunistic data sampling.
    """

    @property
    def expected(self) -> npt.NDArray[np.uint8]:
        """As often as jobs train on the sample."""
        return self.values.sharers

    def choose(self, job: CacheJob, size: int) -> Serving:
        """Decide. See the class."""
        values = self.values
        hand = int(job.generator.integers(max(1, values.capacity)))
        batch = substitute(values, job, job.ahead(2 * size), size, size, hand, self.augmented)
        refilled = self._random_samples(values.num_free + len(batch.served_out), job.generator)
        return Serving.mixed(batch.hits, batch.missed, job.generator, evicted=batch.served_out, refilled=refilled)

    def _random_samples(self, count: int, generator: np.random.Generator) -> Int64Array:
        """Samples that are not cached and that a job trains on, `count` or all."""
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
