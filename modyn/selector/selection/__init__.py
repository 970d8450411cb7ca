"""Selection strategies, one a file, found by the `name` of the `selection_strategy` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem
from modyn.config.policy import check_policy, load_policy
from modyn.registry import Registry
from modyn.selector.selection.base import SelectionConfig, SelectionPolicy

__all__ = [
    "SELECTION",
    "SelectionConfig",
    "SelectionPolicy",
    "build_selection",
    "validate_selection",
    "validate_selection_section",
]

SELECTION: Final[Registry[type[SelectionPolicy]]] = Registry(
    group="modyn.selection",
    kind="selection strategy",
    builtin={
        "CoresetStrategy": "modyn.selector.selection.coreset:CoresetStrategy",
        "NewDataStrategy": "modyn.selector.selection.new_data:NewDataStrategy",
    },
    not_yet=("FreshnessSamplingStrategy",),
)


def validate_selection(section: Mapping[str, Any], path: str = "selection_strategy") -> list[Problem]:
    """Return every mistake of a `selection_strategy` section, with paths below `path`."""
    return check_policy(SELECTION, section, "name", path, _check)


def validate_selection_section(pipeline: Mapping[str, object]) -> list[Problem]:
    """Return every mistake of a whole pipeline's `selection_strategy`."""
    section = pipeline.get("selection_strategy")
    if isinstance(section, Mapping):
        return validate_selection(section)
    if section is None:
        return [Problem("selection_strategy", "is required: which samples to train on")]
    return [Problem("selection_strategy", f"{section!r} is wrong: write a mapping with `name` and the options of that strategy")]


def build_selection(section: Mapping[str, Any], path: str = "selection_strategy") -> SelectionPolicy:
    """Build the policy of a `selection_strategy` section. Raises ConfigError that lists every mistake.

    >>> build_selection({"name": "NewDataStrategy", "maximum_keys_in_memory": 100}).shared.limit
    -1
    """
    policy, config = load_policy(SELECTION, section, "name", path, _check)
    return policy(config)


def _check(policy: type[SelectionPolicy], options: Mapping[str, Any], path: str) -> list[Problem]:
    return policy.check(options, path)
