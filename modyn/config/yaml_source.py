"""Read a YAML file into plain data with the line of each value.

Tags never run code. Size, depth and the expansion of aliases are bounded.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from modyn.config.base import Problem
from modyn.errors import ConfigError, InvalidArgumentError

MAX_CHARACTERS = 2**20
MAX_DEPTH = 50
MAX_VALUES = 100_000
"""Largest number of values after aliases are expanded. Without a bound, a few lines of nested aliases can expand to billions of values."""
EXACT_INTEGERS = 2**53
"""Largest allowed integer. Sections are sent between services as protobuf Struct, whose numbers are doubles."""

_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {_TAG + "str", _TAG + "timestamp"}
"""Tags of scalars that stay text. Dates stay text because timestamp fields parse them, and because a description may look like a date."""
_SCALAR_TAGS = _TEXT_TAGS | {_TAG + name for name in ("int", "float", "bool", "null")}


@dataclass(frozen=True)
class YamlSource:
    """The content of a YAML file and the line of each value."""

    file_name: str
    data: Mapping[str, Any]
    """Plain data that JSON can express: dict, list, str, int, float, bool, None."""
    lines: Mapping[str, int] = field(repr=False)
    """Line, from 1, of the key or list item at each dotted path."""

    def locate(self, path: str) -> int:
        """Return the line, from 1, of the dotted `path` or of its nearest parent in the file; 1 if the file has neither."""
        while path and path not in self.lines:
            path = path.rpartition(".")[0]
        return self.lines.get(path, 1)


def load_yaml(text: str, file_name: str, empty: Mapping[str, Any] | None = None) -> YamlSource:
    """Parse the mapping in `text`. Raises ConfigError that lists every problem as `file:line: path: what`.

    Args: file_name: name for messages; the file is not read. empty: data to return for an empty file; None: an empty file is a problem.

    >>> source = load_yaml("training:\\n  batch_size: 64", "pipeline.yaml")
    >>> source.data["training"]["batch_size"], source.locate("training.batch_size")
    (64, 2)
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{file_name}: has {len(text)} characters; at most {MAX_CHARACTERS} are read")
    root = _compose(text, file_name)
    if root is None and empty is not None:
        return YamlSource(file_name, empty, {})
    if root is None:
        raise ConfigError(f"{file_name}: is empty; a pipeline is a mapping of sections")
    reader = _Reader()
    data = reader.value(root, "", 0)
    source = YamlSource(file_name, data if isinstance(data, dict) else {}, reader.lines)
    if not isinstance(data, dict):
        reader.problems.insert(0, Problem("", "is not a mapping of sections such as `training:` and `data:`"))
    if reader.problems:
        raise ConfigError("\n".join(with_lines(reader.problems, source)))
    return source


def plain_source(data: Mapping[str, Any], name: str) -> YamlSource:
    """Convert a program's dictionary to the result of `load_yaml` for a file with this content, but without lines.

    Raises: InvalidArgumentError: YAML cannot express a value. ConfigError: see `load_yaml`.

    >>> plain_source({"training": {"epochs": (1, 2)}}, "pipeline").data
    {'training': {'epochs': [1, 2]}}
    """
    problems: list[Problem] = []
    source = YamlSource(name, _plain(data, "", 0, problems), {})
    if problems:
        raise ConfigError("\n".join(with_lines(problems, source)))
    return source


def with_lines(problems: Iterable[Problem], source: YamlSource) -> list[str]:
    """Return `file:line: path: message` for each of `problems`, ordered by line in `source`, without duplicates."""
    located = {(source.locate(problem.path), str(problem)): None for problem in problems}
    return [f"{source.file_name}:{line}: {text}" for line, text in sorted(located, key=lambda item: item[0])]


def _compose(text: str, file_name: str) -> Node | None:
    yaml = YAML(typ="safe", pure=True)
    try:
        root: Node | None = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file_name}:{mark.line + 1}: column {mark.column + 1}" if mark is not None else file_name
        raise ConfigError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except YAMLError as error:
        raise ConfigError(f"{file_name}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{file_name}: is nested too deeply; at most {MAX_DEPTH} levels are read") from error
    return root


class _Reader:
    """Converts nodes to data, and collects lines and problems."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []
        self._scalars = YAML(typ="safe", pure=True).constructor
        self._num_values = 0

    def value(self, node: Node, path: str, depth: int) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        self._num_values += 1
        if depth > MAX_DEPTH:
            return self._problem(path, f"is nested too deeply; at most {MAX_DEPTH} levels are read")
        if self._num_values > MAX_VALUES:
            if self._num_values == MAX_VALUES + 1:
                self._problem(path, f"the file has more than {MAX_VALUES} values after its aliases are expanded")
            return None
        if isinstance(node, MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path, depth)
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, _join(path, str(index)), depth + 1) for index, item in enumerate(node.value)]
        if isinstance(node, ScalarNode) and node.tag in _SCALAR_TAGS:
            return self._scalar(node, path)
        return self._problem(
            path, f"the tag '{node.tag}' is not allowed; write plain values, because YAML here builds no objects and runs no code"
        )

    def _mapping(self, node: MappingNode, path: str, depth: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                # `<<: *anchor`: own keys of the mapping override merged keys, and earlier merged mappings override later ones.
                for source in value_node.value if isinstance(value_node, SequenceNode) else [value_node]:
                    inner = self.value(source, path, depth + 1)
                    merged = {**inner, **merged} if isinstance(inner, dict) else merged
                continue
            if key_node.tag not in _TEXT_TAGS:
                self._problem(path, f"the key {_shown(key_node)} is not text; put it into quotes")
                continue
            here = _join(path, key_node.value)
            line = key_node.start_mark.line + 1
            if key_node.value in own:
                self._problem(here, f"is given twice, on lines {self.lines[here]} and {line}; remove one")
                continue
            self.lines[here] = line
            own[key_node.value] = self.value(value_node, here, depth + 1)
        return {**merged, **own}

    def _scalar(self, node: ScalarNode, path: str) -> Any:
        if node.tag in _TEXT_TAGS:
            return node.value
        try:
            value = self._scalars.construct_object(node)
        except (YAMLError, ValueError) as error:
            return self._problem(path, f"{node.value!r} cannot be read as {str(node.tag).removeprefix(_TAG)}: {error}")
        return self._problem(path, f"{node.value} {message}") if (message := _wrong_number(value)) else value

    def _problem(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))


def _wrong_number(value: object) -> str:
    """Return a text that says why a number cannot be read. Empty: the number can be read."""
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    return "is too large to be kept exactly; at most ±2^53" if isinstance(value, int) and abs(value) > EXACT_INTEGERS else ""


def _plain(value: Any, path: str, depth: int, problems: list[Problem]) -> Any:
    """Copy a value as plain data, and add the mistakes in the value to `problems`."""
    if value is None or isinstance(value, bool | int | float):
        if message := _wrong_number(value):
            problems.append(Problem(path, f"{value} {message}"))
        return value
    if isinstance(value, str | dt.date):
        return str(value)
    if depth >= MAX_DEPTH and isinstance(value, Mapping | list | tuple):
        problems.append(Problem(path, f"is nested too deeply; at most {MAX_DEPTH} levels are read"))
        return None
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            problems.append(Problem(path, f"the key {wrong[0]!r} is not text; put it into quotes"))
        return {
            str(key): _plain(item, _join(path, key), depth + 1, problems) for key, item in value.items() if isinstance(key, str)
        }
    if isinstance(value, list | tuple):
        return [_plain(item, _join(path, str(at)), depth + 1, problems) for at, item in enumerate(value)]
    raise InvalidArgumentError(
        f"{path} is a {type(value).__name__}: sections are made of dictionaries, lists, text, numbers, true, false and None"
    )


def _shown(node: Node) -> str:
    return repr(node.value) if isinstance(node, ScalarNode) else "that is a list or mapping"


def _join(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part
