"""The base class of configuration sections, and their problems as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from modyn.errors import ConfigError
from modyn.registry import nearest


class Section(BaseModel):
    """A section of a configuration file: frozen, unknown keys refused, defaults validated."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, protected_namespaces=(), ser_json_inf_nan="constants"
    )


S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")


def not_available_yet(value: T) -> T:
    """Validate an option that has no effect here: return `value` if it is null, false or empty. Raises: ValueError."""
    if value:
        raise ValueError("this option is not available yet; remove the key")
    return value


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One wrong place: `path` is dotted from the root of the file; `message` says what is wrong and what is allowed."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


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


def refuse(found: Sequence[Problem]) -> None:
    """Raise ConfigError that lists the problems, if there are any."""
    if found:
        raise ConfigError("\n".join(map(str, found)))


def _problem(item: dict[str, Any], prefix: str, model: type[BaseModel]) -> Problem:
    location = tuple(item["loc"])
    path = ".".join([*([prefix] if prefix else []), *(str(part) for part in location)])
    if item["type"] == "extra_forbidden":
        names = _field_names(model, location[:-1])
        return Problem(
            path, f"there is no such key{nearest(str(location[-1]), names) or '.'} Allowed: {', '.join(names) or 'none'}"
        )
    if item["type"] == "missing":
        return Problem(path, "is required")
    if item["type"] == "value_error":
        return Problem(path, str(item["ctx"]["error"]) if "error" in item.get("ctx", {}) else str(item["msg"]))
    shown = repr(item["input"])
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return Problem(path, f"{shown} is wrong: {item['msg'][0].lower()}{item['msg'][1:]}")


def _field_names(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Return the keys that are allowed at `location` below `model`."""
    models = [model]
    for part in location:
        if isinstance(part, int):
            continue
        children = [child for m in models if part in _by_alias(m) for child in _models_in(_by_alias(m)[part])]
        # A tagged union puts the tag into the location; it names one of the candidates, not a field.
        models = children or models
    return sorted({name for m in models for name in _by_alias(m)})


def _by_alias(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _models_in(argument)]
