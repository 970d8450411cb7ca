"""Read the text of a pipeline from a file or a dictionary, and set values for one run, such as `training.batch_size=64`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from modyn.config.yaml_source import load_yaml
from modyn.errors import ConfigError, InvalidArgumentError, NotFoundError


def override(text: str, file_name: str, settings: Sequence[str]) -> str:
    """Set values in the text of a pipeline file, and keep the comments of the file. Args: settings: `PATH=VALUE` with a dotted path and a YAML value.

    Missing sections are created. The result is not checked.

    >>> override("training: {batch_size: 4}", "p.yaml", ["training.batch_size=64", "training.optimizers=[]"])
    'training: {batch_size: 64, optimizers: []}\\n'

    Raises: InvalidArgumentError: a setting is not PATH=VALUE, or its path goes through a value without fields. ConfigError: `text` or a value is not
    YAML.
    """
    if not settings:
        return text
    load_yaml(text, file_name)  # refuses YAML tags, because tags could run code
    yaml = YAML(typ="rt", pure=True)
    yaml.width = 10_000
    data = yaml.load(text)
    for setting in settings:
        path, separator, value = setting.partition("=")
        if not separator or not all(path.strip().split(".")):
            raise InvalidArgumentError(f"'{setting}' is not a setting; write PATH=VALUE, for example training.batch_size=64")
        _set(data, path.strip().split("."), load_yaml(f"value: {value}", f"--set {setting}").data["value"], setting)
    out = io.StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def _set(data: Any, path: Sequence[str], value: object, setting: str) -> None:
    name = _key(data, path)
    below = path[name.count(".") + 1 :]
    if not isinstance(data, dict | list):
        raise InvalidArgumentError(f"'{setting}' goes through a value that has no fields; correct the path")
    key: Any = _index(data, name, setting) if isinstance(data, list) else name
    if not below:
        data[key] = value
    else:
        _set(data[key] if isinstance(data, list) else data.setdefault(key, {}), below, value, setting)


def _key(data: object, path: Sequence[str]) -> str:
    """Return the longest prefix of a path that is a key of the data, such as `static-0.8`. If there is no such key, return the first part of the
    path.
    """
    beginnings = (".".join(path[:length]) for length in range(len(path), 1, -1))
    return next((name for name in beginnings if isinstance(data, dict) and name in data), path[0])


def _index(data: Sequence[object], name: str, setting: str) -> int:
    if not name.isdecimal() or int(name) >= len(data):
        raise InvalidArgumentError(
            f"'{setting}': '{name}' is not the number of an item: items are counted from 0, and the list has {len(data)}"
        )
    return int(name)


def read_pipeline(path: Path | str, kind: str = "pipeline") -> str:
    """Read the text of a pipeline file. Args: kind: kind of the file, for messages.

    Raises: NotFoundError, ConfigError: the file cannot be read. InvalidArgumentError: `path` is not a path.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except TypeError:
        raise InvalidArgumentError(f"{path!r} is not a {kind} file: give its path, or a dictionary") from None
    except FileNotFoundError:
        raise NotFoundError(f"there is no {kind} file {path}; give the path of a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {kind} file {path}: {error}") from error


def pipeline_yaml(pipeline: Mapping[str, Any]) -> str:
    """Convert a pipeline from a dictionary to the text of a file. Raises InvalidArgumentError: YAML cannot express a value."""
    import yaml

    try:
        return yaml.safe_dump(dict(pipeline), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise InvalidArgumentError(
            f"a pipeline is made of dictionaries, lists, text, numbers, true, false and None: {error}"
        ) from error
