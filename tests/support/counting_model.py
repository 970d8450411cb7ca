"""A model that counts how often it was trained on each sample, as a plug-in: workers find it in a folder on their PYTHONPATH."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import torch
from pydantic import Field
from torch import nn

from modyn.config.base import Section

NAME: Final = "CountingModel"
NUM_CLASSES: Final = 4


class CountingConfig(Section):
    """How many samples there are."""

    num_samples: int = Field(ge=1, description="samples, which are numbered from 0 on")


class CountingModel(nn.Module):
    """Takes the number of each sample, and what was drawn for it in [0, 1) beside it: (n, 1)."""

    Config = CountingConfig

    def __init__(self, config: CountingConfig) -> None:
        super().__init__()
        self.served: torch.Tensor
        self.register_buffer("served", torch.zeros(config.num_samples, dtype=torch.int64))
        self.last = nn.Linear(1, NUM_CLASSES)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        num_samples = len(self.served)
        if self.training:
            self.served += torch.bincount(numbers[:, 0].long(), minlength=num_samples)
        return self.last(numbers.float() / num_samples)  # type: ignore[no-any-return]


def plug_in(folder: Path) -> None:
    """Makes `folder` one that brings a copy: of the package that holds a plug-in, services read all files at every check."""
    shutil.copy(__file__, folder / "counting_model.py")
    info = folder / "counting_model-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting-model\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[modyn.models]\n{NAME} = counting_model:{NAME}\n")
