"""The base of policies that balance strata of the window, such as its classes."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from pydantic import Field

from modyn.errors import ConfigError
from modyn.records import Int64Array
from modyn.selector.presampling import PresamplingConfig, PresamplingPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow
from modyn.selector.window.quotas import quotas
from modyn.selector.window.strata import Column, Strata, count_strata, draw_from_strata, new_seed


class BalancedPresamplingConfig(PresamplingConfig):
    """Options of balanced presampling."""

    balances = True
    force_column_balancing: bool = Field(
        False,
        description=(
            "give each value of the balanced column the same number of samples (at most that of the rarest value), even if the target "
            "size is missed; false: other values get what rare ones lack"
        ),
    )
    force_required_target_size: bool = Field(False, description="meet the target size; overrides `force_column_balancing`")


class BalancedPresampling(PresamplingPolicy):
    """Keeps `ratio` of the window, with the same number of samples from each stratum, as far as a stratum has enough samples. Each stratum is sampled
    uniformly."""

    Config: ClassVar[type[BalancedPresamplingConfig]] = BalancedPresamplingConfig
    config: BalancedPresamplingConfig

    what: ClassVar[str]
    """Plural name of the strata, for messages."""

    @abstractmethod
    def column(self, window: SelectionWindow, context: SelectionContext) -> Column:
        """Return a function that yields the stratum of each sample of the window: int64, in the chunks of the window."""

    def quotas(self, strata: Strata, size: int, generator: np.random.Generator) -> Int64Array:
        """Divide `size` samples among the strata: int64 (n,). Raises ConfigError if all strata must get the same number, and this number is 0."""
        config = self.config
        if not config.force_column_balancing or config.force_required_target_size or not len(strata.counts):
            return quotas(strata.counts, size, generator)
        share = min(size // len(strata.counts), int(strata.counts.min()))
        if not share:
            raise ConfigError(
                f"selection_strategy.presampling_config.force_column_balancing: {size} samples are fewer than the {len(strata.counts)} {self.what} "
                "of the window, which cannot all have the same share; raise ratio or limit, or leave force_column_balancing out"
            )
        return np.full(len(strata.counts), share)

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """Select `target_size` samples of the window, at most `limit`, divided by `quotas`."""
        column, generator = self.column(window, context), context.generator()
        strata = count_strata(column, self.what)
        size = min(self.config.target_size(len(window)), limit)
        return draw_from_strata(window, column, strata, self.quotas(strata, size, generator), new_seed(generator))
