"""From `model.id` and `model.config` of a pipeline to a network, and what is wrong with them.

python -m modyn.models.build ID < config.json     # prints what is wrong, as JSON [[path, message], …]
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from modyn.config.base import Problem, Section, check_section, load_section
from modyn.errors import ConfigError
from modyn.models import MODELS

if TYPE_CHECKING:
    from torch import nn

_PLUGIN_LIMIT_S: Final = 120


def build_model(id_: str, config: Mapping[str, Any]) -> nn.Module:
    """A network with fresh weights. Raises ConfigError for an unknown id or a wrong configuration, naming the path in the pipeline."""
    from torch import nn

    definition: Any = MODELS.get(id_)
    checked = load_section(_config_class(id_, definition), config, "model.config")
    built = definition(checked) if issubclass(definition, nn.Module) else definition(checked).build()
    if not isinstance(built, nn.Module):
        raise ConfigError(f"model.id: '{id_}' built a {type(built).__name__}, not an nn.Module; correct its `build`")
    return built


def validate_model(id_: str, config: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a pipeline's model section; empty: nothing. Does not import torch into this process.

    Ours are checked here. A model of somebody else's package usually imports torch, so it is checked in a short-lived process.
    """
    try:
        plugin = MODELS.plugins.get(id_)
        if plugin is None or plugin.distribution == "modyn" or "torch" in sys.modules:
            return check_here(id_, config)
    except ConfigError as error:
        return [Problem("model.id", error.message)]
    return _check_apart(id_, config)


def check_here(id_: str, config: Mapping[str, Any]) -> list[Problem]:
    """As `validate_model`, importing the model's package into this process."""
    try:
        return check_section(_config_class(id_, MODELS.get(id_)), dict(config), "model.config")
    except ConfigError as error:
        return [Problem("model.id", error.message)]


def _check_apart(id_: str, config: Mapping[str, Any]) -> list[Problem]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "modyn.models.build", id_],
            input=json.dumps(dict(config)),
            capture_output=True,
            text=True,
            timeout=_PLUGIN_LIMIT_S,
            check=True,
        )
        return [Problem(path, message) for path, message in json.loads(done.stdout.splitlines()[-1])]
    except subprocess.TimeoutExpired:
        return [Problem("model.id", f"importing the package of '{id_}' takes longer than {_PLUGIN_LIMIT_S} s")]
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        told = getattr(error, "stderr", None) or str(error)
        return [Problem("model.id", f"the package of '{id_}' cannot be imported: {told.strip().splitlines()[-1]}")]


def _config_class(id_: str, definition: type) -> type[Section]:
    config_class = getattr(definition, "Config", None)
    if not (inspect.isclass(definition) and inspect.isclass(config_class) and issubclass(config_class, Section)):
        raise ConfigError(
            f"model '{id_}' must be a class with a `Config` that derives from modyn.config.base.Section; it is {definition!r}"
        )
    return config_class


if __name__ == "__main__":
    print(json.dumps([(problem.path, problem.message) for problem in check_here(sys.argv[1], json.load(sys.stdin))]))
