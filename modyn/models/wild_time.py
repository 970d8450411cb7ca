"""Networks of YearbookNet and FmowNet, the baselines of Wild-Time (Yao et al.: Wild-Time, 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from modyn.models.networks import EmbeddingNetwork
from modyn.models.specs import FmowNetConfig, YearbookNetConfig
from modyn.models.torchvision_import import import_torchvision


class YearbookNetwork(EmbeddingNetwork):
    """`features`: four blocks of convolution, batch normalisation, ReLU and pooling; `output`: the last layer."""

    def __init__(self, config: YearbookNetConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for in_channels in (config.in_channels, 32, 32, 32):
            layers += [nn.Conv2d(in_channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.output = nn.Linear(32, config.num_classes)

    def embedding(self, x: Tensor) -> Tensor:
        """x (batch, in_channels, 32, 32) → (batch, 32): the mean over the image."""
        found: Tensor = self.features(x)
        return found.mean(dim=(2, 3))


class FmowNetwork(EmbeddingNetwork):
    """DenseNet-121 of torchvision, with torchvision's names of weights."""

    def __init__(self, config: FmowNetConfig) -> None:
        super().__init__()
        network = import_torchvision().models.densenet121(num_classes=config.num_classes)
        self.features, self.classifier = network.features, network.classifier

    @property
    def last_layer(self) -> nn.Linear:
        """Return the layer that turns an embedding into logits."""
        found: nn.Linear = self.classifier
        return found

    def embedding(self, x: Tensor) -> Tensor:
        """x (batch, 3, height, width) → (batch, 1024): the mean over the image."""
        return torch.relu(self.features(x)).mean(dim=(2, 3))
