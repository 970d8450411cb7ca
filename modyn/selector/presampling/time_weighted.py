"""Prefers newer samples."""

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
"""Number of age steps in a half-life. The samples of a step have the same weight, which differs by 2 % from the weight of the next step."""
_HALVINGS = 64
"""Age in half-lives beyond which all samples have the same weight: 2^-64 of the weight of a new sample."""


class TimeWeightedConfig(PresamplingConfig):
    """Options of TimeWeighted presampling."""

    half_life: Duration = Field(
        ge=1,
        description="age at which a sample is half as likely to be kept as the newest sample of the window",
        examples=["30d"],
    )


class TimeWeightedPresampling(PresamplingPolicy):
    """Keeps `ratio` of the window, each sample with a probability proportional to 2^(-age / `half_life`). The age is the time between the sample and
    the newest sample of the window.

    Ages are counted in steps of 1/32 of the half-life, at most 64 half-lives. Samples of a step are equally likely. If a step has fewer samples than
    its share, the policy keeps all samples of the step, and the other steps supply the rest in proportion to their weights.

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> presample({"strategy": "TimeWeighted", "ratio": 30, "half_life": 2}, [0] * 10)
    [[7, 8, 9]]
    """

    Config = TimeWeightedConfig
    config: TimeWeightedConfig

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """Select `target_size` samples of the window, at most `limit`."""
        newest = max((int(samples.timestamps.max()) for samples in window.samples()), default=0)
        step = max(self.config.half_life // _STEPS, 1)

        def ages() -> Iterator[Int64Array]:
            """Yield the age of each sample, in steps."""
            oldest = -(-_HALVINGS * self.config.half_life // step)
            for samples in window.samples():
                # The difference of two int64 fits into uint64, where it wraps to the right value.
                age = np.uint64(newest % 2**64) - samples.timestamps.astype(np.uint64)
                yield np.minimum(age // np.uint64(step), np.uint64(oldest)).astype(np.int64)

        strata, generator = count_strata(ages, "ages"), context.generator()
        halvings = (strata.values * step / self.config.half_life).tolist()
        # `quotas` needs integers: all weights are multiplied by 2^64, and the smallest weight becomes 1.
        weights = [
            count * round(2.0 ** (_HALVINGS - halved)) for count, halved in zip(strata.counts.tolist(), halvings, strict=True)
        ]
        size = min(self.config.target_size(len(window)), limit)
        shares = quotas(strata.counts, size, generator, weights, unbiased=True)
        return draw_from_strata(window, ages, strata, shares, new_seed(generator))
