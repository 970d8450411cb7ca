"""Generate the reference of the Python interface from signatures and docstrings of source files. The module does not import these files."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parent.parent

_PUBLIC: Final = (
    ("modyn", "client.py", ("Client",)),
    ("modyn.dataset", "dataset/loader.py", ("OnlineDataset", "BatchLoader")),
    ("modyn.dataset", "dataset/key_loader.py", ("load_keys",)),
    ("modyn.dataset", "dataset/batch.py", ("Batch", "on_device")),
    ("modyn.errors", "errors.py", ()),
)
"""Public names. Each entry has the module from which users import the names, the file that defines them, and the names (empty: all names)."""

_BASES: Final = {"Connections": "connections.py", "ResultTables": "result_tables.py", "ModelAccess": "model_access.py"}
"""Files of base classes, whose methods the reference lists first."""

_SECTIONS: Final = re.compile(r"^\n?(Args|Returns|Raises): ", re.MULTILINE)
"""Beginnings of lines that become paragraphs, because Markdown joins lines."""


def api_reference() -> Iterator[str]:
    """Yield the Markdown lines of all public classes and functions."""
    for module, file, names in _PUBLIC:
        tree = ast.parse((_PACKAGE / file).read_text(encoding="utf-8"))
        found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        for name in names or [name for name in found if not name.startswith("_")]:
            yield from _definition(found[name], f"{module}.")


def _definition(node: ast.ClassDef | ast.FunctionDef, prefix: str) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        yield f"## `{prefix}{node.name}`\n"
        yield from _described(node, _signature(node))
        return
    functions = [inner for inner in [*_inherited(node), *node.body] if isinstance(inner, ast.FunctionDef)]
    made_with = next((_signature(inner) for inner in reversed(functions) if inner.name == "__init__"), node.name)
    yield f"## `{prefix}{node.name}`\n"
    yield from _described(node, made_with.replace("__init__", node.name).removesuffix(" -> None"))
    for inner in functions:
        if not inner.name.startswith("_") and ast.get_docstring(inner):
            yield f"### `{node.name}.{inner.name}`\n"
            yield from _described(inner, inner.name if _is_property(inner) else _signature(inner))


def _inherited(node: ast.ClassDef) -> Iterator[ast.stmt]:
    for name in [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in _BASES]:
        tree = ast.parse((_PACKAGE / _BASES[name]).read_text(encoding="utf-8"))
        base = next(found for found in tree.body if isinstance(found, ast.ClassDef) and found.name == name)
        yield from _inherited(base)
        yield from base.body


def _described(node: ast.ClassDef | ast.FunctionDef, signature: str) -> Iterator[str]:
    yield f"```python\n{signature}\n```\n"
    if text := ast.get_docstring(node):
        yield _SECTIONS.sub(r"\n**\1:** ", inspect.cleandoc(text)) + "\n"


def _signature(node: ast.FunctionDef) -> str:
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({arguments}){returns}"


def _is_property(node: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
