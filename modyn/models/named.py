"""Models that are not registered: classes and functions by import path, in a file next to the pipeline, or in a library.

The keyword arguments of the class or function are `model.config`. Only workers and commands on models use this module, because it runs code of users.
Models of libraries are in `libraries`.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import traceback
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from modyn.config.base import Problem, Severity
from modyn.errors import ConfigError
from modyn.models import is_registered
from modyn.models.names import LIBRARIES, ModelKind, ModelName, Pretrained, text_sha256
from modyn.registry import nearest

_UNEXPECTED: Final = re.compile(r"unexpected keyword argument '(\w+)'")


class MissingPackageError(ConfigError):
    """A library is not installed on this machine."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The keyword arguments that a class or function takes."""

    names: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    is_open: bool = True
    """Whether the class or function may take other names too."""

    @classmethod
    def of(cls, call: Callable[..., object]) -> Arguments:
        """Read the signature. If a function passes other arguments on to the class that it is annotated to return, their names are known too."""
        try:
            parameters = inspect.signature(call).parameters.values()
        except (TypeError, ValueError):  # The class is written in C.
            return cls()
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        named = [each for each in parameters if each.kind not in variable]
        required = tuple(each.name for each in named if each.default is inspect.Parameter.empty)
        names = tuple(each.name for each in named)
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
            return cls(names, required, is_open=False)
        returned = _returned(call)
        return cls((*names, *(cls.of(returned).names if returned is not None else ())), required)

    def problems(self, config: Mapping[str, Any], called: str) -> list[Problem]:
        """Compare `model.config` with the signature. Args: called: name of the class or function, for messages."""
        unknown = [] if self.is_open else [name for name in config if name not in self.names]
        missing = [name for name in self.required if name not in config]
        return [self.unknown(name, called) for name in unknown] + [
            Problem(f"model.config.{name}", f"is required: {called} takes it, and it has no default") for name in missing
        ]

    def unknown(self, name: str, called: str) -> Problem:
        """Return the problem of an argument that the class or function does not take."""
        allowed = f"Allowed: {', '.join(self.names) or 'none'}"
        message = f"{called} takes no such argument{nearest(name, list(self.names)) or '.'} {allowed}"
        return Problem(f"model.config.{name}", message)


class NamedModel(ABC):
    """A model that is not registered."""

    def __init__(self, id_: str) -> None:
        self.id = id_

    @abstractmethod
    def arguments(self) -> Arguments:
        """Return the keyword arguments of the model. Raises ConfigError: there is no such model."""

    @abstractmethod
    def build(self, config: Mapping[str, Any], pretrained: Pretrained | None) -> object:
        """Build the network. Args: pretrained: None: the weights are replaced afterwards, so that pretrained weights are not needed."""

    def problems(self, config: Mapping[str, Any]) -> list[Problem]:
        """Return the mistakes in `model.config` that are found without building the network. Raises ConfigError: there is no such model."""
        return self.arguments().problems(config, f"'{self.id}'")

    def missing_weights(self, config: Mapping[str, Any], pretrained: Pretrained) -> str:
        """Return a text that says which pretrained weights this machine lacks; empty: it has all that are needed."""
        return ""


class CodeModel(NamedModel):
    """A class or function by its import path, or in a file."""

    def __init__(self, id_: str, name: ModelName, definition: str) -> None:
        super().__init__(id_)
        self._name, self._definition = name, definition

    def arguments(self) -> Arguments:
        """See `NamedModel`."""
        return Arguments.of(self._load())

    def build(self, config: Mapping[str, Any], pretrained: Pretrained | None) -> object:
        """See `NamedModel`."""
        return self._load()(**config)

    def _load(self) -> Callable[..., object]:
        from torch import nn

        name = self._name
        module = module_of(name.place, self._definition) if name.kind is ModelKind.FILE else _imported(name.place)
        found: Any = module
        for part in name.name.split("."):
            if not hasattr(found, part):
                known = [each for each, value in vars(found).items() if callable(value) and not each.startswith("_")]
                raise ConfigError(
                    f"model.id: '{name.place}' has no '{part}'{nearest(part, known) or '.'} It has {_listed(known)}"
                )
            found = getattr(found, part)
        if inspect.isclass(found) and not issubclass(found, nn.Module):
            raise ConfigError(f"model.id: '{self.id}' is a class that is not an nn.Module; derive it from torch.nn.Module")
        if not callable(found):
            raise ConfigError(
                f"model.id: '{self.id}' is a {type(found).__name__}; name a subclass of nn.Module, or a function that returns a module"
            )
        return found  # type: ignore[no-any-return]


@lru_cache(maxsize=32)
def module_of(file: str, source: str) -> ModuleType:
    """Return a module with the content `source`. Equal sources give the same module. Args: file: name of the file, for messages.

    Raises: ConfigError: there is no source, or it cannot be executed.
    """
    if not source:
        raise ConfigError(f"model.id: the content of '{file}' is missing; submit the pipeline where the file is")
    digest = text_sha256(source)
    shown = f"<{file} {digest[:8]}>"
    module = ModuleType(f"modyn_model_{digest[:16]}")
    # Tracebacks take source lines from this cache, and dataclasses and annotations look up their module by name.
    linecache.cache[shown] = (len(source), None, source.splitlines(keepends=True), shown)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, shown, "exec"), module.__dict__)
    except BaseException as error:
        sys.modules.pop(module.__name__, None)  # another thread may have removed it
        if isinstance(error, KeyboardInterrupt):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == shown]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = "" if line is None else f", line {line}"
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        advice = (
            "; a run keeps this file only: put other modules into an installed package" if isinstance(error, ImportError) else ""
        )
        raise ConfigError(f"model.id: {file}{where}: {type(error).__name__}: {why}{advice}") from error
    return module


def named_model(id_: str, definition: str) -> NamedModel:
    """Return the model of a `model.id` that is not registered. Args: definition: see `build_model`. Raises ConfigError."""
    name = ModelName.parse(id_)
    if name.kind in LIBRARIES:
        from modyn.models import libraries

        return libraries.library_model(id_, name, definition)
    return CodeModel(id_, name, definition)


def model_definition(id_: str, given: str, *, download: bool = False) -> str:
    """Return the text that a model is built from, in addition to its id and configuration, so that a stored version needs no other file.

    For a file, the text is its source; for a model of transformers, its `config.json`. Other models need none. Args: given: text in the pipeline.
    download: whether the network may be asked. Raises ConfigError: the text is not on this machine.
    """
    if given or is_registered(id_) or (name := ModelName.parse(id_)).kind is not ModelKind.TRANSFORMERS:
        return given
    from modyn.models.libraries import check_installed, transformers_definition

    check_installed(name.kind)
    return transformers_definition(name.name, download=download)


def check_named(id_: str, config: Mapping[str, Any], definition: str, pretrained: Pretrained | None = None) -> list[Problem]:
    """Return the mistakes in `model.id` and `model.config` that are found without building the network. Args: see `build_model`."""
    from modyn.models.libraries import hub

    try:
        with hub(pretrained is not None and pretrained.download):
            if pretrained is not None:
                definition = model_definition(id_, definition, download=pretrained.download)
            model = named_model(id_, definition)
            found = model.problems(config)
            if not found and pretrained is not None and (missing := model.missing_weights(config, pretrained)):
                found.append(Problem("model.config", missing, Severity.UNAVAILABLE))
            return found
    except ConfigError as error:
        path, _, message = error.message.partition(": ")
        severity = Severity.UNAVAILABLE if isinstance(error, MissingPackageError) else Severity.ERROR
        known = path.startswith("model.")
        return [Problem(path if known else "model.id", message if known else error.message, severity)]


def build_named(id_: str, config: Mapping[str, Any], definition: str, pretrained: Pretrained | None) -> object:
    """Build a network that is not registered. Args: see `build_model`. Raises: ConfigError; errors of the network's own code."""
    from modyn.models.libraries import hub

    with hub(pretrained is not None and pretrained.download):
        model = named_model(id_, definition)
        for problem in model.problems(config):
            raise ConfigError(str(problem))
        try:
            return model.build(config, pretrained)
        except TypeError as error:
            match = _UNEXPECTED.search(str(error))
            if match is not None and match[1] in config:
                raise ConfigError(str(model.arguments().unknown(match[1], f"'{id_}'"))) from error
            raise


def _imported(place: str) -> ModuleType:
    try:
        return import_module(place)
    except BaseException as error:  # a user's module may raise any error on import, also SystemExit
        if isinstance(error, KeyboardInterrupt):
            raise
        hint = "" if "." in place else nearest(place, list(LIBRARIES))
        raise ConfigError(
            f"model.id: cannot import '{place}': {type(error).__name__}: {error}{hint}; install the package where trainer server, evaluator and "
            "`modyn serve` run"
        ) from error


def _returned(call: Callable[..., object]) -> type | None:
    """Return the class that a function is annotated to return; None: it is not known, or `call` is itself a class."""
    if inspect.isclass(call):
        return None
    try:
        found = typing.get_type_hints(call).get("return")
    except Exception:  # noqa: BLE001  (annotations may be any text)
        return None
    return found if inspect.isclass(found) and found is not type(None) else None


def _listed(names: list[str]) -> str:
    return ", ".join(names[:20]) or "no classes or functions"
