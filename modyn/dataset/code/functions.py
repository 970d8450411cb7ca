"""Make the user's functions and transformations callable. Only workers use this module, because code from a pipeline runs here.

Source may use torch, numpy (also as np), io, json, struct, PIL and its Image without importing them. An error of user code becomes a UserCodeError
that names the function, the sample key and the line. SystemExit becomes a UserCodeError too, because SystemExit would end the worker without a
message.
"""

from __future__ import annotations

import inspect
import io
import json
import linecache
import random
import struct
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import PIL
import PIL.Image
import torch

from modyn.dataset.code.user_code import EXTRAS, GENERATOR, imported_name
from modyn.errors import ConfigError, UserCodeError
from modyn.models.torchvision_import import import_torchvision
from modyn.records import Int64Array
from modyn.registry import load_object
from modyn.workers.limits import Call

_NAMES = {"__name__": "modyn_user_code", "np": np, "Image": PIL.Image} | {
    module.__name__: module for module in (torch, np, io, json, struct, PIL)
}
"""Names that the user's source may use without importing them."""


class UserFunction:
    """A function of the user, with its name in the pipeline."""

    __slots__ = ("_call", "_file", "name", "takes_generator")

    def __init__(self, name: str, call: Callable[..., Any], file: str | None) -> None:
        """Args: name: name for messages. call: the function itself. file: file name of the function's compiled source, which locates the line of an
        error; None: the function was imported.
        """
        self.name = name
        self._call = call
        self._file = file
        self.takes_generator = _takes_generator(call)

    def __call__(self, describe: Callable[[], str], *arguments: Any, generator: torch.Generator | None = None) -> Any:
        """Call the function. describe: returns the origin of the argument, e.g. `sample 17 of dataset 'digits'`; called only for an error."""
        with Call(self.name, lambda _: describe()):
            try:
                return self._bound(generator)(*arguments)
            except (Exception, SystemExit) as error:
                raise UserCodeError(f"{self.name} failed for {describe()}: {describe_error(error, self._file)}") from error

    def each(
        self,
        describe: Callable[[int], str],
        keys: Int64Array,
        values: Iterable[Any],
        generator: torch.Generator | None = None,
    ) -> list[Any]:
        """Call the function with each of `values`, which belong to the samples `keys`. describe(i): the origin of value i.

        Args: keys: int64 (n,), one for each value.
        Raises: UserCodeError: the function fails. The message names the sample, and the error has the sample's key.
        """
        function = self._bound(generator)
        with Call(self.name, describe) as call:
            try:
                return [function(value) for call.at, value in enumerate(values)]
            except (Exception, SystemExit) as error:
                what = f"{self.name} failed for {describe(call.at)}: {describe_error(error, self._file)}"
                raise UserCodeError(what, int(keys[call.at])) from error

    def _bound(self, generator: torch.Generator | None) -> Callable[..., Any]:
        """If the function has a parameter `generator`, bind the generator to it."""
        return partial(self._call, **{GENERATOR: generator or torch.Generator()}) if self.takes_generator else self._call


def _takes_generator(call: Callable[..., Any]) -> bool:
    try:
        return GENERATOR in inspect.signature(call).parameters
    except (TypeError, ValueError):  # The function is written in C.
        return False


def compile_function(text: str, name: str) -> UserFunction:
    """Compile the function `name` of the source `text`, or import the function `package.module:name`.

    Raises: UserCodeError: the source raises while it is executed. ConfigError: the function cannot be imported.
    """
    imported = imported_name(text)
    if imported is not None:
        return UserFunction(f"{name} ({imported.path})", _callable(load_object(imported.path), imported.path), None)
    file = f"<{name}>"
    # Tracebacks take source lines from this cache.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = dict(_NAMES)
    try:
        exec(compile(text, file, "exec"), scope)
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"{name} cannot be defined: {describe_error(error, file)}") from error
    if name not in scope:
        raise UserCodeError(f"{name} cannot be used: its source defines no function of that name")
    return UserFunction(name, _callable(scope[name], name), file)


def compile_transformation(text: str, name: str) -> UserFunction:
    """Evaluate the expression `text`, or import the object that `text` names. An imported object is called if `text` has arguments, or if it is a
    class.

    Raises: ConfigError: torchvision is needed and missing. UserCodeError: the expression raises.
    """
    shown = f"{name} `{text.strip()}`"
    imported = imported_name(text)
    try:
        if imported is not None:
            found = load_object(imported.path)
            if imported.arguments is not None or isinstance(found, type):
                positional, named = imported.arguments or ((), {})
                found = _callable(found, imported.path)(*positional, **named)
        else:
            code = compile(text.strip(), f"<{name}>", "eval")
            found = eval(code, _NAMES | _extras(code.co_names, shown))
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"{shown} cannot be made: {describe_error(error, None)}") from error
    return UserFunction(shown, _callable(found, shown), None)


def compile_tokenizer(text: str) -> UserFunction:
    """Return the callable that is applied to each parsed sample. If `text` has arguments, or if the named object can be called without arguments, the
    object is a factory, and its result is the callable. Otherwise the object itself is the callable, for example a function of one text.

    Raises: as `compile_transformation`.
    """
    imported = imported_name(text)
    is_factory = imported is not None and imported.arguments is None and _takes_nothing(load_object(imported.path))
    return compile_transformation(f"{text.strip()}()" if is_factory else text, "tokenizer")


def _takes_nothing(found: object) -> bool:
    """Whether an object can be called without arguments."""
    try:
        inspect.signature(found).bind()  # type: ignore[arg-type]
    except (TypeError, ValueError):  # it needs arguments, cannot be called, or is written in C
        return False
    return True


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed the generators of PyTorch (CPU), NumPy and Python with `seed` inside the block, and restore the states of the generators after the
    block.
    """
    if seed is None:
        yield
        return
    before = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    # NumPy takes seeds of 32 bits only.
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def describe_error(error: BaseException, file: str | None) -> str:
    """Describe the error, with its line in the user's source: the line of the innermost frame in `file`. Without such a frame, name the file and line
    that raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename == file]
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{what} at line {error.lineno}"
    if inside:
        return f"{what} at line {inside[-1].lineno}: `{(inside[-1].line or '').strip()}`"
    # The first frame is the call in this module.
    return f"{what} at line {frames[-1].lineno} of {frames[-1].filename}" if len(frames) > 1 else what


def _callable(found: object, name: str) -> Callable[..., Any]:
    if not callable(found):
        raise ConfigError(f"{name} is a {type(found).__name__}, which cannot be called")
    return found


def _extras(names: tuple[str, ...], shown: str) -> dict[str, Any]:
    """Return the modules of optional packages that an expression uses."""
    found: dict[str, Any] = {}
    for name, package in EXTRAS.items():
        if name in names:
            if find_spec(package) is None:
                raise ConfigError(f"{shown} needs {package}, which is not installed: pip install {package}")
            whole = import_torchvision()
            found[name] = whole if name == package else import_module(f"{package}.{name}")
    return found
