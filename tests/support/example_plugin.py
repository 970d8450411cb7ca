"""The example plug-in as pip leaves it in a folder, without pip: `tests/examples/test_plugin.py` compares the two."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[2] / "examples" / "plugin"


def plug_in(folder: Path) -> None:
    """Makes `folder` one that brings it."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    shutil.copytree(SOURCE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
    groups = [[f"[{group}]", *(f"{id_} = {path}" for id_, path in ids.items())] for group, ids in project["entry-points"].items()]
    (info / "entry_points.txt").write_text("\n".join(line for group in groups for line in group))
