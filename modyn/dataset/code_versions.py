"""Versions of the code that decodes and measures samples: of installed packages by number, of local source by content. Imports no torch."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from modyn.dataset.user_code import imported_packages, packages_of_source
from modyn.json_codec import json_digest
from modyn.registry import Registry
from modyn.rpc.logs import get_logger

_LIBRARIES: Final = {"PIL": "pillow"} | {
    name: name for name in ("modyn", "numpy", "simplejpeg", "torch", "torchmetrics", "torchvision")
}
"""Packages that all of it may use, each with the distribution whose version stands for its code, much of which is compiled. As installed: what a
process has imported so far is different each time."""

_MAX_FOLLOWED: Final = 2000
"""Local source files that are read for their imports; of code that reaches more, the named packages count and not what they import."""


def code_version(section: Mapping[str, Any], *registries: Registry[Any]) -> dict[str, str]:
    """Versions by package: of what all of it may use, of what installed packages register, and of what the user code in a section
    imports, by itself or through local modules. Imports by a name that is computed, and data files of packages, are not seen; where more than
    2,000 local files are reached, only what the section and the plug-ins name is, which is logged once."""
    packages = {package for text in _texts(section) for package in imported_packages(text)}
    packages |= {plugin.path.partition(":")[0].partition(".")[0] for found in registries for plugin in found.plugins.values()}
    return {name: _installed(name) for name in sorted(_LIBRARIES.values())} | _user_code(packages)


def _texts(value: object) -> Iterator[str]:
    """All texts in JSON data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


@cache
def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _user_code(packages: Set[str], *, follow: bool = True) -> dict[str, str]:
    """Versions of packages, and of all that local ones among them import, at any depth: of local source a digest, of what is installed and not
    among `packages` the version. Nothing is imported."""
    found: dict[str, str] = {}
    wanted, num_followed = set(packages), 0
    while wanted:
        name = wanted.pop()
        if name in found or name in _LIBRARIES or name in sys.stdlib_module_names:
            continue
        places = _places(name)
        needs_files = name in packages or any(map(_is_local, places))  # a large installed package has thousands
        files = _source_files(places) if needs_files else []
        is_local = any(map(_is_local, files))
        if not is_local and name not in packages:
            found[name] = ", ".join(map(_installed, _distributions().get(name, ())))
            continue
        num_followed += len(files) if is_local else 0
        if follow and num_followed > _MAX_FOLLOWED:
            _log_not_followed(frozenset(packages))
            return _user_code(packages, follow=False)
        sources = [(path, _source(path, (stat := path.stat()).st_size, stat.st_mtime_ns)) for path in files]
        found[name] = json_digest([[str(path), source.digest] for path, source in sources])
        if is_local and follow:
            wanted.update(*(source.imports for _, source in sources))
    return dict(sorted(found.items()))


@cache
def _log_not_followed(packages: frozenset[str]) -> None:
    """Log once for the same packages."""
    get_logger("dataset").warning(
        "imports_not_followed",
        packages=sorted(packages),
        reason=f"they reach more than {_MAX_FOLLOWED:,} local source files; a change of code that is not in these packages themselves leaves "
        "earlier scores and outputs in use",
    )


_INSTALLED_IN: Final = frozenset({"site-packages", "dist-packages"})
"""Folders of packages that pip has installed; others hold local ones."""


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def _is_local(path: Path) -> bool:
    return _INSTALLED_IN.isdisjoint(path.parts)


def _places(package: str) -> list[Path]:
    """The folders of a package, or the file of a module, found without importing it; empty: there are none."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module that was made by hand
        spec = None
    if spec is None:
        return []
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    return folders if folders or spec.origin is None else [Path(spec.origin)]


def _source_files(places: Sequence[Path]) -> list[Path]:
    """Args: places: of `_places`."""
    found = [[place] if place.is_file() else place.rglob("*.py") for place in places]
    return sorted(path for paths in found for path in paths if path.is_file())


@dataclass(frozen=True, slots=True)
class _Source:
    """What counts of one source file: a digest of its bytes, and the top packages that it imports."""

    digest: str
    imports: frozenset[str]


@lru_cache(maxsize=16_384)
def _source(path: Path, size: int, mtime_ns: int) -> _Source:
    content = path.read_bytes()
    return _Source(hashlib.sha256(content).hexdigest(), packages_of_source(content))
