"""Converters that several services share: sections of a pipeline, their problems, plug-ins and job states, record ↔ proto."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.struct_pb2 import Struct

from modyn.config.base import Problem
from modyn.errors import InvalidArgumentError
from modyn.json_codec import MAX_EXACT_INT, mark, unmark
from modyn.proto import common_pb2
from modyn.records import JobState
from modyn.registry import Plugin, Registry

_STATE = "JOB_STATE_"


def to_struct(data: Mapping[str, Any]) -> Struct:
    """`data` (JSON types, string keys) as a Struct. Raises InvalidArgumentError for a value of another type."""
    try:
        return ParseDict(mark(data), Struct())
    except (ParseError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"a configuration section holds something that cannot be sent: {error}") from error


def from_struct(struct: Struct) -> dict[str, Any]:
    """The dictionary that `to_struct` was given; whole numbers come back as int."""
    section: dict[str, Any] = unmark(_whole_numbers(MessageToDict(struct)))
    return section


def _whole_numbers(value: Any) -> Any:
    """Doubles as int where they are exact integers; larger ones stay float, as integers of that size travel as marked text."""
    match value:
        case bool():
            return value
        case int() | float():
            return int(value) if abs(value) <= MAX_EXACT_INT and value == int(value) else float(value)
        case dict():
            return {key: _whole_numbers(item) for key, item in value.items()}
        case list():
            return [_whole_numbers(item) for item in value]
    return value


def problems_to_proto(problems: Iterable[Problem]) -> common_pb2.SectionReply:
    return common_pb2.SectionReply(problems=[common_pb2.ConfigProblem(path=p.path, message=p.message) for p in problems])


def problems_from_proto(reply: common_pb2.SectionReply) -> list[Problem]:
    return [Problem(problem.path, problem.message) for problem in reply.problems]


def plugins_to_proto(*registries: Registry[Any]) -> common_pb2.PluginList:
    """All plug-ins of the registries, one registry after the other, by id."""
    found = [registry.plugins[id_] for registry in registries for id_ in registry]
    return common_pb2.PluginList(
        plugins=[common_pb2.Plugin(group=p.group, id=p.id, path=p.path, distribution=p.distribution) for p in found]
    )


def plugins_from_proto(reply: common_pb2.PluginList) -> list[Plugin]:
    return [Plugin(plugin.group, plugin.id, plugin.path, plugin.distribution) for plugin in reply.plugins]


def state_to_proto(state: JobState) -> str:
    """The name of the enum value, which a message field accepts in place of its number."""
    return f"{_STATE}{state.name}"


def state_from_proto(state: common_pb2.JobState) -> JobState:
    return JobState[common_pb2.JobState.Name(state).removeprefix(_STATE)]
