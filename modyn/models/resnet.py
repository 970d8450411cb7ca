"""Residual networks of 18, 50 and 152 layers (He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2015, table 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from modyn.config.base import Section

if TYPE_CHECKING:
    from torch import nn


class ResNetConfig(Section):
    """Options of every ResNet."""

    num_classes: int = Field(1000, ge=1, description="logits that come out")
    in_channels: int = Field(3, ge=1, description="1 for gray images, 3 for RGB")
    small_input: bool = Field(
        False,
        description="for images of about 32 pixels: first convolution 3×3 without stride, no pooling (section 4.2 of the paper)",
    )


class _ResNet:
    """A spec by its table row: blocks in each of the four stages, and whether a block is a bottleneck (1×1, 3×3, 1×1)."""

    Config: ClassVar[type[Section]] = ResNetConfig
    blocks: ClassVar[tuple[int, int, int, int]]
    bottleneck: ClassVar[bool]

    def __init__(self, config: ResNetConfig) -> None:
        self.config = config

    def build(self) -> nn.Module:
        """The network, with fresh weights."""
        from modyn.models.resnet_nn import ResNetNetwork

        return ResNetNetwork(self.config, self.blocks, bottleneck=self.bottleneck)


class ResNet18(_ResNet):
    """Basic blocks 2, 2, 2, 2; 11.7 million parameters at 1000 classes.

    >>> import torch
    >>> ResNet18(ResNet18.Config(num_classes=10, small_input=True)).build()(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """

    blocks = (2, 2, 2, 2)
    bottleneck = False


class ResNet50(_ResNet):
    """Bottleneck blocks 3, 4, 6, 3; 25.6 million parameters at 1000 classes."""

    blocks = (3, 4, 6, 3)
    bottleneck = True


class ResNet152(_ResNet):
    """Bottleneck blocks 3, 8, 36, 3; 60.2 million parameters at 1000 classes."""

    blocks = (3, 8, 36, 3)
    bottleneck = True
