"""Presampling policies, one a file, found by the `strategy` of the `presampling_config` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem
from modyn.config.policy import check_policy, load_policy
from modyn.registry import Registry
from modyn.selector.presampling.base import PresamplingConfig, PresamplingPolicy

__all__ = ["PRESAMPLING", "PresamplingConfig", "PresamplingPolicy", "build_presampling", "validate_presampling"]

PRESAMPLING: Final[Registry[type[PresamplingPolicy]]] = Registry(
    group="modyn.presampling",
    kind="presampling strategy",
    builtin={
        "No": "modyn.selector.presampling.no_presampling:NoPresampling",
        "Random": "modyn.selector.presampling.random_sampling:RandomPresampling",
    },
    not_yet=("CLiB", "GDumb", "GSS", "LabelBalanced", "RandomNoReplacement", "TriggerBalanced"),
)


def validate_presampling(section: Mapping[str, Any], path: str) -> list[Problem]:
    """Return every mistake of a `presampling_config` section, with paths below `path`."""
    return check_policy(PRESAMPLING, section, "strategy", path)


def build_presampling(section: Mapping[str, Any], path: str = "selection_strategy.presampling_config") -> PresamplingPolicy:
    """Build the policy of a `presampling_config` section. Raises ConfigError that lists every mistake."""
    policy, config = load_policy(PRESAMPLING, section, "strategy", path)
    return policy(config)
