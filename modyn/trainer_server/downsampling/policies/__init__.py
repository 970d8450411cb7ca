"""Downsampling policies choose samples of the trigger set on which training is worthwhile according to the current model. Each policy has its own
file. This module finds a policy by its id, and the policy for a trigger. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.config.base import Problem, refuse
from modyn.config.downsampling_turns import check_turns, load_turns
from modyn.config.policy import check_policy, load_policy
from modyn.registry import Registry
from modyn.trainer_server.downsampling.policies.policy import DownsamplingPolicy

_HERE = "modyn.trainer_server.downsampling.policies"

DOWNSAMPLING: Registry[type[DownsamplingPolicy]] = Registry(
    group="modyn.downsampling",
    kind="downsampling strategy",
    builtin={
        "Craig": f"{_HERE}.craig:Craig",
        "EL2N": f"{_HERE}.el2n:EL2N",
        "Forgetting": f"{_HERE}.forgetting:Forgetting",
        "GraNd": f"{_HERE}.grand:GraNd",
        "GradMatch": f"{_HERE}.grad_match:GradMatch",
        "GradNorm": f"{_HERE}.grad_norm:GradNorm",
        "KcenterGreedy": f"{_HERE}.kcenter_greedy:KcenterGreedy",
        "Loss": f"{_HERE}.loss:LossDownsampling",
        "No": f"{_HERE}.no:NoDownsampling",
        "RHOLoss": f"{_HERE}.rho_loss:RHOLoss",
        "RS2": f"{_HERE}.rs2:RS2",
        "Submodular": f"{_HERE}.submodular:Submodular",
        "Uncertainty": f"{_HERE}.uncertainty:Uncertainty",
    },
)


def check_downsampling(selection_strategy: Mapping[str, Any]) -> list[Problem]:
    """List the errors in the downsampling of `selection_strategy`; empty if there are no errors or no downsampling."""
    found = check_turns(selection_strategy)
    for path, section in {} if found else load_turns(selection_strategy).sections.items():
        found += check_policy(DOWNSAMPLING, section, "strategy", path)
    return found


def downsampling_policies(selection_strategy: Mapping[str, Any]) -> dict[str, DownsamplingPolicy]:
    """Build all policies of a section `selection_strategy`, by their paths in the file, in the order of the list. Raises ConfigError."""
    refuse(check_downsampling(selection_strategy))
    found = {}
    for path, section in load_turns(selection_strategy).sections.items():
        policy, config = load_policy(DOWNSAMPLING, section, "strategy", path)
        found[path] = policy(config)
        found[path].strategy = section["strategy"]
    return found


def downsampling_of_trigger(
    selection_strategy: Mapping[str, Any], trigger_id: int, turn: int | None = None
) -> DownsamplingPolicy | None:
    """Return the policy for a trigger; None if all samples of the trigger are trained on, for example in the first `warmup_triggers`.

    In a list of policies, the index of the policy is the number of thresholds ≤ `trigger_id`, or `turn` if a score decides.

    Args: turn: `TrainingRequest.downsampling_turn`.
    Raises: ConfigError. InvalidArgumentError: see `DownsamplingTurns.turn`.
    """
    policies = list(downsampling_policies(selection_strategy).values())
    turn = load_turns(selection_strategy).turn(trigger_id, turn)
    if turn is None:
        return None
    policy = policies[turn]
    return None if policy.config.ratio == policy.config.ratio_max else policy
