"""Train on a mixture of unused samples, which no earlier trigger set has, and samples of earlier trigger sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from modyn.config.base import Problem
from modyn.selector.selection import SelectionConfig, SelectionPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow
from modyn.selector.window.quotas import quotas
from modyn.selector.window.used_samples import UsedSamples


class FreshnessConfig(SelectionConfig):
    """Options of FreshnessSamplingStrategy."""

    unused_data_ratio: int = Field(
        50, ge=1, le=99, description="percent of each trigger set that no earlier trigger set contained"
    )


class FreshnessSamplingStrategy(SelectionPolicy):
    """Selects the largest trigger set with `unused_data_ratio` percent of samples that no earlier set has. Used and unused samples are drawn
    uniformly.

    `limit` makes the set smaller without changing the shares. If the window has only unused samples, as at the first trigger, or only used samples,
    the set consists of these samples. A file with one bit per sample of the stream stores which samples were selected.

    >>> from modyn.testing.fake_selector import example_sets
    >>> example_sets({"name": "FreshnessSamplingStrategy", "unused_data_ratio": 50}, [0] * 4, [0] * 2)
    [[0, 1, 2, 3], [1, 2, 4, 5]]
    """

    Config = FreshnessConfig
    config: FreshnessConfig

    @classmethod
    def check(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Check the options; warn if no window has used samples."""
        return super().check(options, path) + cls.check_history("FreshnessSamplingStrategy", options, path)

    def select(self, window: SelectionWindow, context: SelectionContext) -> Selection:
        """Select at most `limit` keys with weight 1."""
        used, generator = UsedSamples(context.files, window), context.generator()
        counts, percent = (used.num_unused, used.num_used), self.config.unused_data_ratio
        shares, size = (percent, 100 - percent), self.config.capped(len(window))
        if all(counts):
            # The largest size for which the window has enough used and enough unused samples.
            size = min(size, *(100 * count // share for count, share in zip(counts, shares, strict=True)))
        unused, again = quotas(np.array(counts), size, generator, weights=shares).tolist()
        return used.select(unused, again, generator)
