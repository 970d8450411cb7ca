"""The file of `modyn simulate`: named trigger policies, and grids of their options.

    policies:
      monthly: {id: TimeTrigger, every: 30d}
      amount: {id: DataAmountTrigger, num_samples: [500, 1000, 2000]}
      drift:
        id: AutoDrift
        metrics:
          mmd:
            id: MMDDriftMetric
            num_permutations: {grid: [null, 100]}
            decision_criterion: {id: ThresholdDecisionCriterion, threshold: [0.05, 0.1]}

If the file has a section `data:`, as in a pipeline, policies may read the content of samples even without a model.

A grid is `{grid: [...]}` at any path, or a list that the policy does not accept as the value of an option. A grid gives one policy for each value;
several grids give one policy for each combination.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path as FilePath
from typing import Any, Final

from modyn.config.base import Problem, Severity, check_section
from modyn.config.overrides import read_pipeline
from modyn.config.published import as_meant
from modyn.config.yaml_source import YamlSource, load_yaml, plain_source, with_lines
from modyn.dataset.config import DataConfig
from modyn.errors import ConfigError
from modyn.supervisor.triggers import check_trigger_section

MAX_POLICIES: Final = 10_000
"""Largest number of policies in a file, with grids expanded. Even a few grids with several values give many combinations."""
_ROOT: Final = "policies"
_DATA: Final = "data"
_GRID: Final = "grid"

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """An option that takes several values in turn."""

    path: Path
    """Path of the option within the section."""
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """The policies of a file without mistakes, grids expanded."""

    source: YamlSource
    sections: dict[str, dict[str, Any]]
    """The `trigger` section of each policy, by name."""
    paths: dict[str, str]
    """Path of each policy in the file, by name. All policies of a grid have the same path."""

    @property
    def data(self) -> dict[str, Any] | None:
        """The section `data` for decoding samples of a dataset, or None."""
        section: Mapping[str, Any] | None = as_meant(self.source.data).get(_DATA)
        return None if section is None else dict(section)


def load_policies(policies: FilePath | str | Mapping[str, Any] | PolicyFile) -> PolicyFile:
    """Load a file of policies.

    Args: policies: path of the file; the `trigger` sections by name, without `data`; or a loaded file.
    Raises: ConfigError: lists every mistake with file, line, path, and the nearest name that exists. NotFoundError: the file does not exist.
    InvalidArgumentError: the file is not a file of policies.
    """
    if isinstance(policies, PolicyFile):
        return policies
    if isinstance(policies, Mapping):
        return parse_policies(plain_source({_ROOT: policies}, _ROOT))
    return parse_policies(load_yaml(read_pipeline(policies, _ROOT), str(policies)))


def parse_policies(source: YamlSource) -> PolicyFile:
    """Expand the policies of a file. Raises: ConfigError: see `load_policies`."""
    sections, paths, problems = _expand_all(as_meant(source.data))
    if problems:
        raise ConfigError("\n".join(with_lines(problems, _with_own_line(source))))
    return PolicyFile(source, sections, paths)


def _with_own_line(source: YamlSource) -> YamlSource:
    return YamlSource(source.file_name, source.data, {_ROOT: 1, **source.lines})


def _expand_all(data: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, str], list[Problem]]:
    """Return the sections of all policies and their paths, by name, and every mistake."""
    problems = [
        Problem(name, f"there is no such key; a file of policies has `{_ROOT}`, and maybe `{_DATA}`")
        for name in data
        if name not in (_ROOT, _DATA)
    ]
    if data.get(_DATA) is not None:
        problems += _check_data(data[_DATA])
    sections = data.get(_ROOT)
    if not isinstance(sections, Mapping) or not sections:
        hint = "is required: a mapping from names to trigger sections, such as `every 100: {id: DataAmountTrigger, num_samples: 100}`"
        return {}, {}, [*problems, Problem(_ROOT, hint)]
    found, paths = dict[str, dict[str, Any]](), dict[str, str]()
    for name, section in sections.items():
        path = f"{_ROOT}.{name}"
        if not isinstance(section, Mapping):
            problems.append(Problem(path, "is not a trigger section; write its `id` and its options"))
            continue
        expanded, wrong = expand(name, section, path)
        problems += [*wrong, *(Problem(path, f"gives the name '{twice}' a second time") for twice in expanded if twice in found)]
        found |= expanded
        paths |= dict.fromkeys(expanded, path)
    if len(found) > MAX_POLICIES:
        problems.append(Problem(_ROOT, f"these are {len(found):,} policies with their grids expanded; at most {MAX_POLICIES:,}"))
    return found, paths, problems


def _check_data(section: object) -> list[Problem]:
    """Return every mistake in a `data` section. The key `dataset_id` is optional."""
    if not isinstance(section, Mapping):
        return [Problem(_DATA, "is not a section; write how samples are decoded, as in a pipeline")]
    return check_section(DataConfig, {"dataset_id": _DATA, **section}, _DATA)


def expand(name: str, section: Mapping[str, Any], path: str = "trigger") -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """Expand the grids of one section.

    Args: path: path of the section in its file. Returns: the sections by name, `name[option=value, …]` for a grid; and every mistake in the sections,
    with the path of the option in the file.

    >>> expand("a", {"id": "DataAmountTrigger", "num_samples": [5, 10]})
    ({'a[num_samples=5]': {'id': 'DataAmountTrigger', 'num_samples': 5}, \
'a[num_samples=10]': {'id': 'DataAmountTrigger', 'num_samples': 10}}, [])
    """
    grids, found_first = _grids(section, path)
    grids.sort(key=lambda grid: _order(section, grid.path))
    empty = [
        Problem(_dotted(path, grid.path), "is an empty grid; give it at least one value") for grid in grids if not grid.values
    ]
    if empty:
        return {}, empty
    if (number := math.prod(len(grid.values) for grid in grids)) > MAX_POLICIES:
        return {}, [Problem(path, f"its grids give {number:,} policies; at most {MAX_POLICIES:,}")]
    labels = _labels([grid.path for grid in grids])
    found, problems = dict[str, dict[str, Any]](), dict[Problem, None]()
    for number, values in enumerate(product(*(grid.values for grid in grids))):
        chosen = _with_values(section, grids, values)
        # `_grids` has already checked the section with the first value of each grid.
        wrong = check_trigger_section(chosen, path) if number else found_first
        problems |= dict.fromkeys(problem for problem in wrong if problem.severity is not Severity.WARNING)
        shown = ", ".join(f"{label}={_shown(value)}" for label, value in zip(labels, values, strict=True))
        found[f"{name}[{shown}]" if grids else name] = chosen
    return found, list(problems)


def _grids(section: Mapping[str, Any], path: str) -> tuple[list[Grid], list[Problem]]:
    """Return the grids of a section, and the problems of the policy that has the first value of each grid."""
    grids = list(_explicit_grids(section))
    while True:
        # Each pass may reveal further grids, because a policy that cannot be loaded reports no mistakes in its options.
        chosen = _with_values(section, grids, [_first(grid.values) for grid in grids])
        problems = check_trigger_section(chosen, path)
        more = _implicit_grids(chosen, path, problems)
        if not more:
            return grids, problems
        grids += more


def _order(section: Any, path: Path) -> list[int]:
    """Return the index of each part of an option's path. Sorted by these indices, options have the order of the section."""
    found = list[int]()
    for part in path:
        at = int(part) if isinstance(section, list) else list(section).index(part)
        section = section[at] if isinstance(section, list) else section[part]
        found.append(at)
    return found


def _explicit_grids(value: Any, path: Path = ()) -> Iterator[Grid]:
    """Yield every `{grid: [...]}`, also within lists."""
    if isinstance(value, Mapping):
        if path and value.keys() == {_GRID} and isinstance(value[_GRID], list):
            yield Grid(path, value[_GRID])
            return
        for name, item in value.items():
            yield from _explicit_grids(item, (*path, name))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _explicit_grids(item, (*path, str(at)))


def _implicit_grids(section: Mapping[str, Any], path: str, problems: Sequence[Problem]) -> list[Grid]:
    """Return one grid for each list of single values that the policy does not accept. Args: problems: problems of the policy."""
    found: dict[Path, Grid] = {}
    for problem in problems:
        at, value = _resolve(section, problem.path.removeprefix(path).strip(".").split("."))
        if at and isinstance(value, list) and not any(isinstance(item, Mapping | list) for item in value):
            found[at] = Grid(at, value)
    return list(found.values())


def value_at(section: Mapping[str, Any], path: str) -> Any:
    """Return the value at a problem's path below a section, or at the longest part of the path that exists."""
    return _resolve(section, path.split("."))[1]


def _resolve(value: Any, parts: Sequence[str]) -> tuple[Path, Any]:
    """Follow a problem's path to its end, or to a list on the path. Parts that name no key, such as the kind of a union, are skipped. A key may
    contain dots, such as `static-0.8`."""
    at: Path = ()
    begun = ""
    for part in parts:
        key = begun + part
        if isinstance(value, Mapping) and key in value:
            at, value, begun = (*at, key), value[key], ""
        # The part may be the beginning of a key with dots. The next part completes the key.
        elif isinstance(value, Mapping) and any(str(name).startswith(f"{key}.") for name in value):
            begun = f"{key}."
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value) and isinstance(value[int(part)], Mapping):
            at, value = (*at, part), value[int(part)]
    return at, value


def _with_values(section: Mapping[str, Any], grids: Sequence[Grid], values: Sequence[Any]) -> dict[str, Any]:
    """Return a copy of the section with one value for each grid."""
    result: dict[str, Any] = copy.deepcopy(dict(section))
    for grid, value in zip(grids, values, strict=True):
        place: Any = result
        for part in grid.path[:-1]:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[int(grid.path[-1]) if isinstance(place, list) else grid.path[-1]] = copy.deepcopy(value)
    return result


def _labels(paths: Sequence[Path]) -> list[str]:
    """Return the shortest end of each path that no other path has.

    >>> _labels([("a", "n"), ("b", "n"), ("q",)])
    ['a.n', 'b.n', 'q']
    """

    def shortest(path: Path) -> str:
        others = [other for other in paths if other != path]
        ends = (path[-length:] for length in range(1, len(path) + 1))
        return ".".join(next((end for end in ends if not any(other[-len(end) :] == end for other in others)), path))

    return [shortest(path) for path in paths]


def _first(values: Sequence[Any]) -> Any:
    return values[0] if values else None


def _shown(value: Any) -> str:
    """Return the text of a value for the name of a policy; for a section, its id."""
    if isinstance(value, Mapping):
        return str(value.get("id") or value.get("name") or dict(value))
    return value if isinstance(value, str) else json.dumps(value)


def _dotted(path: str, below: Path) -> str:
    return ".".join([path, *below])
