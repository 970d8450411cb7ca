"""Triggering policies, one a file, found by the `id` of the `trigger` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem, check_section, load_section
from modyn.errors import ConfigError
from modyn.registry import Registry
from modyn.supervisor.triggers.base import Trigger, TriggerContext

__all__ = ["NOT_YET", "TRIGGERS", "Trigger", "TriggerContext", "build_trigger", "check_trigger_section"]

TRIGGERS: Final[Registry[type[Trigger]]] = Registry(
    group="modyn.triggers",
    kind="trigger",
    builtin={
        "DataAmountTrigger": "modyn.supervisor.triggers.amount:DataAmountTrigger",
        "TimeTrigger": "modyn.supervisor.triggers.time:TimeTrigger",
    },
)

NOT_YET: Final = (
    "AvoidableMisclassificationCostTrigger",
    "DataDriftTrigger",
    "DataIncorporationLatencyCostTrigger",
    "EnsembleTrigger",
    "PerformanceTrigger",
)
"""Names of the format whose policies are still to come."""


def check_trigger_section(section: Mapping[str, Any], path: str = "trigger") -> list[Problem]:
    """Every mistake of a `trigger` section, with paths below `path`; empty if there is none."""
    id_ = section.get("id")
    if not isinstance(id_, str):
        return [Problem(f"{path}.id", f"is required: the name of a trigger, one of {', '.join(TRIGGERS)}")]
    if id_ in NOT_YET and id_ not in TRIGGERS:
        return [Problem(f"{path}.id", f"'{id_}' is not available yet; available: {', '.join(TRIGGERS)}")]
    try:
        policy = TRIGGERS.get(id_)
    except ConfigError as error:
        return [Problem(f"{path}.id", error.message)]
    return check_section(policy.Config, _options(section), path)


def build_trigger(section: Mapping[str, Any], context: TriggerContext | None = None, path: str = "trigger") -> Trigger:
    """The policy that a `trigger` section describes. Raises ConfigError that lists every mistake.

    >>> build_trigger({"id": "DataAmountTrigger", "num_samples": 100}).state()
    {'version': 1, 'pending': 0}
    """
    if found := check_trigger_section(section, path):
        raise ConfigError("\n".join(str(problem) for problem in found))
    policy = TRIGGERS.get(section["id"])
    return policy(load_section(policy.Config, _options(section), path), context)


def _options(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if name != "id"}
