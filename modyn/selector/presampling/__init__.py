"""Presampling policies, which pick the candidates of a trigger set without the model. Each file has one policy. The key `strategy` in the section
`presampling_config` chooses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final

from pydantic import BeforeValidator, Field, field_validator

from modyn.config.selection_parts import RatioConfig, presampled_size
from modyn.registry import Registry
from modyn.selector.window import Selection, SelectionContext, SelectionWindow, StatefulPolicy


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


ColumnName = Annotated[str, BeforeValidator(_number_as_text, json_schema_input_type=str | int), Field(min_length=1)]
"""A column of the dataset: the column's name, or the number of a CSV column, from 0. In JSON Lines, dots in the name lead to fields of inner objects.
"""


class PresamplingConfig(RatioConfig):
    """Keys of `presampling_config` that all presampling policies share, besides `strategy`."""

    balances: ClassVar[bool] = False
    """Whether the policy balances a column."""

    ratio: int = Field(ge=1, description="share of the window to keep, in units of 1 / `ratio_max`")
    force_column_balancing: bool = Field(False, description="must be false: only balanced strategies balance a column")
    force_required_target_size: bool = Field(False, description="meet the target size; without effect, because it is always met")

    @field_validator("force_column_balancing")
    @classmethod
    def _check_balancing(cls, value: bool) -> bool:
        if value and not cls.balances:
            *names, last = (name for name in PRESAMPLING.builtin if PRESAMPLING.get(name).Config.balances)
            raise ValueError(f"this strategy balances no column; choose {', '.join(names)} or {last}, or remove the key")
        return value

    def target_size(self, num_samples: int) -> int:
        """Return the number of samples to keep. See `presampled_size`."""
        return presampled_size(num_samples, self.ratio, self.ratio_max)


class PresamplingPolicy(StatefulPolicy, ABC):
    """A presampling policy. The same seed, window and state give the same keys, as for `SelectionPolicy`."""

    Config: ClassVar[type[PresamplingConfig]]
    needs_history: ClassVar[bool] = False
    """Whether the policy acts differently on a window with samples of earlier triggers."""

    def __init__(self, config: PresamplingConfig) -> None:
        self.config = config

    @property
    def feedback(self) -> tuple[str, ...]:
        """Names of the scores of trained samples that the policy needs, as for `SelectionPolicy`."""
        return ()

    @classmethod
    def notes(cls, config: PresamplingConfig) -> Iterator[tuple[str, str]]:
        """Yield options that are valid but probably not intended, as (key, text), for warnings of `modyn check`."""
        yield from ()

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns of the dataset that the policy reads through `SelectionContext.column`, by the name of the option that names the column."""
        return {}

    @abstractmethod
    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """Return at most `limit` candidates of the window, in stream order."""


PRESAMPLING: Final[Registry[type[PresamplingPolicy]]] = Registry(
    group="modyn.presampling",
    kind="presampling strategy",
    builtin={
        "ClassBalancedReservoir": "modyn.selector.presampling.class_balanced_reservoir:ClassBalancedReservoirPresampling",
        "CLiB": "modyn.selector.presampling.clib:CLiBPresampling",
        "ColumnBalanced": "modyn.selector.presampling.column_balanced:ColumnBalancedPresampling",
        "GDumb": "modyn.selector.presampling.gdumb:GDumbPresampling",
        "GSS": "modyn.selector.presampling.gss:GSSPresampling",
        "LabelBalanced": "modyn.selector.presampling.label_balanced:LabelBalancedPresampling",
        "No": "modyn.selector.presampling.no_presampling:NoPresampling",
        "Random": "modyn.selector.presampling.random_sampling:RandomPresampling",
        "RandomNoReplacement": "modyn.selector.presampling.random_no_replacement:RandomNoReplacementPresampling",
        "Reservoir": "modyn.selector.presampling.reservoir:ReservoirPresampling",
        "Stratified": "modyn.selector.presampling.stratified:StratifiedPresampling",
        "TimeWeighted": "modyn.selector.presampling.time_weighted:TimeWeightedPresampling",
        "TriggerBalanced": "modyn.selector.presampling.trigger_balanced:TriggerBalancedPresampling",
    },
)
