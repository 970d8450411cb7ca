"""Downsampling: which of the samples that the selector has chosen are worth training on, by the present model. One policy a file; here is
where they are found by id, and which of them serves a trigger. Imports no torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from modyn.config.base import Problem, refuse
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

_SECTION: Final = "selection_strategy"
_CONFIG: Final = "downsampling_config"
_LIST, _THRESHOLDS = "downsampling_list", "downsampling_thresholds"


def check_downsampling(selection_strategy: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the downsampling of `selection_strategy`; empty: nothing, or there is none."""
    found = list(_schedule_problems(selection_strategy))
    for path, section in {} if found else _policies(selection_strategy):
        found += check_policy(DOWNSAMPLING, section, "strategy", path)
    return found


def downsampling_policies(selection_strategy: Mapping[str, Any]) -> dict[str, DownsamplingPolicy]:
    """All policies of a section `selection_strategy`, by their paths in the file, in the order of their turns. Raises ConfigError."""
    refuse(check_downsampling(selection_strategy))
    found = {}
    for path, section in _policies(selection_strategy):
        policy, config = load_policy(DOWNSAMPLING, section, "strategy", path)
        found[path] = policy(config)
        found[path].strategy = section["strategy"]
    return found


def downsampling_of_trigger(selection_strategy: Mapping[str, Any], trigger_id: int) -> DownsamplingPolicy | None:
    """The policy that serves a trigger; None: all of its samples are trained on, as in the first `warmup_triggers`.

    Of several in turn, the one behind as many as there are thresholds up to the trigger's number. Raises ConfigError.
    """
    policies = list(downsampling_policies(selection_strategy).values())
    if not policies or trigger_id < int(selection_strategy.get("warmup_triggers") or 0):
        return None
    policy = policies[bisect_right(_thresholds(selection_strategy), trigger_id)]
    return None if policy.config.ratio == policy.config.ratio_max else policy


def _policies(selection: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The sections of policies with their paths. A list stands in `downsampling_config`, as in published pipelines, or beside it."""
    holder, path = _holder(selection)
    if holder.get(_LIST) is not None:
        yield from ((f"{path}.{_LIST}.{i}", {"strategy": "No", **section}) for i, section in enumerate(holder[_LIST]))
    elif selection.get(_CONFIG) is not None:
        yield f"{_SECTION}.{_CONFIG}", {"strategy": "No", **selection[_CONFIG]}


def _thresholds(selection: Mapping[str, Any]) -> list[int]:
    return list(_holder(selection)[0].get(_THRESHOLDS) or [])


def _holder(selection: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The mapping that may hold a list of policies, and its path."""
    inner = selection.get(_CONFIG)
    if isinstance(inner, Mapping) and (_LIST in inner or _THRESHOLDS in inner):
        return inner, f"{_SECTION}.{_CONFIG}"
    return selection, _SECTION


def _schedule_problems(selection: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with the list and its thresholds, or with the kind of `downsampling_config`."""
    config = selection.get(_CONFIG)
    if config is not None and not isinstance(config, Mapping):
        yield Problem(f"{_SECTION}.{_CONFIG}", f"{config!r} is wrong: this is a mapping with the key `strategy`")
        return
    holder, path = _holder(selection)
    sections, thresholds = holder.get(_LIST), holder.get(_THRESHOLDS)
    if sections is None:
        if thresholds is not None:
            yield Problem(f"{path}.{_THRESHOLDS}", f"needs {_LIST}, the strategies that take turns")
        return
    if holder is selection and config is not None:
        yield Problem(f"{path}.{_LIST}", f"stands in place of {_CONFIG}; remove one of the two")
    for name in holder.keys() - {_LIST, _THRESHOLDS} if holder is config else ():
        yield Problem(f"{path}.{name}", f"there is no such key beside {_LIST}: each strategy of the list has its own options")
    if not isinstance(sections, list) or not sections or not all(isinstance(section, Mapping) for section in sections):
        yield Problem(f"{path}.{_LIST}", f"{sections!r} is wrong: this is a list of mappings with the key `strategy`")
        return
    whole = isinstance(thresholds, list) and all(type(number) is int and number >= 0 for number in thresholds)
    if thresholds is not None and not whole:
        yield Problem(
            f"{path}.{_THRESHOLDS}",
            f"{thresholds!r} is wrong: this is a list of trigger numbers, from 0; turns by accuracy do not exist yet",
        )
        return
    turns: list[int] = thresholds or []
    if len(turns) != len(sections) - 1 or any(one >= other for one, other in pairwise(turns)):
        yield Problem(
            f"{path}.{_THRESHOLDS}",
            f"{turns} is wrong: {len(sections)} strategies need {len(sections) - 1} trigger numbers, each larger than the one before: that at which "
            "the next strategy begins",
        )
