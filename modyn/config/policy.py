"""Check and load sections of a pipeline file that name a policy of a registry and hold its options.

The policy has a class `Config`. Its options are the keys beside the one that names it, and that key too if `Config` has a field for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from modyn.config.base import Problem, check_section, load_section, refuse
from modyn.registry import Registry

P = TypeVar("P")

Check = Callable[[P, Mapping[str, Any], str], list[Problem]]
"""Returns the problems in the options of a policy, with paths below the given one."""


def _check_config(policy: Any, options: Mapping[str, Any], path: str) -> list[Problem]:
    return check_section(policy.Config, options, path)


def check_policy(
    registry: Registry[P], section: Mapping[str, Any], key: str, path: str, check: Check[P] = _check_config
) -> list[Problem]:
    """Return every problem of a section whose `key` names the policy, with paths below `path`.

    Args: check: for policies whose options need more checks than those of their `Config`.
    """
    id_ = section.get(key)
    if not isinstance(id_, str):
        article = "an" if registry.kind[0] in "aeiou" else "a"
        return [Problem(f"{path}.{key}", f"is required: the name of {article} {registry.kind}, one of {registry.choices()}")]
    if problem := registry.problem(id_):
        return [Problem(f"{path}.{key}", problem)]
    policy = registry.get(id_)
    return check(policy, _options(policy, section, key), path)


def load_policy(
    registry: Registry[P], section: Mapping[str, Any], key: str, path: str, check: Check[P] = _check_config
) -> tuple[P, Any]:
    """Load the policy that the section names and its `Config`. Raises ConfigError that lists every problem.

    Args: key: name under which the id of the policy stands. path: where the section stands in the file, for messages.
    """
    refuse(check_policy(registry, section, key, path, check))
    policy: Any = registry.get(section[key])
    return policy, load_section(policy.Config, _options(policy, section, key), path)


def _options(policy: Any, section: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in section.items() if name != key or key in policy.Config.model_fields}
