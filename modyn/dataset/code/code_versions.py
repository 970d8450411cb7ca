"""Versions of the code that decodes and measures samples: numbers for installed packages, digests for local source. Imports no torch."""

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

from modyn.dataset.code.user_code import imported_packages, packages_of_source
from modyn.json_codec import json_digest
from modyn.registry import Registry
from modyn.rpc.logs import get_logger

_LIBRARIES: Final = {"PIL": "pillow"} | {
    name: name for name in ("modyn", "numpy", "simplejpeg", "torch", "torchmetrics", "torchvision")
}
"""Packages that any user code may use, each with the distribution whose version identifies its code. The installed version is used, whether or not
the package is imported, because the set of imported packages differs between processes.
"""

_MAX_FOLLOWED: Final = 2000
"""Largest number of local source files that are read for their imports. If code imports more files, only packages that the code names count, without
the imports of these packages."""


def code_version(section: Mapping[str, Any], *registries: Registry[Any]) -> dict[str, str]:
    """Return versions by package name: packages that any user code may use, plug-ins that installed packages register, and the imports of the user
    code in a section, direct or through local modules. Imports by a computed name and data files of packages are not included. Beyond 2,000 local
    files, only packages that the section and the plug-ins name are included. A log line reports this once."""
    packages = {package for text in _texts(section) for package in imported_packages(text)}
    packages |= {plugin.path.partition(":")[0].partition(".")[0] for found in registries for plugin in found.plugins.values()}
    return {name: _installed(name) for name in sorted(_LIBRARIES.values())} | _user_code(packages)


def _texts(value: object) -> Iterator[str]:
    """Find all texts in JSON data."""
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
    """Return versions of packages, and of all packages that local packages import, at any depth. The version of a local package, or of a package in
    `packages`, is a digest of its source. Other installed packages have their version number. Nothing is imported."""
    found: dict[str, str] = {}
    wanted, num_followed = set(packages), 0
    while wanted:
        name = wanted.pop()
        if name in found or name in _LIBRARIES or name in sys.stdlib_module_names:
            continue
        places = _places(name)
        needs_files = name in packages or any(map(_is_local, places))  # A large installed package has thousands.
        files = _source_files(places) if needs_files else []
        is_local = any(map(_is_local, files))
        # Only local packages are followed, because installed packages change only with their version.
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
    """Log a warning once for the same packages."""
    get_logger("dataset").warning(
        "imports_not_followed",
        packages=sorted(packages),
        reason=f"they reach more than {_MAX_FOLLOWED:,} local source files; a change of code that is not in these packages themselves leaves "
        "earlier scores and outputs in use",
    )


_INSTALLED_IN: Final = frozenset({"site-packages", "dist-packages"})
"""Folders of packages that pip has installed. Other folders contain local packages."""


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def _is_local(path: Path) -> bool:
    return _INSTALLED_IN.isdisjoint(path.parts)


def _places(package: str) -> list[Path]:
    """Find the folders of a package, or the file of a module, without an import; empty: there are none."""
    try:
        spec = find_spec(package)
    except ValueError:  # The module was made at run time.
        spec = None
    if spec is None:
        return []
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    return folders if folders or spec.origin is None else [Path(spec.origin)]


def _source_files(places: Sequence[Path]) -> list[Path]:
    """List the source files of a package. Args: places: result of `_places`."""
    found = [[place] if place.is_file() else place.rglob("*.py") for place in places]
    return sorted(path for paths in found for path in paths if path.is_file())


@dataclass(frozen=True, slots=True)
class _Source:
    """A source file: a digest of its bytes, and the top packages that it imports."""

    digest: str
    imports: frozenset[str]


@lru_cache(maxsize=16_384)
def _source(path: Path, size: int, mtime_ns: int) -> _Source:
    content = path.read_bytes()
    return _Source(hashlib.sha256(content).hexdigest(), packages_of_source(content))
