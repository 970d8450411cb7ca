"""Installed packages that register plug-ins, as pip would leave them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modyn.registry import Registry


def write_metadata(folder: Path, name: str, entry_points: Mapping[str, Mapping[str, str]], version: str = "1.0") -> None:
    """Make `folder` one that has the package `name`. Args: entry_points: by group and id, `module:object`."""
    information = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = [[f"[{group}]", *(f"{id_} = {path}" for id_, path in ids.items())] for group, ids in entry_points.items()]
    (information / "entry_points.txt").write_text("\n".join(line for group in groups for line in group))


@contextmanager
def installed(folder: Path, registry: Registry[Any], id_: str, source: str, name: str) -> Iterator[None]:
    """A package in the new folder `folder` with one module of `source`, whose object `name` is registered as `id_` inside the block."""
    module = f"plugin_{id_.lower()}"
    write_metadata(folder, module, {registry.group: {id_: f"{module}:{name}"}})
    (folder / f"{module}.py").write_text(source)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    registry.__dict__.pop("plugins", None)
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(module, None)
        registry.__dict__.pop("plugins", None)
