"""Downsampling: which of the samples that the selector has chosen are worth training on, by the present model. One policy a file; here is
where they are found by id, and which of them serves a trigger. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.config.base import Problem, refuse
from modyn.config.downsampling_turns import check_turns, load_turns
from modyn.config.policy import check_policy, load_policy
from modyn.registry import Registry
from modyn.trainer_server.downsampling.policy import DownsamplingPolicy

_HERE = "modyn.trainer_server.downsampling"

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
    """What is wrong with the downsampling of `selection_strategy`; empty: nothing, or there is none."""
    found = check_turns(selection_strategy)
    for path, section in {} if found else load_turns(selection_strategy).sections.items():
        found += check_policy(DOWNSAMPLING, section, "strategy", path)
    return found


def downsampling_policies(selection_strategy: Mapping[str, Any]) -> dict[str, DownsamplingPolicy]:
    """All policies of a section `selection_strategy`, by their paths in the file, in the order of their turns. Raises ConfigError."""
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
    """The policy that serves a trigger; None: all of its samples are trained on, as in the first `warmup_triggers`.

    Of several in turn, the one behind as many as there are thresholds up to the trigger's number; by a score, the one at `turn`.

    Args: turn: `TrainingRequest.downsampling_turn`.
    Raises: ConfigError. InvalidArgumentError: as `DownsamplingTurns.turn`.
    """
    policies = list(downsampling_policies(selection_strategy).values())
    turn = load_turns(selection_strategy).turn(trigger_id, turn)
    if turn is None:
        return None
    policy = policies[turn]
    return None if policy.config.ratio == policy.config.ratio_max else policy
