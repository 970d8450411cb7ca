"""Trigger policies, one a file, found by the `id` of the `trigger` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem
from modyn.config.policy import check_policy, load_policy
from modyn.errors import ConfigError
from modyn.registry import Registry
from modyn.supervisor.triggers.base import Check, CheckContext, Trigger, TriggerContext

__all__ = [
    "TRIGGERS",
    "Check",
    "CheckContext",
    "Trigger",
    "TriggerContext",
    "build_trigger",
    "check_trigger_section",
    "with_defaults",
]

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
        "DynamicScheduleTrigger": f"{_HERE}.dynamic_schedule:DynamicScheduleTrigger",
        "EnsembleTrigger": f"{_HERE}.ensemble:EnsembleTrigger",
        "InitialTrigger": f"{_HERE}.initial:InitialTrigger",
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


def with_defaults(section: Mapping[str, Any]) -> dict[str, Any]:
    """A `trigger` section in which the defaults are written out, in its subtriggers too: what it asks of other services is checked as it will
    run. Sections with mistakes, and those of policies of other packages, stay as they are.

    >>> with_defaults({"id": "AutoDrift"})["windowing_strategy"]["amount_ref"]
    500
    """
    id_, children = section.get("id"), section.get("subtriggers")
    if isinstance(children, Mapping):
        filled = {name: with_defaults(child) if isinstance(child, Mapping) else child for name, child in children.items()}
        return {**section, "subtriggers": filled}
    if not isinstance(id_, str) or id_ not in TRIGGERS.builtin:
        return dict(section)
    try:
        _, config = load_policy(TRIGGERS, section, "id", "", _problems)
    except ConfigError:
        return dict(section)
    return {"id": id_, **config.model_dump(mode="json")}


def _problems(policy: type[Trigger], options: Mapping[str, Any], path: str) -> list[Problem]:
    return policy.problems(options, path)
