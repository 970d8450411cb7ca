"""The sampler `coordinated`: jobs prepare samples for each other, each its share, and no value is prepared for less than all of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from modyn.cache.sample_numbers import among
from modyn.cache.samplers.base import CacheJob, Sampler, Serving
from modyn.cache.samplers.substitution import substitute


def hits_of_a_batch(sharers: npt.NDArray[np.uint8], fullness: float, size: int, rounding: float) -> int:
    """How many samples of a batch are to be cached ones: what other jobs prepare of them, or as large a part as the cache is full.

    Args: sharers: of the first samples of the order, how many jobs train on each. fullness: 0 … 1. rounding: 0 … 1, drawn: the mean is not rounded.

    >>> hits_of_a_batch(np.full(100, 4, np.uint8), 0.2, 100, 0.5)
    75
    """
    from_others = float(np.mean(1 - 1 / sharers))
    return min(size, int(max(from_others, fullness) * size + rounding))


def most_kept(sharers: npt.NDArray[np.uint8], num_free: int, size: int) -> int:
    """How many missed samples of a batch are kept at most: as many as there is room for, or else the job's own share of the preparations. If all
    jobs kept all that they miss, values would be dropped before others have been served them, and be missed again.

    >>> most_kept(np.full(100, 4, np.uint8), 0, 100), most_kept(np.full(100, 4, np.uint8), 60, 100)
    (25, 60)
    """
    return max(num_free, math.ceil(float(np.mean(1 / sharers)) * size))


class Coordinated(Sampler):
    """Serve cached samples up to the share that other jobs prepare, keep what is missed, and drop a value that all jobs were served.

    Of a sample that J jobs train on, each job's share of the preparations is 1/J, and (J − 1)/J of its servings are hits, all over the epoch.
    Where the cache fills, since jobs are at different places of their epochs or of different speed, the share of hits rises to how full it is, and
    the oldest values make room for a job's own share. Nothing is prepared in the background.

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
        fullness = len(values) / max(1, values.capacity)
        num_hits = hits_of_a_batch(values.sharers[candidates[:size]], fullness, size, job.generator.random())
        batch = substitute(values, job, candidates, size, num_hits, job.hand, self.augmented)
        num_free = values.num_free + len(batch.served_out)
        kept = batch.new[values.sharers[batch.new] > 1][: values.capacity]
        kept = kept[: most_kept(values.sharers[candidates[:size]], num_free, size)]
        missing = len(kept) - num_free
        evicted = batch.served_out
        if missing > 0:
            oldest = values.oldest(missing)
            evicted = np.concatenate([evicted, oldest[~among(oldest, evicted)]])
        kept = kept[: values.num_free + len(evicted)]
        return Serving.mixed(batch.hits, batch.missed, job.generator, hand=batch.hand, evicted=evicted, admitted=kept)
