"""Train on a subset. A presampling policy picks candidates here, and a downsampling policy in the trainer picks samples among the candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from modyn.config.base import Problem, Severity
from modyn.config.policy import check_policy, load_policy
from modyn.selector.presampling import PRESAMPLING
from modyn.selector.selection import SelectionConfig, SelectionPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow, uniform


class CoresetConfig(SelectionConfig):
    """Options of CoresetStrategy."""

    warmup_triggers: int = Field(0, ge=0, description="number of first triggers that train on the whole window (up to `limit`)")
    presampling_config: dict[str, Any] = Field(
        default_factory=lambda: {"strategy": "No"}, description="how candidates are picked; `strategy` names the policy"
    )
    downsampling_config: dict[str, Any] | None = Field(
        None, description="how the trainer picks among the candidates; validated by the trainer server"
    )
    downsampling_list: list[dict[str, Any]] | None = Field(
        None,
        description="downsampling strategies that take turns, instead of `downsampling_config`; validated by the trainer server",
    )
    # The type of the value depends on the kind of threshold; the trainer server checks both types.
    downsampling_thresholds: Any = Field(
        None,
        description="for each strategy of `downsampling_list` except the first: the trigger number, or the score of the newest model, from "
        "which it is used; validated by the trainer server",
    )


class CoresetStrategy(SelectionPolicy):
    """Selects the whole window in the first `warmup_triggers` triggers, and afterwards the candidates of the presampling policy.

    A trigger set never has more than `limit` samples. During warm-up, a larger window is sampled uniformly at random.

    >>> from modyn.testing.fake_selector import example_sets
    >>> half = {"strategy": "Random", "ratio": 50}
    >>> example_sets({"name": "CoresetStrategy", "warmup_triggers": 1, "presampling_config": half}, [0] * 3, [0] * 3)
    [[0, 1, 2], [1, 2, 4]]
    """

    Config = CoresetConfig
    config: CoresetConfig

    def __init__(self, config: CoresetConfig) -> None:
        super().__init__(config)
        policy, options = load_policy(PRESAMPLING, config.presampling_config, "strategy", "selection_strategy.presampling_config")
        self.presampling = policy(options)

    @classmethod
    def check(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Check the options and `presampling_config`; the trainer server checks `downsampling_config`."""
        section = options.get("presampling_config", {"strategy": "No"})
        problems = super().check(options, path)
        if isinstance(section, Mapping):
            problems += check_policy(PRESAMPLING, section, "strategy", f"{path}.presampling_config")
            if not problems:
                policy, config = load_policy(PRESAMPLING, section, "strategy", f"{path}.presampling_config")
                notes = policy.notes(config)
                problems += cls.check_history(section["strategy"], options, path) if policy.needs_history else []
                problems += [Problem(f"{path}.presampling_config.{key}", note, Severity.WARNING) for key, note in notes]
        return problems

    @property
    def feedback(self) -> tuple[str, ...]:
        """Scores that the presampling policy needs or that users keep."""
        return tuple(dict.fromkeys((*super().feedback, *self.presampling.feedback)))

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns that the presampling policy reads."""
        return {f"presampling_config.{option}": column for option, column in self.presampling.columns.items()}

    def select(self, window: SelectionWindow, context: SelectionContext) -> Selection:
        """Select the window during warm-up, and the candidates of the presampling policy afterwards. The result has at most `limit` keys."""
        if context.trigger_id < self.config.warmup_triggers:
            return uniform(window, self.config.capped(len(window)), context.generator())
        return self.presampling.select(window, self.config.capped(len(window)), context)

    def state(self) -> dict[str, Any]:
        """Return the state of the presampling policy."""
        return {"version": 1, "presampling": self.presampling.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the presampling policy. Raises CorruptStateError if this state is missing or unknown."""
        super().load_state({name: value for name, value in state.items() if name != "presampling"})
        self.presampling.load_state(state.get("presampling", {}))
