"""The text of a pipeline: of a file, of a dictionary, and with values that are set for one run: `training.batch_size=64`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from modyn.config.yaml_source import load_yaml
from modyn.errors import ConfigError, InvalidArgumentError, NotFoundError


def override(text: str, file_name: str, settings: Sequence[str]) -> str:
    """Return the text of a pipeline file with `settings`, each `PATH=VALUE` with a dotted path and YAML as value; comments are kept.

    Sections on the way are made where they are missing; whether the result is valid is found when it is checked.

    >>> override("training: {batch_size: 4}", "p.yaml", ["training.batch_size=64", "training.optimizers=[]"])
    'training: {batch_size: 64, optimizers: []}\\n'

    Raises: InvalidArgumentError: a setting is none, or its path leads through a value. ConfigError: `text` or a value is not YAML.
    """
    if not settings:
        return text
    load_yaml(text, file_name)  # Refuses what is not plain data.
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
        raise InvalidArgumentError(f"'{setting}' leads through a value that has no fields; correct the path")
    key: Any = _index(data, name, setting) if isinstance(data, list) else name
    if not below:
        data[key] = value
    else:
        _set(data[key] if isinstance(data, list) else data.setdefault(key, {}), below, value, setting)


def _key(data: object, path: Sequence[str]) -> str:
    """Return the longest beginning of a path that is a key of the data, such as `static-0.8`; its first part where none is."""
    beginnings = (".".join(path[:length]) for length in range(len(path), 1, -1))
    return next((name for name in beginnings if isinstance(data, dict) and name in data), path[0])


def _index(data: Sequence[object], name: str, setting: str) -> int:
    if not name.isdecimal() or int(name) >= len(data):
        raise InvalidArgumentError(
            f"'{setting}': '{name}' is not the number of an item; the list has {len(data)}, counted from 0"
        )
    return int(name)


def read_pipeline(path: Path | str, kind: str = "pipeline") -> str:
    """Read the text of a pipeline file. Raises NotFoundError or ConfigError that name it, InvalidArgumentError if it is no path.

    Args: kind: what the file holds, for messages.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except TypeError:
        raise InvalidArgumentError(f"{path!r} is no {kind}: give the path of its file, or a dictionary") from None
    except FileNotFoundError:
        raise NotFoundError(f"there is no {kind} file {path}; give the path of a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {kind} file {path}: {error}") from error


def pipeline_yaml(pipeline: Mapping[str, Any]) -> str:
    """Return a pipeline that is given as a dictionary as the text of a file. Raises: InvalidArgumentError: it holds what YAML cannot."""
    import yaml

    try:
        return yaml.safe_dump(dict(pipeline), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise InvalidArgumentError(
            f"a pipeline is made of dictionaries, lists, text, numbers, true, false and None: {error}"
        ) from error
