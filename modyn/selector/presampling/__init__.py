"""Presampling policies, one a file, found by the `strategy` of the `presampling_config` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem, check_section, load_section
from modyn.errors import ConfigError
from modyn.registry import Registry
from modyn.selector.presampling.base import PresamplingConfig, PresamplingPolicy

__all__ = ["NOT_YET", "PRESAMPLING", "PresamplingConfig", "PresamplingPolicy", "build_presampling", "check_presampling"]

PRESAMPLING: Final[Registry[type[PresamplingPolicy]]] = Registry(
    group="modyn.presampling",
    kind="presampling strategy",
    builtin={
        "No": "modyn.selector.presampling.no_presampling:NoPresampling",
        "Random": "modyn.selector.presampling.random_sampling:RandomPresampling",
    },
)

NOT_YET: Final = ("CLiB", "GDumb", "GSS", "LabelBalanced", "RandomNoReplacement", "TriggerBalanced")
"""Names of the format whose policies are still to come."""


def check_presampling(section: Mapping[str, Any], path: str) -> list[Problem]:
    """Every mistake of a `presampling_config` section, with paths below `path`; empty if there is none."""
    name = section.get("strategy")
    if not isinstance(name, str):
        return [Problem(f"{path}.strategy", f"is required: the name of a presampling strategy, one of {', '.join(PRESAMPLING)}")]
    if name in NOT_YET and name not in PRESAMPLING:
        return [Problem(f"{path}.strategy", f"'{name}' is not available yet; available: {', '.join(PRESAMPLING)}")]
    try:
        policy = PRESAMPLING.get(name)
    except ConfigError as error:
        return [Problem(f"{path}.strategy", error.message)]
    return check_section(policy.Config, _options(section), path)


def build_presampling(section: Mapping[str, Any], path: str = "selection_strategy.presampling_config") -> PresamplingPolicy:
    """The policy that a `presampling_config` section describes. Raises ConfigError that lists every mistake."""
    if found := check_presampling(section, path):
        raise ConfigError("\n".join(str(problem) for problem in found))
    policy = PRESAMPLING.get(section["strategy"])
    return policy(load_section(policy.Config, _options(section), path))


def _options(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if name != "strategy"}
