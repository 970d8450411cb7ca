"""The safetensors file, unchanged: the default. Any tool that reads safetensors reads it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from modyn.model_storage.formats import FullModelFormat
from modyn.models.safetensors_file import Layout


class SafetensorsFullModel(FullModelFormat):
    """The file, unchanged."""

    def encode(self, safetensors: Path, encoded: Path) -> None:
        _link_or_copy(safetensors, encoded)

    def decode(self, encoded: Path, layout: Layout, safetensors: Path) -> None:
        _link_or_copy(encoded, safetensors)


def _link_or_copy(source: Path, target: Path) -> None:
    """Make a hard link, which costs nothing; a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
