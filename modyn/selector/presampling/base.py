"""What a presampling policy is: it picks the candidates of a trigger set without knowing the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import Field, ValidationInfo, field_validator

from modyn.config.base import Section
from modyn.selector.window import Selection, SelectionContext, SelectionWindow, StatefulPolicy


class PresamplingConfig(Section):
    """What all presampling policies share: keys of `presampling_config` beside `strategy`."""

    ratio_max: int = Field(100, ge=1, description="what `ratio` is a part of")
    ratio: int = Field(ge=1, description="share of the window to keep, in units of 1 / `ratio_max`")
    force_column_balancing: bool = Field(
        False,
        description="give every value of the balanced column the same share, even if the target size is missed; not available yet",
    )
    force_required_target_size: bool = Field(
        False, description="meet the target size exactly, even if the balance suffers; not available yet"
    )

    @field_validator("ratio")
    @classmethod
    def _part_of_whole(cls, value: int, info: ValidationInfo) -> int:
        if value > info.data.get("ratio_max", value):
            raise ValueError(f"{value} is more than the whole; it must be at most ratio_max, {info.data['ratio_max']}")
        return value

    @field_validator("force_column_balancing", "force_required_target_size")
    @classmethod
    def _not_yet(cls, value: bool, info: ValidationInfo) -> bool:
        if value:
            raise ValueError(f"{info.field_name} is not available yet: no strategy here balances; remove this key")
        return value

    def target_size(self, num_samples: int) -> int:
        """num_samples · ratio / ratio_max rounded down, but at least one sample of a window that holds any.

        >>> [PresamplingConfig(ratio=30).target_size(n) for n in (0, 1, 3, 4, 10)]
        [0, 1, 1, 1, 3]
        """
        return max(num_samples * self.ratio // self.ratio_max, min(num_samples, 1))


class PresamplingPolicy(StatefulPolicy, ABC):
    """A presampling policy. The rules of `SelectionPolicy` hold: same seed, window and state give the same keys."""

    Config: ClassVar[type[PresamplingConfig]]

    def __init__(self, config: PresamplingConfig) -> None:
        self.config = config

    @abstractmethod
    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """At most `limit` candidates of the window, in stream order."""
