"""What may stand in a pipeline as user code, checked by parsing: nothing of it is executed here.

A function is its Python source, or `package.module:name`. A transformation is a Python expression such as `transforms.Resize(32)`, or
`package.module:name` with or without literal arguments, as in `my_package.augment:Noise(0.1, seed=3)`.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

_IMPORTABLE = re.compile(r"\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*(\(.*\))?\s*", re.DOTALL)

EXTRAS = {"transforms": "torchvision", "torchvision": "torchvision"}
"""Names in transformation expressions, and the package that they need."""


@dataclass(frozen=True, slots=True)
class ImportedName:
    """`package.module:name`; `arguments` is None where no parentheses follow."""

    path: str
    arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None


def imported_name(text: str) -> ImportedName | None:
    """Parse `text` as an importable name; None if it is something else. Raises: ValueError: its arguments are not literals."""
    match = _IMPORTABLE.fullmatch(text)
    if match is None or any(keyword.iskeyword(part) for part in match[1].split(".")):
        return None
    path = f"{match[1]}:{match[2]}"
    if match[3] is None:
        return ImportedName(path)
    try:
        call = ast.parse(f"f{match[3].strip()}", mode="eval").body
        if not isinstance(call, ast.Call) or any(word.arg is None for word in call.keywords):
            raise ValueError("this is not a list of arguments")
        positional = tuple(ast.literal_eval(argument) for argument in call.args)
        named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, TypeError) as error:
        raise ValueError(f"the arguments of '{path}' must be literals such as 0.5, 'text' or [1, 2]: {error}") from error
    return ImportedName(path, (positional, named))


def check_function(text: str, name: str, num_arguments: int) -> str:
    """Return `text` if it is the source of a function `name` that takes `num_arguments`, or an importable name.

    Raises: ValueError: says what is wrong, with the line in the source.
    """
    imported = imported_name(text)
    if imported is not None:
        if imported.arguments is not None:
            raise ValueError(f"'{imported.path}' names the function itself; leave the parentheses away")
        return text
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"is neither Python source nor 'package.module:name': {error.msg} at line {error.lineno}") from error
    except ValueError as error:
        raise ValueError(f"is not Python source: {error}") from error
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    if name not in functions:
        raise ValueError(
            f"must define a function '{name}'; it defines {', '.join(functions) or 'none'}. "
            "An importable function is written 'package.module:name'"
        )
    arguments = functions[name].args
    takes = len(arguments.posonlyargs) + len(arguments.args)
    required = takes - len(arguments.defaults)
    missing = [a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None]
    if required > num_arguments or missing or (takes < num_arguments and arguments.vararg is None):
        raise ValueError(
            f"function '{name}' is called with {num_arguments} argument(s); its definition at line {functions[name].lineno} differs"
        )
    return text


def check_transformation(text: str) -> str:
    """Return `text` if it is an expression or an importable name. Raises: ValueError: says what is wrong."""
    if imported_name(text) is None:
        try:
            ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"{text!r} is neither a Python expression nor 'package.module:name': {error}") from error
    return text


def missing_extras(transformations: Iterable[str]) -> list[str]:
    """For each expression that needs a package which is not installed, what to do."""
    found = []
    for text in transformations:
        if imported_name(text) is None:
            nodes = ast.walk(ast.parse(text.strip(), mode="eval"))
            packages = {EXTRAS[node.id] for node in nodes if isinstance(node, ast.Name) and node.id in EXTRAS}
            missing = [package for package in sorted(packages) if find_spec(package) is None]
            found += [f"'{text}' needs {package}, which is not installed: pip install {package}" for package in missing]
    return found
