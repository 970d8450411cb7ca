"""An example of your own model: an `nn.Module` with a `Config`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from modyn.config.base import Section


class TinyConvNetConfig(Section):
    """One convolution and one linear layer, for gray images."""

    num_classes: int = Field(ge=1, description="number of output logits")
    channels: int = Field(4, ge=1, description="channels of the convolution")


class TinyConvNet(nn.Module):
    """Return logits (batch, num_classes) for images x (batch, 1, height, width).

    >>> import torch
    >>> TinyConvNet(TinyConvNetConfig(num_classes=3))(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 3])
    """

    Config: ClassVar[type[Section]] = TinyConvNetConfig

    def __init__(self, config: TinyConvNetConfig) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, config.channels, kernel_size=3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.head = nn.Linear(config.channels * 16, config.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.pool(self.convolution(x).relu())
        logits: Tensor = self.head(features.flatten(1))
        return logits
