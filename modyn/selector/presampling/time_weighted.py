"""More of what is new."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import Field

from modyn.config.durations import Duration
from modyn.records import Int64Array
from modyn.selector.presampling import PresamplingConfig, PresamplingPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow
from modyn.selector.window.quotas import quotas
from modyn.selector.window.strata import count_strata, draw_from_strata, new_seed

_STEPS = 32
"""Steps of age within a half-life: the samples of a step have one weight, which differs by 2 % from that of the next."""
_HALVINGS = 64
"""Samples that are older than so many half-lives have one weight."""


class TimeWeightedConfig(PresamplingConfig):
    """Options of TimeWeighted presampling."""

    half_life: Duration = Field(
        ge=1, description="age at which a sample is half as likely to be kept as the newest of the window", examples=["30d"]
    )


class TimeWeightedPresampling(PresamplingPolicy):
    """Keeps `ratio` of the window, a sample with a probability proportional to 2^(-age / `half_life`), in which age is the time between the sample
    and the newest one of the window.

    Ages are counted in steps of a 32nd of the half-life, at most 64 half-lives; within a step all are equally likely. Where a step would give more
    samples than it has, it gives all, and what is missing comes from the others in proportion to their weights.
    """

    Config = TimeWeightedConfig
    config: TimeWeightedConfig

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """`target_size` samples of the window, at most `limit`."""
        newest = max((int(samples.timestamps.max()) for samples in window.samples()), default=0)
        step = max(self.config.half_life // _STEPS, 1)

        def ages() -> Iterator[Int64Array]:
            """Steps between the newest sample and each."""
            oldest = -(-_HALVINGS * self.config.half_life // step)
            for samples in window.samples():
                # The difference of two int64 fits into uint64, where it wraps to what it is.
                age = np.uint64(newest % 2**64) - samples.timestamps.astype(np.uint64)
                yield np.minimum(age // np.uint64(step), np.uint64(oldest)).astype(np.int64)

        strata, generator = count_strata(ages, "ages"), context.generator()
        halvings = (strata.values * step / self.config.half_life).tolist()
        weights = [
            count * round(2.0 ** (_HALVINGS - halved)) for count, halved in zip(strata.counts.tolist(), halvings, strict=True)
        ]
        size = min(self.config.target_size(len(window)), limit)
        shares = quotas(strata.counts, size, generator, weights, unbiased=True)
        return draw_from_strata(window, ages, strata, shares, new_seed(generator))
