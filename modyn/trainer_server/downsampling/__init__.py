"""Downsampling policies: which samples of a batch are worth training on. One policy a file; here is where they are found by id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem, refuse
from modyn.config.policy import check_policy, load_policy
from modyn.registry import Registry
from modyn.trainer_server.downsampling.policy import Downsampling

DOWNSAMPLING: Registry[type[Downsampling]] = Registry(
    group="modyn.downsampling",
    kind="downsampling strategy",
    builtin={"No": "modyn.trainer_server.downsampling.no:NoDownsampling"},
    not_yet=("Craig", "GradMatch", "GradNorm", "KcenterGreedy", "Loss", "RHOLoss", "RS2", "Submodular", "Uncertainty"),
)

_PATH: Final = "selection_strategy.downsampling_config"


def check_downsampling(selection_strategy: Mapping[str, Any]) -> list[Problem]:
    """What is wrong in `selection_strategy.downsampling_config`; empty: nothing, or it is not there."""
    options = selection_strategy.get("downsampling_config")
    if options is None:
        return []
    if not isinstance(options, Mapping):
        return [Problem(_PATH, f"{options!r} is wrong: this is a mapping with the key `strategy`")]
    return check_policy(DOWNSAMPLING, {"strategy": "No", **options}, "strategy", _PATH)


def build_downsampling(selection_strategy: Mapping[str, Any]) -> Downsampling:
    """The policy that the selection strategy names; `No` if it names none. Raises ConfigError."""
    refuse(check_downsampling(selection_strategy))
    options = selection_strategy.get("downsampling_config") or {}
    policy, config = load_policy(DOWNSAMPLING, {"strategy": "No", **options}, "strategy", _PATH)
    return policy(config)
