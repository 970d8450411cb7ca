"""Train on a subset: a presampling policy here picks candidates, a downsampling policy in the trainer picks among those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from modyn.config.base import Problem
from modyn.selector.presampling import build_presampling, validate_presampling
from modyn.selector.selection.base import SelectionConfig, SelectionPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow, uniform


class CoresetConfig(SelectionConfig):
    warmup_triggers: int = Field(0, ge=0, description="the first so many triggers train on the whole window (up to `limit`)")
    presampling_config: dict[str, Any] = Field(
        default_factory=lambda: {"strategy": "No"}, description="how candidates are picked; chosen by `strategy`"
    )
    downsampling_config: dict[str, Any] | None = Field(
        None, description="how the trainer picks among the candidates; validated by the trainer server"
    )
    downsampling_list: None = Field(None, description="several downsampling strategies in turn; not available yet")

    @field_validator("downsampling_list", mode="before")
    @classmethod
    def _one_for_all(cls, value: object) -> object:
        if value is not None:
            raise ValueError("several downsampling strategies in turn are not available yet; use downsampling_config")
        return value


class CoresetStrategy(SelectionPolicy):
    """Selects what the presampling policy picks from the window; the whole window in the first `warmup_triggers` triggers.

    `limit` holds in both: while warming up, a larger window is sampled uniformly at random.
    """

    Config = CoresetConfig

    def __init__(self, config: CoresetConfig) -> None:
        super().__init__(config)
        self.config = config
        self.presampling = build_presampling(config.presampling_config)

    @classmethod
    def check(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        section = options.get("presampling_config", {"strategy": "No"})
        nested = validate_presampling(section, f"{path}.presampling_config") if isinstance(section, Mapping) else []
        return super().check(options, path) + nested

    def select(self, window: SelectionWindow, context: SelectionContext) -> Selection:
        if context.trigger_id < self.config.warmup_triggers:
            return uniform(window, self.config.capped(len(window)), context.generator())
        return self.presampling.select(window, self.config.capped(len(window)), context)

    def state(self) -> dict[str, Any]:
        return {"version": 1, "presampling": self.presampling.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state({name: value for name, value in state.items() if name != "presampling"})
        self.presampling.load_state(state.get("presampling", {}))
