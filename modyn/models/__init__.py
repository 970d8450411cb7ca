"""Model definitions, tied to nothing: the registry that finds them by id, and networks from `model.id` and `model.config` of a pipeline.

What is registered is either a *spec* (a light class with a Config and `build()`, as all of ours: checked without importing torch) or
plainly an `nn.Module` class with a `Config` that takes the config as its only argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modyn.config.base import Problem, Section, check_section, load_section
from modyn.errors import ConfigError
from modyn.registry import Registry

if TYPE_CHECKING:
    from torch import nn

_OURS = ("LogisticRegression", "MLP", "ResNet18", "ResNet50", "ResNet152", "SmallCNN")
MODELS: Registry[type] = Registry(group="modyn.models", kind="model", builtin={id_: f"modyn.models.specs:{id_}" for id_ in _OURS})


def build_model(id_: str, config: Mapping[str, Any]) -> nn.Module:
    """A network with fresh weights. Raises ConfigError for an unknown id or a wrong configuration, naming the path in the pipeline."""
    from torch import nn

    definition: Any = MODELS.get(id_)
    checked = load_section(_config_class(id_, definition), config, "model.config")
    built = definition(checked) if issubclass(definition, nn.Module) else definition(checked).build()
    if not isinstance(built, nn.Module):
        raise ConfigError(f"model.id: '{id_}' built a {type(built).__name__}, not an nn.Module; correct its `build`")
    return built


def check_model(id_: str, config: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a pipeline's model section; empty: nothing. Imports the model's package, but torch for none of ours."""
    try:
        return check_section(_config_class(id_, MODELS.get(id_)), dict(config), "model.config")
    except ConfigError as error:
        return [Problem("model.id", error.message)]


def _config_class(id_: str, definition: type) -> type[Section]:
    config_class = getattr(definition, "Config", None)
    if not (inspect.isclass(definition) and inspect.isclass(config_class) and issubclass(config_class, Section)):
        raise ConfigError(
            f"model '{id_}' must be a class with a `Config` that derives from modyn.config.base.Section; it is {definition!r}"
        )
    return config_class
