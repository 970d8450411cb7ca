"""Trigger policies, one a file, found by the `id` of the `trigger` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.policy import load_policy
from modyn.registry import Registry
from modyn.supervisor.triggers.base import Check, CheckContext, Trigger, TriggerContext

__all__ = ["TRIGGERS", "Check", "CheckContext", "Trigger", "TriggerContext", "build_trigger"]

TRIGGERS: Final[Registry[type[Trigger]]] = Registry(
    group="modyn.triggers",
    kind="trigger",
    builtin={
        "DataAmountTrigger": "modyn.supervisor.triggers.amount:DataAmountTrigger",
        "TimeTrigger": "modyn.supervisor.triggers.time:TimeTrigger",
    },
    not_yet=(
        "AvoidableMisclassificationCostTrigger",
        "DataDriftTrigger",
        "DataIncorporationLatencyCostTrigger",
        "EnsembleTrigger",
        "PerformanceTrigger",
    ),
)


def build_trigger(section: Mapping[str, Any], context: TriggerContext | None = None, path: str = "trigger") -> Trigger:
    """The policy that a `trigger` section describes.

    Args: path: where the section stands in the file, for messages.
    Raises: ConfigError: lists every mistake.

    >>> build_trigger({"id": "DataAmountTrigger", "num_samples": 100}).state()
    {'version': 1, 'pending': 0}
    """
    policy, config = load_policy(TRIGGERS, section, "id", path)
    return policy(config, context)
