"""A small convolutional network for small images, such as digits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from modyn.config.base import Section

if TYPE_CHECKING:
    from torch import nn


class SmallCNNConfig(Section):
    """Options of SmallCNN."""

    in_channels: int = Field(1, ge=1, description="1 for gray images, 3 for RGB")
    num_classes: int = Field(10, ge=1, description="logits that come out")
    image_size: int = Field(28, ge=4, description="height and width of the images, in pixels")
    width: int = Field(16, ge=1, description="channels of the first convolution; the second has twice as many")
    embedding_size: int = Field(64, ge=1, description="values in the embedding, before the last layer")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of embedding values set to 0 while training")


class SmallCNN:
    """Two 3×3 convolutions, each with ReLU and 2×2 max pooling, a hidden linear layer, a last linear layer (after LeNet-5, 1998).

    >>> import torch
    >>> SmallCNN(SmallCNN.Config(image_size=8)).build()(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 10])
    """

    Config: ClassVar[type[Section]] = SmallCNNConfig

    def __init__(self, config: SmallCNNConfig) -> None:
        self.config = config

    def build(self) -> nn.Module:
        """The network, with fresh weights."""
        from modyn.models.small_cnn_nn import SmallCNNNetwork

        return SmallCNNNetwork(self.config)
