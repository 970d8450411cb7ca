"""Trigger policies, one a file, found by the `id` of the `trigger` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem
from modyn.config.policy import check_policy, load_policy
from modyn.registry import Registry
from modyn.supervisor.triggers.base import Check, CheckContext, Trigger, TriggerContext

__all__ = ["TRIGGERS", "Check", "CheckContext", "Trigger", "TriggerContext", "build_trigger", "check_trigger_section"]

_HERE: Final = "modyn.supervisor.triggers"

TRIGGERS: Final[Registry[type[Trigger]]] = Registry(
    group="modyn.triggers",
    kind="trigger",
    builtin={
        "AutoDrift": f"{_HERE}.auto_drift:AutoDriftTrigger",
        "AvoidableMisclassificationCostTrigger": f"{_HERE}.misclassification_cost:AvoidableMisclassificationCostTrigger",
        "DataAmountTrigger": f"{_HERE}.amount:DataAmountTrigger",
        "DataDriftTrigger": f"{_HERE}.drift:DataDriftTrigger",
        "DataIncorporationLatencyCostTrigger": f"{_HERE}.cost:DataIncorporationLatencyCostTrigger",
        "EnsembleTrigger": f"{_HERE}.ensemble:EnsembleTrigger",
        "PerformanceTrigger": f"{_HERE}.performance:PerformanceTrigger",
        "StreamDetectorTrigger": f"{_HERE}.detector:StreamDetectorTrigger",
        "TimeTrigger": f"{_HERE}.time:TimeTrigger",
    },
)


def check_trigger_section(section: Mapping[str, Any], path: str = "trigger") -> list[Problem]:
    """Every mistake of a `trigger` section that can be found here. Args: path: where it stands in the file."""
    return check_policy(TRIGGERS, section, "id", path, _problems)


def build_trigger(section: Mapping[str, Any], context: TriggerContext | None = None, path: str = "trigger") -> Trigger:
    """The policy that a `trigger` section describes.

    Args: path: where the section stands in the file, for messages.
    Raises: ConfigError: lists every mistake.

    >>> build_trigger({"id": "DataAmountTrigger", "num_samples": 100}).state()
    {'version': 1, 'pending': 0}
    """
    policy, config = load_policy(TRIGGERS, section, "id", path, _problems)
    return policy(config, context)


def _problems(policy: type[Trigger], options: Mapping[str, Any], path: str) -> list[Problem]:
    return policy.problems(options, path)
