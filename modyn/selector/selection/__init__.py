"""Selection strategies, one a file, found by the `name` of the `selection_strategy` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem, load_section
from modyn.errors import ConfigError
from modyn.registry import Registry
from modyn.selector.selection.base import SelectionConfig, SelectionPolicy

__all__ = ["NOT_YET", "SELECTION", "SelectionConfig", "SelectionPolicy", "build_strategy", "check_strategy"]

SELECTION: Final[Registry[type[SelectionPolicy]]] = Registry(
    group="modyn.selection",
    kind="selection strategy",
    builtin={
        "CoresetStrategy": "modyn.selector.selection.coreset:CoresetStrategy",
        "NewDataStrategy": "modyn.selector.selection.new_data:NewDataStrategy",
    },
)

NOT_YET: Final = ("FreshnessSamplingStrategy",)
"""Names of the format whose policies are still to come."""


def check_strategy(section: Mapping[str, Any], path: str = "selection_strategy") -> list[Problem]:
    """Every mistake of a `selection_strategy` section, with paths below `path`; empty if there is none."""
    name = section.get("name")
    if not isinstance(name, str):
        return [Problem(f"{path}.name", f"is required: the name of a selection strategy, one of {', '.join(SELECTION)}")]
    if name in NOT_YET and name not in SELECTION:
        return [Problem(f"{path}.name", f"'{name}' is not available yet; available: {', '.join(SELECTION)}")]
    try:
        policy = SELECTION.get(name)
    except ConfigError as error:
        return [Problem(f"{path}.name", error.message)]
    return policy.check(_options(section), path)


def build_strategy(section: Mapping[str, Any], path: str = "selection_strategy") -> SelectionPolicy:
    """The policy that a `selection_strategy` section describes. Raises ConfigError that lists every mistake.

    >>> build_strategy({"name": "NewDataStrategy", "maximum_keys_in_memory": 100}).shared.limit
    -1
    """
    if found := check_strategy(section, path):
        raise ConfigError("\n".join(str(problem) for problem in found))
    policy = SELECTION.get(section["name"])
    return policy(load_section(policy.Config, _options(section), path))


def _options(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if name != "name"}
