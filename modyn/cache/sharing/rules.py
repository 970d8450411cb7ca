"""Rules of samplers at a shared cache: the number of cached samples in a batch, and the number of prepared values that are kept."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt


class SamplingRule(ABC):
    """Rule of a sampler: the numbers for one batch of one job. A value is dropped after it was served to all jobs that train on its sample."""

    @abstractmethod
    def num_hits(self, sharers: npt.NDArray[np.uint8], fullness: float, size: int, rounding: float) -> int:
        """Return the number of cached samples that the job requests for a batch.

        Args: sharers: (n,), the number of jobs that train on each of the first samples of the order. fullness: filled part of the cache, 0 … 1.
        rounding: random number in 0 … 1, added before rounding down, so that the mean over batches is exact.
        """

    @abstractmethod
    def most_kept(self, sharers: npt.NDArray[np.uint8], num_free: int, size: int) -> int:
        """Return how many values of a batch's uncached samples may be kept. Args: num_free: number of values that still fit."""

    @abstractmethod
    def num_refilled(self, num_free: int) -> int:
        """Return the number of other samples that are prepared in the background, to fill the cache."""


class CoordinatedRule(SamplingRule):
    """Serves cached samples up to the share that other jobs prepare, keeps samples that were not cached, and prepares nothing in the background. If J
    jobs train on the same samples, each job prepares 1/J of the samples, and (J − 1)/J of its samples are hits, throughout the epoch. If jobs differ
    in progress or speed, the cache fills, and the share of hits rises to the filled part of the cache.

    Source: coordinated preparation (Mohan, Phanishayee, Raniwala, Chidambaram: Analyzing and Mitigating Data Stalls in DNN Training, 2021), which
    prepares each sample once for all jobs of an epoch and serves all jobs in one order. Here each job has its own order.

    >>> sharers = np.full(100, 4, np.uint8)
    >>> rule = CoordinatedRule()
    >>> rule.num_hits(sharers, fullness=0.2, size=100, rounding=0.5)
    75
    >>> rule.most_kept(sharers, num_free=0, size=100), rule.most_kept(sharers, num_free=60, size=100)
    (25, 60)
    """

    def num_hits(self, sharers: npt.NDArray[np.uint8], fullness: float, size: int, rounding: float) -> int:
        """See the class."""
        # Each of J jobs makes 1/J of the values, so 1 - 1/J come from the others.
        from_others = float(np.mean(1 - 1 / sharers))
        return min(size, int(max(from_others, fullness) * size + rounding))

    def most_kept(self, sharers: npt.NDArray[np.uint8], num_free: int, size: int) -> int:
        """Return the number of values that fit, but at least the job's own share. If all jobs kept all new values, values would be dropped before
        other jobs used them."""
        return max(num_free, math.ceil(float(np.mean(1 / sharers)) * size))

    def num_refilled(self, num_free: int) -> int:
        """See the class."""
        return 0


class OpportunisticRule(SamplingRule):
    """Fills a batch with cached samples, keeps no values of its uncached samples, and prepares random samples in the background for the free room. No
    value is served to a job twice. The paper drops a value after J hits, which does not ensure this if jobs differ in progress.

    Source: Seneca (FAST 2026), section 5.2, opportunistic data sampling.

    >>> rule, sharers = OpportunisticRule(), np.full(100, 4, np.uint8)
    >>> rule.num_hits(sharers, fullness=0.2, size=100, rounding=0.5), rule.most_kept(sharers, num_free=60, size=100), rule.num_refilled(60)
    (100, 0, 60)
    """

    MOST_REFILLED: Final = 1024
    """Largest number of samples in the background of one batch. Later batches fill the rest of a large cache."""

    def num_hits(self, sharers: npt.NDArray[np.uint8], fullness: float, size: int, rounding: float) -> int:
        """See the class."""
        return size

    def most_kept(self, sharers: npt.NDArray[np.uint8], num_free: int, size: int) -> int:
        """See the class."""
        return 0

    def num_refilled(self, num_free: int) -> int:
        """See the class."""
        return min(num_free, self.MOST_REFILLED)


RULES: Final[Mapping[str, SamplingRule]] = {"coordinated": CoordinatedRule(), "opportunistic": OpportunisticRule()}
"""Rules by name of the sampler."""
