"""Train on a mixture of samples that were never trained on and samples that were."""

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
        50, ge=1, le=99, description="percent of each trigger set that no earlier trigger set had; the rest was in one"
    )


class FreshnessSamplingStrategy(SelectionPolicy):
    """Selects the largest trigger set in which `unused_data_ratio` percent of the samples are in none of the earlier ones; both kinds uniformly.

    `limit` makes it smaller and changes no share. Where the window has samples of one kind only, as for the first trigger, they are selected
    alone. Which were selected is kept in a file of one bit a sample of the stream.
    """

    Config = FreshnessConfig
    config: FreshnessConfig

    @classmethod
    def check(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Also a warning where no window would have used samples."""
        return super().check(options, path) + cls.check_history("FreshnessSamplingStrategy", options, path)

    def select(self, window: SelectionWindow, context: SelectionContext) -> Selection:
        """At most `limit` keys with weight 1."""
        used, generator = UsedSamples(context.files, window), context.generator()
        counts, percent = (used.num_unused, used.num_used), self.config.unused_data_ratio
        shares, size = (percent, 100 - percent), self.config.capped(len(window))
        if all(counts):
            size = min(size, *(100 * count // share for count, share in zip(counts, shares, strict=True)))
        unused, again = quotas(np.array(counts), size, generator, weights=shares).tolist()
        return used.select(unused, again, generator)
