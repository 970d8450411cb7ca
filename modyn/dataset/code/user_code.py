"""Checks the forms of user code in a pipeline. The code is parsed, not executed.

A function is its Python source, or `package.module:name`. A transformation is a Python expression such as `transforms.Resize(32)`, or
`package.module:name` with or without literal arguments, as in `my_package.augment:Noise(0.1, seed=3)`.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_IMPORTABLE = re.compile(r"\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*(\(.*\))?\s*", re.DOTALL)

GENERATOR = "generator"
"""Name of the parameter that receives a seeded torch.Generator."""

_DRAWS = re.compile(
    r"(?:.*_)?u?[Rr]and(?:om|n|int|perm|_|$|[A-Z]).*|bernoulli_?|multinomial|normal_?|uniform_?|exponential_|poisson|cauchy_|geometric_|"
    r"log_normal_|(?:alpha_)?dropout\d?d?"
)
"""Names in NumPy, PyTorch and Python that draw random numbers."""

EXTRAS = {"transforms": "torchvision", "torchvision": "torchvision"}
"""Names in transformation expressions, each with the package that it needs."""


@dataclass(frozen=True, slots=True)
class ImportedName:
    """`package.module:name`; `arguments` is None if no parentheses follow."""

    path: str
    arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None


def imported_name(text: str) -> ImportedName | None:
    """Parse `text` as an importable name; return None if the text is something else. Raises: ValueError: the arguments in the text are not
    literals.
    """
    match = _IMPORTABLE.fullmatch(text)
    if match is None or any(keyword.iskeyword(part) for part in match[1].split(".")):
        return None
    path = f"{match[1]}:{match[2]}"
    if match[3] is None:
        return ImportedName(path)
    try:
        # To parse the arguments, put them into a call of a function `f`.
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

    Raises: ValueError: the text is invalid. The message names the problem and the line.
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
    positional = [*arguments.posonlyargs, *arguments.args]
    optional = {a.arg for a in positional[len(positional) - len(arguments.defaults) :]}
    by_position = [a.arg for a in positional if a.arg != GENERATOR]  # this argument is passed by name
    takes, required = len(by_position), sum(name not in optional for name in by_position)
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    missing = [a.arg for a, default in keywords if default is None and a.arg != GENERATOR]
    if required > num_arguments or missing or (takes < num_arguments and arguments.vararg is None):
        raise ValueError(
            f"function '{name}' is called with {num_arguments} argument(s); its definition at line {functions[name].lineno} differs"
        )
    return text


def may_draw(text: str) -> bool:
    """Whether a function may draw from the global random generators. The check finds code that should be declared in `random_transformations`.

    A function without a parameter `generator` is searched for names that draw. Draws in other modules that the function uses are not detected.

    Args: text: text in the pipeline. The module of an importable function is parsed, not imported. If there is no source, the result is False.
    """
    imported = imported_name(text)
    if imported is None:
        trees: list[ast.AST] = list(ast.parse(text.strip()).body)
    else:
        module, _, attribute = imported.path.partition(":")
        trees = _definitions(module, attribute.split(".")[0])
    # A function that takes a generator draws from this generator, not from the global generators.
    if _take_generator(trees):
        return False
    return any(_DRAWS.fullmatch(name) for tree in trees for node in ast.walk(tree) for name in _names(node))


def takes_generator(text: str) -> bool:
    """Whether a function takes a `generator`, according to its source. Args: text: as for `may_draw`."""
    imported = imported_name(text)
    if imported is None:
        return _take_generator(list(ast.parse(text.strip()).body))
    module, _, attribute = imported.path.partition(":")
    return _take_generator(_definitions(module, attribute.split(".")[0]))


def has_source(text: str) -> bool:
    """Whether the source of a function is known, because the source is in the pipeline, or the module of the function has a source file. Args: text:
    as for `may_draw`.
    """
    imported = imported_name(text)
    return imported is None or _source(imported.path.partition(":")[0]) is not None


def _take_generator(trees: Iterable[ast.AST]) -> bool:
    functions = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return any(a.arg == GENERATOR for node in functions for a in (*node.args.args, *node.args.kwonlyargs))


@lru_cache(maxsize=1024)
def imported_packages(text: str) -> frozenset[str]:
    r"""Return the top packages that the text of a function or transformation imports; empty if the text is not code.

    >>> sorted(imported_packages("def f(x):\n    import scipy.special\n    from my_package import g"))
    ['my_package', 'scipy']
    >>> imported_packages("my_package.augment:Noise(0.1)")
    frozenset({'my_package'})
    """
    try:
        imported = imported_name(text)
        nodes = [] if imported is not None else list(ast.walk(ast.parse(text.strip())))
    except (SyntaxError, ValueError):
        return frozenset()
    if imported is not None:
        return frozenset([imported.path.partition(":")[0].partition(".")[0]])
    return _imports(nodes)


def packages_of_source(source: bytes) -> frozenset[str]:
    r"""Return the top packages that a source file imports anywhere, without relative imports; empty if the file is not valid Python.

    >>> sorted(packages_of_source(b"import a.b, c\nfrom . import d\ndef f():\n    from e.f import g"))
    ['a', 'c', 'e']
    """
    try:
        return _imports(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # MemoryError: the source is nested too deeply for the parser.
        return frozenset()


def _imports(nodes: Iterable[ast.AST]) -> frozenset[str]:
    paths: list[str] = []
    for node in nodes:
        match node:
            case ast.Import(names=names):
                paths += [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                paths.append(module)
    return frozenset(path.partition(".")[0] for path in paths)


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return [name]
        case ast.ImportFrom(module=module, names=names):
            return [*(module or "").split("."), *(alias.name for alias in names)]
        case ast.Import(names=names):
            return [part for alias in names for part in alias.name.split(".")]
    return []


def _definitions(module: str, name: str) -> list[ast.AST]:
    """Find the definition of `name` in a module, and all definitions of this module that it uses, at any depth. Empty if there is no source."""
    source = _source(module)
    if source is None:
        return []
    defined: dict[str, ast.AST] = {}
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=known) | ast.ClassDef(name=known):
                defined[known] = node
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                defined |= {(alias.asname or alias.name).split(".")[0]: node for alias in names}
            case ast.Assign(targets=targets):
                defined |= {part: node for target in targets for inner in ast.walk(target) for part in _names(inner)}
            case ast.AnnAssign(target=ast.Name(id=known)):
                defined[known] = node
    # Names are followed to any depth, because the function may call another function that draws.
    found: dict[str, ast.AST] = {}
    wanted = [name]
    while wanted:
        if (name := wanted.pop()) in defined and name not in found:
            found[name] = defined[name]
            wanted += [part for node in ast.walk(defined[name]) for part in _names(node)]
    return list(found.values())


def _source(module: str) -> str | None:
    """Find the source of a module without importing its package."""
    # Find only the top package, because `find_spec` of a submodule would import the package.
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except ValueError:
        return None
    if spec is None:
        return None
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    files = [place.joinpath(*rest) for place in places] if rest else [Path(spec.origin or "")]
    candidates = [path for file in files for path in (file, file.with_suffix(".py"), file / "__init__.py")]
    path = next((path for path in candidates if path.suffix == ".py" and path.is_file()), None)
    return None if path is None else path.read_text(encoding="utf-8")


def check_transformation(text: str) -> str:
    """Return `text` if it is an expression or an importable name. Raises: ValueError: the text is neither; the message names the problem."""
    if imported_name(text) is None:
        try:
            ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"{text!r} is neither a Python expression nor 'package.module:name': {error}") from error
    return text


def missing_extras(transformations: Iterable[str]) -> list[str]:
    """List, for each expression whose package is not installed, what the user can do.

    Args: transformations: expressions, as in `transformations` of a `data` section.
    """
    found = []
    for text in transformations:
        if imported_name(text) is None:
            nodes = ast.walk(ast.parse(text.strip(), mode="eval"))
            packages = {EXTRAS[node.id] for node in nodes if isinstance(node, ast.Name) and node.id in EXTRAS}
            missing = [package for package in sorted(packages) if find_spec(package) is None]
            found += [f"'{text}' needs {package}, which is not installed: pip install {package}" for package in missing]
    return found
