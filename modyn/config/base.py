"""Base class of configuration sections, and conversion of the problems of sections to text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic_core import core_schema

from modyn.errors import ConfigError
from modyn.registry import nearest


class Section(BaseModel):
    """A section of a configuration file. A section is immutable, refuses unknown keys and booleans in number fields, and validates defaults."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, protected_namespaces=(), ser_json_inf_nan="constants"
    )

    @model_validator(mode="before")
    @classmethod
    def _no_booleans_as_numbers(cls, data: Any) -> Any:
        """Convert booleans in number fields to text, because number fields refuse text. Pydantic would read booleans as 1 and 0."""
        if not isinstance(data, Mapping):
            return data
        numbers = _numbers(cls)
        return {key: _boolean_as_text(value) if key in numbers else value for key, value in data.items()}


@dataclass(frozen=True, slots=True)
class Matching:
    """Metadata of a text field, as in `Annotated[str, Matching(pattern, words)]`: a regular expression, and a text about the allowed values."""

    pattern: str
    allowed: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Refuse values that do not match."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the pattern to the JSON schema, which editors use."""
        return {**handler(schema), "pattern": self.pattern}

    def _check(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value):
            raise ValueError(f"{_shown(value)} is wrong: {self.allowed}")
        return value


class PlacedError(ValueError):
    """The error that a section's validator raises for a mistake in a part of the section."""

    def __init__(self, place: str, message: str) -> None:
        """Args: place: path of the wrong key, from the section."""
        super().__init__(message)
        self.place = place


S = TypeVar("S", bound=BaseModel)


class Severity(StrEnum):
    """Severity of a problem, which decides what `check` and `run` do."""

    ERROR = "error"
    """The file is wrong: `check` fails, and `run` refuses the file."""
    UNAVAILABLE = "unavailable"
    """This machine lacks something that another machine may have, such as a GPU: `check` warns, `run` refuses the file."""
    WARNING = "warning"
    """The pipeline runs, but probably not as intended."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One problem of a file. path: dotted path from the root of the file. message: text that says what is wrong, and what is allowed."""

    path: str
    message: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        prefix = "" if self.severity is Severity.ERROR else "warning: "
        return prefix + (f"{self.path}: {self.message}" if self.path else self.message)


def problems(error: ValidationError, prefix: str, model: type[BaseModel]) -> list[Problem]:
    """Convert a ValidationError to problems, each with path, value and the nearest valid name.

    Args: prefix: path of the section in its file. model: class of the section, for the names that it allows.
    """
    return [_problem(dict(item), prefix, model) for item in error.errors(include_url=False)]


def load_section(model: type[S], data: Mapping[str, Any], path: str = "") -> S:
    """Load `data` as a `model`. Raises ConfigError that lists every problem, with paths below `path`."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise ConfigError("\n".join(map(str, problems(error, path, model)))) from error


def check_section(model: type[BaseModel], data: object, path: str) -> list[Problem]:
    """Return every problem of `data` as a `model`, with paths below `path`; empty if `data` is valid."""
    try:
        model.model_validate(data)
    except ValidationError as error:
        return problems(error, path, model)
    return []


def without_effect(
    model: type[BaseModel], data: Mapping[str, Any], names: Sequence[str], path: str, message: str
) -> list[Problem]:
    """Return a warning for each field in `names` whose value differs from its default. Args: data: valid for `model`."""
    fields = model.model_fields
    loaded = model.model_validate(data)
    changed = [name for name in names if getattr(loaded, name) != fields[name].get_default(call_default_factory=True)]
    return [Problem(f"{path}.{name}", message, Severity.WARNING) for name in changed]


def section_at(data: object, *path: str) -> Mapping[str, Any]:
    """Return the section at a path, or an empty section if there is no section at the path. The data may have mistakes.

    >>> section_at({"online": {"trigger": {"id": "AutoDrift"}}}, "online", "trigger")
    {'id': 'AutoDrift'}
    >>> section_at({"online": 3}, "online", "trigger")
    {}
    """
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else {}


def sections_in(data: object) -> dict[str, Mapping[str, Any]]:
    """Return the sections in a mapping by name, or the sections in a list by position. The data may have mistakes.

    >>> sections_in([{"name": "a"}, 3, {"name": "b"}])
    {'0': {'name': 'a'}, '2': {'name': 'b'}}
    """
    named = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list | tuple) else ()
    return {str(name): section for name, section in named if isinstance(section, Mapping)}


def refuse(found: Sequence[Problem]) -> None:
    """Raise ConfigError that lists the errors among the problems, if there are any."""
    if errors := [problem for problem in found if problem.severity is Severity.ERROR]:
        raise ConfigError("\n".join(map(str, errors)))


def _problem(item: dict[str, Any], prefix: str, model: type[BaseModel]) -> Problem:
    keys, models = _resolved(model, item["loc"])
    context = item.get("ctx", {})
    if item["type"] == "value_error" and isinstance(context.get("error"), PlacedError):
        keys.append(context["error"].place)
    path = ".".join([*([prefix] if prefix else []), *keys])
    if item["type"] == "extra_forbidden":
        names = sorted({name for m in models for name in _by_alias(m)})
        return Problem(path, f"there is no such key{nearest(keys[-1], names) or '.'} Allowed: {', '.join(names) or 'none'}")
    if item["type"] == "missing":
        return Problem(path, "is required")
    if item["type"] == "value_error":
        return Problem(path, str(context.get("error", item["msg"])))
    if item["type"] in ("union_tag_invalid", "union_tag_not_found", "model_attributes_type"):
        return _wrong_kind(item, path, models)
    expected = context["expected"] if item["type"] == "literal_error" else _EXPECTED.get(item["type"])
    if expected is not None and isinstance(item["input"], bool | _BooleanText):
        return Problem(path, f"{str(item['input']).lower()} is a boolean; {expected} is expected")
    return Problem(path, f"{_shown(item['input'])} is wrong: {item['msg'][0].lower()}{item['msg'][1:]}")


def _wrong_kind(item: dict[str, Any], path: str, models: Sequence[type[BaseModel]]) -> Problem:
    """Return the problem for a section that fits no class of a union. Args: models: classes of the union."""
    key = next((name for name in map(_kind_key, models) if name), "")
    kinds = [kind for model in models for kind in _kinds(model)]
    if item["type"] == "model_attributes_type":
        return Problem(
            path, f"{_shown(item['input'])} is wrong: a mapping is expected, with the key '{key}', one of {', '.join(kinds)}"
        )
    if item["type"] == "union_tag_not_found":
        return Problem(f"{path}.{key}", f"is required: one of {', '.join(kinds)}")
    tag = str(item["ctx"]["tag"])
    return Problem(f"{path}.{key}", f"there is no '{tag}'{nearest(tag, kinds) or '.'} Allowed: {', '.join(kinds)}")


class _BooleanText(str):
    """Text that replaces a boolean in a field of numbers."""

    __slots__ = ()


_EXPECTED: Final = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "string_type": "text in quotes",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
"""Expected type of a field, by the type of pydantic's error."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _resolved(model: type[BaseModel], location: Sequence[str | int]) -> tuple[list[str], list[type[BaseModel]]]:
    """Return the keys in the file for a location of pydantic, and the classes that the innermost mapping may have.

    If the last key contains sections, the classes belong to these sections. Otherwise the classes belong to the mapping that contains the key.
    """
    keys, models, is_kind = list[str](), [model], False
    for at, part in enumerate(location):
        children = [child for m in models for child in _models_in(_by_alias(m).get(str(part)))]
        of_kind = [m for m in models if part in _kinds(m)]
        if children or not of_kind or is_kind or not keys:
            if part == "[key]" and at == len(location) - 1:
                break
            keys.append(str(part))
            models, is_kind = children or models, False
        else:  # `part` is the kind of the section in a union, which is not a key in the file
            models, is_kind = of_kind, True
    return keys, models


def _kind_key(model: type[BaseModel]) -> str:
    """Return the key that identifies this section in a union; empty: there is no such key."""
    return next((name for name, annotation in _by_alias(model).items() if get_origin(annotation) is Literal), "")


def _kinds(model: type[BaseModel]) -> list[str]:
    """Return the allowed values of the key that identifies this section in a union."""
    key = _kind_key(model)
    return [str(value) for value in get_args(_by_alias(model)[key])] if key else []


def _by_alias(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


@lru_cache(maxsize=4096)
def _numbers(model: type[BaseModel]) -> frozenset[str]:
    """Return the fields that contain numbers. The result is cached, because simulations check the same sections thousands of times."""
    return frozenset(key for key, annotation in _by_alias(model).items() if _takes_numbers_only(annotation))


def _takes_numbers_only(annotation: Any) -> bool:
    """Whether a type contains numbers and no booleans."""
    parts = list(_leaves(annotation))
    return bool({int, float} & set(parts)) and not any(part in (bool, Any, object) for part in parts)


def _leaves(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from map(type, get_args(annotation))
    elif isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    else:
        arguments = get_args(annotation)
        for argument in arguments[1:] if get_origin(annotation) in (dict, Mapping) else arguments:  # values of mappings, not keys
            yield from _leaves(argument)


def _boolean_as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return _BooleanText(str(value).lower())
    if isinstance(value, Mapping):
        return {key: _boolean_as_text(item) for key, item in value.items()}
    return [_boolean_as_text(item) for item in value] if isinstance(value, list | tuple) else value


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _models_in(argument)]
