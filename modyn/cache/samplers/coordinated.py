"""The sampler `coordinated`: jobs prepare samples for each other, each its share, and no value is prepared for less than all of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from modyn.cache.samplers.base import CacheJob, Sampler, Serving
from modyn.cache.samplers.substitution import substitute
from modyn.cache.samplers.values import among


class Coordinated(Sampler):
    """Serve cached samples up to the share that other jobs prepare, keep what is missed, and drop a value that all jobs were served.

    Of a sample that J jobs train on, each job's share of the preparations is 1/J, and (J − 1)/J of its servings are hits, all over the epoch.
    Where the cache fills, since jobs are at different places of their epochs or of different speed, the share of hits rises to how full it is, and
    the oldest values make room. Nothing is prepared in the background.

    Counts every serving, that for which the value was prepared included. The idea to prepare once for all jobs of an epoch is that of coordinated
    preparation (Mohan, Phanishayee, Raniwala, Chidambaram: Analyzing and Mitigating Data Stalls in DNN Training, 2021), which serves all jobs in
    one order; here each has its own.
    """

    @property
    def expected(self) -> npt.NDArray[np.uint8]:
        """As often as jobs train on the sample."""
        return self.values.sharers

    def choose(self, job: CacheJob, size: int) -> Serving:
        """Decide. See the class."""
        values = self.values
        candidates = job.ahead(2 * size)
        from_others = float(np.mean(1 - 1 / values.sharers[candidates[:size]]))
        share = max(from_others, len(values) / max(1, values.capacity))
        num_hits = min(size, int(share * size + job.generator.random()))
        batch = substitute(values, job, candidates, size, num_hits, job.hand, self.augmented)
        kept = batch.new[values.sharers[batch.new] > 1][: values.capacity]
        missing = len(kept) - values.num_free - len(batch.served_out)
        evicted = batch.served_out
        if missing > 0:
            oldest = values.oldest(missing)
            evicted = np.concatenate([evicted, oldest[~among(oldest, evicted)]])
        kept = kept[: values.num_free + len(evicted)]
        return Serving.mixed(batch.hits, batch.missed, job.generator, hand=batch.hand, evicted=evicted, admitted=kept)
