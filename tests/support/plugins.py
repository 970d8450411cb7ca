"""An installed package that registers a plug-in, as pip would leave it: for tests of what users bring."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modyn.registry import Registry


@contextmanager
def installed(folder: Path, registry: Registry[Any], id_: str, source: str, name: str) -> Iterator[None]:
    """A package in the new folder `folder` with one module of `source`, whose object `name` is registered as `id_` inside the block."""
    module = f"plugin_{id_.lower()}"
    information = folder / f"{module}-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{registry.group}]\n{id_} = {module}:{name}\n")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    registry.__dict__.pop("plugins", None)
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(module, None)
        registry.__dict__.pop("plugins", None)
