"""Train on all samples of the window, on the newest samples, or on a uniform sample."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from modyn.selector.selection import SelectionConfig, SelectionPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow, uniform, whole


class NewDataConfig(SelectionConfig):
    """Options of NewDataStrategy."""

    limit_reset: Literal["lastX", "sampleUAR"] = Field(
        "lastX", description="what `limit` keeps: the newest samples, or samples drawn uniformly at random"
    )


class NewDataStrategy(SelectionPolicy):
    """Selects the whole window. If the window is larger than `limit`, selects the newest samples (`lastX`) or a uniform sample (`sampleUAR`).

    The newest samples are at the end of the stream. In a replay, these samples have the highest (timestamp, key). In production, these samples
    arrived last.

    >>> from modyn.testing.fake_selector import example_sets
    >>> example_sets({"name": "NewDataStrategy", "limit": 3}, [0] * 2, [0] * 3)
    [[0, 1], [2, 3, 4]]
    """

    Config = NewDataConfig
    config: NewDataConfig

    def select(self, window: SelectionWindow, context: SelectionContext) -> Selection:
        """Select at most `limit` keys with weight 1. The result is repeatable, because run and trigger seed the generator."""
        size = self.config.capped(len(window))
        if self.config.limit_reset == "lastX":
            return whole(window.last(size))
        return uniform(window, size, context.generator())
