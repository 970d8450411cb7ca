"""Downsampling policies: which samples of a batch are worth training on. One policy a file; here is where they are found by id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem, check_section, load_section
from modyn.errors import ConfigError
from modyn.registry import Registry
from modyn.trainer_server.downsampling.policy import Downsampling

DOWNSAMPLING: Registry[type[Downsampling]] = Registry(
    group="modyn.downsampling",
    kind="downsampling strategy",
    builtin={"No": "modyn.trainer_server.downsampling.no:NoDownsampling"},
)

NOT_YET: Final = ("Craig", "GradMatch", "GradNorm", "KcenterGreedy", "Loss", "RHOLoss", "RS2", "Submodular", "Uncertainty")
"""Strategies of the format that are still to come."""

_PATH: Final = "selection_strategy.downsampling_config"


def check_downsampling(selection_strategy: Mapping[str, Any]) -> list[Problem]:
    """What is wrong in `selection_strategy.downsampling_config`; empty: nothing, or it is not there."""
    if "downsampling_list" in selection_strategy:
        return [Problem("selection_strategy.downsampling_list", "several downsampling strategies in turn are not available yet")]
    options = selection_strategy.get("downsampling_config")
    if options is None:
        return []
    if not isinstance(options, Mapping):
        return [Problem(_PATH, f"{options!r} is wrong: this is a mapping with the key `strategy`")]
    id_ = options.get("strategy", "No")
    if id_ in NOT_YET and id_ not in DOWNSAMPLING:
        allowed = ", ".join(DOWNSAMPLING.ids())
        return [Problem(f"{_PATH}.strategy", f"'{id_}' is not available yet. Allowed: {allowed}")]
    try:
        return check_section(DOWNSAMPLING.get(str(id_)).Config, options, _PATH)
    except ConfigError as error:
        return [Problem(f"{_PATH}.strategy", error.message)]


def build_downsampling(selection_strategy: Mapping[str, Any]) -> Downsampling:
    """The policy that the selection strategy names; `No` if it names none. Raises ConfigError."""
    wrong = check_downsampling(selection_strategy)
    if wrong:
        raise ConfigError("\n".join(map(str, wrong)))
    options = selection_strategy.get("downsampling_config") or {"strategy": "No"}
    policy = DOWNSAMPLING.get(str(options.get("strategy", "No")))
    return policy(load_section(policy.Config, options, _PATH))
