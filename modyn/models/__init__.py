"""Model definitions: the registry of models by id, and the check of `model.id` and `model.config` of a pipeline.

Models that are not registered are in `named`. A registered class has a `Config`, and is of one of three kinds. An `nn.Module` takes the config as its
only argument. Modyn can check the two other kinds without torch: a class that takes the config and makes the network in `build()`, and a class that
declares the import path of its `network`, like the built-in models. `build_model` calls the object at this path with the config and the `arguments`
of the class (by default no arguments).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib.util import find_spec

from modyn.config.base import Problem, Section, Severity, check_section
from modyn.errors import ConfigError
from modyn.models.names import ModelKind, ModelName, Pretrained
from modyn.registry import Registry

_OURS = (
    "DLRM",
    "FmowNet",
    "LogisticRegression",
    "MLP",
    "ResNet18",
    "ResNet50",
    "ResNet152",
    "SmallCNN",
    "SparseLogisticRegression",
    "TabularMLP",
    "TextClassifier",
    "YearbookNet",
)
MODELS: Registry[type] = Registry(group="modyn.models", kind="model", builtin={id_: f"modyn.models.specs:{id_}" for id_ in _OURS})


def is_registered(id_: str) -> bool:
    """Return whether `model.id` is a registered id, or can be nothing else. Raises ConfigError: it has none of the spellings of `ModelName`."""
    return id_ in MODELS or ModelName.parse(id_).kind is ModelKind.REGISTERED


def check_model(id_: str, config: object, definition: str = "", pretrained: Pretrained | None = None) -> list[Problem]:
    """Return every mistake in a pipeline's `model.id` and `model.config`. Imports torch only for plug-ins and models that are not registered.

    Args: definition, pretrained: see `build_model`.
    """
    if not isinstance(config, Mapping):
        return [
            Problem(
                "model.config", f"{config!r} is wrong: write a mapping of the options of '{id_}', for example num_classes: 10"
            )
        ]
    try:
        if is_registered(id_):
            return check_section(config_class(id_), dict(config), "model.config") + _missing_package(id_)
    except ConfigError as error:
        return [Problem("model.id", error.message.removeprefix("model.id: "))]
    from modyn.models.named import check_named

    return check_named(id_, config, definition, pretrained)


def _missing_package(id_: str) -> list[Problem]:
    """Return a problem if a package that the model needs is not installed."""
    needs = getattr(MODELS.get(id_), "needs", "")
    if not needs or find_spec(needs) is not None:
        return []
    message = f"{id_} needs {needs}, which is not installed here: pip install modyn[vision]"
    return [Problem("model.id", message, Severity.UNAVAILABLE)]


def config_class(id_: str) -> type[Section]:
    """Return the class of the options of a registered model. Raises ConfigError: the id is unknown, or the class is of none of the three kinds."""
    definition = MODELS.get(id_)
    found = getattr(definition, "Config", None)
    if not (inspect.isclass(definition) and inspect.isclass(found) and issubclass(found, Section)):
        raise ConfigError(
            f"model '{id_}' must be a class with a `Config` that derives from modyn.config.base.Section; it is {definition!r}"
        )
    torch = sys.modules.get("torch")  # If torch is not imported, no class is an nn.Module.
    is_module = torch is not None and issubclass(definition, torch.nn.Module)
    if not (is_module or hasattr(definition, "build") or hasattr(definition, "network")):
        raise ConfigError(
            f"model '{id_}' must be an nn.Module, or have `build()` or the import path of its `network`; it is {definition!r}"
        )
    return found
