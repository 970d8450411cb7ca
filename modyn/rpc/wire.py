"""Converters between records and protos: records by field name, sections of a pipeline, problems of sections, and plug-ins.

A service whose records and messages have equal field names needs no converters of its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct

from modyn.config.base import Problem
from modyn.errors import InvalidArgumentError
from modyn.json_codec import JsonRecord, mark, unmark, whole_numbers
from modyn.proto import common_pb2
from modyn.registry import Registry

M = TypeVar("M", bound=Message)
R = TypeVar("R")


def to_message(record: Any, kind: type[M]) -> M:
    """Convert a dataclass to a message of class `kind`, by the names of the fields.

    None leaves a field unset. An enum becomes a value of the proto enum or text, a dictionary becomes a map or a Struct, and a `JsonRecord`
    becomes a Struct.
    """
    known = kind.DESCRIPTOR.fields_by_name
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record) if field.name in known}
    return kind(**{name: _encode(value, known[name]) for name, value in values.items() if value is not None})


def from_message(message: Message, kind: type[R], **others: Any) -> R:
    """Convert a message to a record of the dataclass `kind`, by the names of the fields.

    The function is the reverse of `to_message`. An unset field becomes None. An unset message field gets the record's default. Args: others: values
    of fields that the message lacks.
    """
    known, values = message.DESCRIPTOR.fields_by_name, {}
    for name, hint in _hints(kind).items():
        if (field := known.get(name)) is None:
            continue
        if not field.has_presence or message.HasField(name):
            values[name] = _decode(getattr(message, name), field, hint)
        elif field.message_type is None:
            values[name] = None
    return kind(**values, **others)


_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def _encode(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        return _enum_prefix(field) + value.name
    if field.message_type is None:
        return str(value) if isinstance(value, Enum) else value
    if field.message_type is Struct.DESCRIPTOR:
        return to_struct(value.to_mapping() if isinstance(value, JsonRecord) else value)
    if field.message_type.GetOptions().map_entry:
        return dict(value)
    kind = GetMessageClass(field.message_type)
    return to_message(value, kind) if dataclasses.is_dataclass(value) else [to_message(item, kind) for item in value]


def _decode(value: Any, field: Any, hint: Any) -> Any:
    if field.enum_type is not None:
        return hint[field.enum_type.values_by_number[value].name.removeprefix(_enum_prefix(field))]
    if field.message_type is None:
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint(value)
        return value if isinstance(value, str | bytes | int | float) else tuple(value)
    if field.message_type is Struct.DESCRIPTOR:
        section = from_struct(value)
        return hint.from_mapping(section) if isinstance(hint, type) and issubclass(hint, JsonRecord) else section
    if field.message_type.GetOptions().map_entry:
        return {name: value[name] for name in sorted(value)}  # the order of a map differs between processes
    if isinstance(value, Message):
        record: type[Any] = next((kind for kind in get_args(hint) if dataclasses.is_dataclass(kind)), hint)  # type: ignore[assignment]
        return from_message(value, record)
    return tuple(from_message(item, get_args(hint)[0]) for item in value)


def _enum_prefix(field: Any) -> str:
    """Return the prefix of a proto enum's values: `JOB_STATE_` for JobState."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", field.enum_type.name).upper() + "_"


def to_struct(data: Mapping[str, Any]) -> Struct:
    """Convert data (JSON types, string keys) to a Struct. Raises InvalidArgumentError: a value has another type."""
    try:
        return ParseDict(mark(data), Struct())
    except (ParseError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"a configuration section holds something that cannot be sent: {error}") from error


def from_struct(struct: Struct) -> dict[str, Any]:
    """Convert a Struct to the dictionary that was given to `to_struct`. Whole numbers become int."""
    section: dict[str, Any] = unmark(whole_numbers(MessageToDict(struct)))
    return section


def problems_to_proto(problems: Iterable[Problem], scores: Iterable[str] = ()) -> common_pb2.SectionReply:
    """Return a reply with the problems that a service found in its sections, and the scores that the selector requests from trainings."""
    found = [to_message(problem, common_pb2.ConfigProblem) for problem in problems]
    return common_pb2.SectionReply(problems=found, scores=scores)


def plugins_to_proto(*registries: Registry[Any]) -> common_pb2.PluginList:
    """List all plug-ins of the registries, one registry after the other, by id."""
    found = [to_message(plugin, common_pb2.Plugin) for registry in registries for plugin in registry.listed()]
    return common_pb2.PluginList(plugins=found)
