"""File formats of whole models, found by id. The formats run in the service, do not import torch, and never execute the content of files."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from modyn.config.base import Section
from modyn.models.weights import Layout
from modyn.registry import Registry


class NoOptions(Section):
    """Configuration of a format without options."""


class FullModelFormat(ABC):
    """Converts the received safetensors file to the stored file, and back, in bounded memory."""

    Config: ClassVar[type[Section]] = NoOptions

    def __init__(self, config: Section) -> None:
        self.config = config

    @abstractmethod
    def encode(self, safetensors: Path, encoded: Path) -> None:
        """Write the new file `encoded`. Raises InvalidArgumentError for a dtype that the format cannot hold."""

    @abstractmethod
    def decode(self, encoded: Path, layout: Layout, safetensors: Path) -> None:
        """Write the new file `safetensors` with the same tensors. `layout`: names, dtypes and shapes from the catalogue, in `wire_order`.

        Raises CorruptStateError if `encoded` does not contain the tensors of `layout`.
        """


class SafetensorsFullModel(FullModelFormat):
    """Default format: the unchanged safetensors file, which any tool for safetensors can read."""

    def encode(self, safetensors: Path, encoded: Path) -> None:
        """Encode: link or copy the file."""
        link_or_copy(safetensors, encoded)

    def decode(self, encoded: Path, layout: Layout, safetensors: Path) -> None:
        """Decode: link or copy the file back. The content of the file is not checked here."""
        self.encode(encoded, safetensors)


def link_or_copy(source: Path, target: Path) -> None:
    """Link a file to a new name, or copy it if the file system has no hard links."""
    try:
        os.link(source, target)  # a hard link needs no space
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)


MODEL_FORMATS: Registry[type[FullModelFormat]] = Registry(
    group="modyn.model_formats",
    kind="model format",
    builtin={
        "BinaryFullModel": "modyn.model_storage.formats.binary:BinaryFullModel",
        "PyTorchFullModel": "modyn.model_storage.formats.pytorch:PyTorchFullModel",
        "SafetensorsFullModel": "modyn.model_storage.formats:SafetensorsFullModel",
    },
)
