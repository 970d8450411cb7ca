"""Train on all samples of the window, on the newest, or on a uniform sample."""

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
    """Selects the whole window; beyond `limit` samples, the newest ones (`lastX`) or a uniform sample (`sampleUAR`).

    The newest are those at the end of the stream: highest (timestamp, key) in a replay, last arrived in production.
    """

    Config = NewDataConfig
    config: NewDataConfig

    def select(self, window: SelectionWindow, context: SelectionContext) -> Selection:
        """At most `limit` keys with weight 1; repeatable, as the generator is seeded by run and trigger."""
        size = self.config.capped(len(window))
        if self.config.limit_reset == "lastX":
            return whole(window.last(size))
        return uniform(window, size, context.generator())
