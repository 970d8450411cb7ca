"""Check and load sections of a pipeline file that name a policy of a registry and contain the policy's options.

The policy has a class `Config` for its options. Options are all keys except the key that names the policy, unless `Config` has a field for this key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from modyn.config.base import Problem, check_section, load_section, refuse
from modyn.errors import ModynError
from modyn.registry import Registry

P = TypeVar("P")

Check = Callable[[P, Mapping[str, Any], str], list[Problem]]
"""Function that returns the problems in the options of a policy, with paths below the given path."""


def _check_config(policy: Any, options: Mapping[str, Any], path: str) -> list[Problem]:
    return check_section(policy.Config, options, path)


def check_policy(
    registry: Registry[P], section: Mapping[str, Any], key: str, path: str, check: Check[P] = _check_config
) -> list[Problem]:
    """Return every problem of a section, with paths below `path`. The value of `key` names the policy.

    Args: check: function that checks the options; by default, `Config` checks them.
    """
    id_ = section.get(key)
    if not isinstance(id_, str):
        article = "an" if registry.kind[0] in "aeiou" else "a"
        return [Problem(f"{path}.{key}", f"is required: the name of {article} {registry.kind}, one of {registry.choices()}")]
    if problem := registry.problem(id_):
        return [Problem(f"{path}.{key}", problem)]
    policy = registry.get(id_)
    try:
        return check(policy, _options(policy, section, key), path)
    except Exception as error:
        if isinstance(error, ModynError) or id_ in registry.builtin or id_ not in registry:
            raise
        why = f"its options cannot be checked: {type(error).__name__}: {error}"
        return [Problem(f"{path}.{key}", registry.broken(id_, why))]


def load_policy(
    registry: Registry[P], section: Mapping[str, Any], key: str, path: str, check: Check[P] = _check_config
) -> tuple[P, Any]:
    """Load the policy that a section names, and its options as the policy's `Config`. Raises ConfigError that lists every problem.

    Args: key: key of the policy's id. path: path of the section in the file, for messages.
    """
    refuse(check_policy(registry, section, key, path, check))
    policy: Any = registry.get(section[key])
    return policy, load_section(policy.Config, _options(policy, section, key), path)


def _options(policy: Any, section: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in section.items() if name != key or key in policy.Config.model_fields}
