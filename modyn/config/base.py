"""The base class of configuration sections, and their problems as text."""

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
    """A section of a configuration file: frozen, unknown keys refused, defaults validated, true and false are no numbers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, protected_namespaces=(), ser_json_inf_nan="constants"
    )

    @model_validator(mode="before")
    @classmethod
    def _no_booleans_as_numbers(cls, data: Any) -> Any:
        """Turn true and false in fields of numbers into text, which is refused there; pydantic would read them as 1 and 0."""
        if not isinstance(data, Mapping):
            return data
        numbers = _numbers(cls)
        return {key: _boolean_as_text(value) if key in numbers else value for key, value in data.items()}


@dataclass(frozen=True, slots=True)
class Matching:
    """Metadata of a text field, as in `Annotated[str, Matching(pattern, words)]`: a regular expression, and in words what it allows."""

    pattern: str
    allowed: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Refuse what does not match, in words."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Keep the pattern for editors."""
        return {**handler(schema), "pattern": self.pattern}

    def _check(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value):
            raise ValueError(f"{_shown(value)} is wrong: {self.allowed}")
        return value


class PlacedError(ValueError):
    """What the validator of a whole section raises for a mistake that lies below it."""

    def __init__(self, place: str, message: str) -> None:
        """Args: place: path of the key to change, from that section."""
        super().__init__(message)
        self.place = place


S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")


def not_available_yet(value: T) -> T:
    """Validate an option that has no effect here: return `value` if it is null, false or empty. Raises: ValueError."""
    if value:
        raise ValueError("this option is not available yet; remove the key")
    return value


class Severity(StrEnum):
    """How much a problem matters to `check` and to `run`."""

    ERROR = "error"
    """The file is wrong: `check` fails, `run` refuses it."""
    UNAVAILABLE = "unavailable"
    """The machine that was asked lacks something that another may have, such as a GPU: `check` warns, `run` refuses the file."""
    WARNING = "warning"
    """It runs, but probably not as it is meant."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One wrong place: `path` is dotted from the root of the file; `message` says what is wrong and what is allowed."""

    path: str
    message: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        prefix = "" if self.severity is Severity.ERROR else "warning: "
        return prefix + (f"{self.path}: {self.message}" if self.path else self.message)


def problems(error: ValidationError, prefix: str, model: type[BaseModel]) -> list[Problem]:
    """Convert a ValidationError into problems, each with path, value and the nearest valid name.

    Args: prefix: path of the section in its file. model: what was validated, for the names that it allows.
    """
    return [_problem(dict(item), prefix, model) for item in error.errors(include_url=False)]


def load_section(model: type[S], data: Mapping[str, Any], path: str = "") -> S:
    """Load `data` as a `model`. Raises ConfigError that lists every problem, with paths below `path`."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise ConfigError("\n".join(map(str, problems(error, path, model)))) from error


def check_section(model: type[BaseModel], data: object, path: str) -> list[Problem]:
    """Return every problem of `data` as a `model`, with paths below `path`; empty if it is valid."""
    try:
        model.model_validate(data)
    except ValidationError as error:
        return problems(error, path, model)
    return []


def without_effect(
    model: type[BaseModel], data: Mapping[str, Any], names: Sequence[str], path: str, message: str
) -> list[Problem]:
    """Return a warning for each field of `names` that `data`, a valid `model`, gives another value than its default."""
    fields = model.model_fields
    loaded = model.model_validate(data)
    changed = [name for name in names if getattr(loaded, name) != fields[name].get_default(call_default_factory=True)]
    return [Problem(f"{path}.{name}", message, Severity.WARNING) for name in changed]


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
    """The problem of a section that is none of a union's. Args: models: those of the union."""
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
    """What true or false is turned into in a field of numbers."""

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
"""What a field takes, by the type of the error that pydantic reports."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _resolved(model: type[BaseModel], location: Sequence[str | int]) -> tuple[list[str], list[type[BaseModel]]]:
    """The keys of the file at a location that pydantic gives, and the models that the innermost mapping there may be of.

    For the last key these are the models around it, unless it is a field of sections: then those, for what is wrong with all of it.
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
        else:  # a union puts the kind of the section into the location, where the file has no key
            models, is_kind = of_kind, True
    return keys, models


def _kind_key(model: type[BaseModel]) -> str:
    """The key by which a union tells this section from others; empty: none."""
    return next((name for name, annotation in _by_alias(model).items() if get_origin(annotation) is Literal), "")


def _kinds(model: type[BaseModel]) -> list[str]:
    """The values of that key."""
    key = _kind_key(model)
    return [str(value) for value in get_args(_by_alias(model)[key])] if key else []


def _by_alias(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


@lru_cache(maxsize=4096)
def _numbers(model: type[BaseModel]) -> frozenset[str]:
    """The fields that hold numbers. Kept: simulations check the same sections thousands of times."""
    return frozenset(key for key, annotation in _by_alias(model).items() if _takes_numbers_only(annotation))


def _takes_numbers_only(annotation: Any) -> bool:
    """Return whether a field of this type holds numbers, somewhere within, and no booleans."""
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
