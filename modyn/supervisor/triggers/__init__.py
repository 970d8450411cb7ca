"""Trigger policies. Each policy has its own file and is found by the `id` of the `trigger` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from modyn.config.base import Problem, Section
from modyn.config.policy import check_policy, load_policy
from modyn.config.trigger_parts import DECLARED, WINDOWS
from modyn.errors import ConfigError
from modyn.registry import Registry
from modyn.supervisor.criteria import CRITERIA, PERFORMANCE_CRITERIA
from modyn.supervisor.detectors import DETECTORS
from modyn.supervisor.triggers.base import Check, CheckContext, Trigger, TriggerContext
from modyn.supervisor.triggers.measures.window_distances import ComparedWindows

__all__ = [
    "TRIGGERS",
    "Check",
    "CheckContext",
    "Trigger",
    "TriggerContext",
    "build_trigger",
    "check_trigger_section",
    "samples_per_trigger",
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
    """Return every mistake of a `trigger` section that the supervisor can find. Args: path: path of the section in the file."""
    return check_policy(TRIGGERS, section, "id", path, _problems)


def build_trigger(section: Mapping[str, Any], context: TriggerContext | None = None, path: str = "trigger") -> Trigger:
    """Build the policy that a `trigger` section describes.

    Args: path: path of the section in the file, for messages.
    Raises: ConfigError: lists every mistake.

    >>> build_trigger({"id": "DataAmountTrigger", "num_samples": 100}).state()
    {'version': 1, 'pending': 0}
    """
    policy, config = load_policy(TRIGGERS, section, "id", path, _problems)
    return policy(config, context)


def samples_per_trigger(section: Mapping[str, Any]) -> int | None:
    """Return the result of `Trigger.samples_per_trigger` for a `trigger` section; None if the section has mistakes."""
    if check_trigger_section(section):
        return None
    policy, config = load_policy(TRIGGERS, section, "id", "trigger", _problems)
    return policy.samples_per_trigger(config)


def with_defaults(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `trigger` section with all defaults, also in its inner policies. Other services check this section.

    Each policy, criterion and detector gets its defaults, unless it has mistakes or is unknown. Each inner section that compares windows has the key
    `windowing_strategy`. Under `declared`, criteria and detectors have the declarations of their classes.

    >>> with_defaults({"id": "AutoDrift"})["windowing_strategy"]["amount_ref"]
    500
    >>> with_defaults({"id": "AutoDrift"})["metrics"]["mmd"]["decision_criterion"]["declared"]
    {'judges': 'value', 'constant': ''}
    """
    inner = {name: _filled(part) for name, part in section.items()}
    if not _is_known(TRIGGERS, section):
        return inner
    id_ = section["id"]
    try:
        _, config = load_policy(TRIGGERS, section, "id", "", _problems)
    except ConfigError:
        return _with_windows(TRIGGERS.get(id_).Config, inner)
    return {"id": id_, **{name: _filled(part) for name, part in config.model_dump(mode="json").items()}}


def _filled(part: Any) -> Any:
    """Return a value of a `trigger` section with defaults. See `with_defaults`."""
    if not isinstance(part, Mapping):
        return part
    if _is_known(TRIGGERS, part):
        return with_defaults(part)
    filled = {name: _filled(below) for name, below in part.items()}
    for registry in (CRITERIA, PERFORMANCE_CRITERIA):
        if _is_known(registry, part):
            criterion = registry.get(part["id"])
            options = criterion.Config.model_fields
            defaults = {name: option.get_default() for name, option in options.items() if not option.is_required()}
            return {**defaults, **filled, DECLARED: {"judges": criterion.judges, "constant": criterion.constant}}
    if _is_known(DETECTORS, part):
        filled[DECLARED] = {"takes": DETECTORS.get(part["id"]).takes}
    return filled


def _is_known(registry: Registry[Any], part: Mapping[str, Any]) -> bool:
    id_ = part.get("id")
    return isinstance(id_, str) and id_ in registry and not registry.problem(id_)


def _with_windows(config: type[Section], section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section in which each inner section that compares windows has the key `windowing_strategy`. The section may have mistakes."""
    marked = {WINDOWS: {}, **section} if issubclass(config, ComparedWindows) else dict(section)
    for name, field in config.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            part = marked.get(name)
            if isinstance(kind, type) and issubclass(kind, Section) and isinstance(part, Mapping):
                marked[name] = _with_windows(kind, part)
    return marked


def _problems(policy: type[Trigger], options: Mapping[str, Any], path: str) -> list[Problem]:
    return policy.problems(options, path)
