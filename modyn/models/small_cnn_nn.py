"""The network of `small_cnn`."""

from __future__ import annotations

from torch import Tensor, nn

from modyn.models.small_cnn import SmallCNNConfig


class SmallCNNNetwork(nn.Module):
    """`features`: the convolutions; `hidden`: the embedding; `output`: the last layer."""

    def __init__(self, config: SmallCNNConfig) -> None:
        super().__init__()
        width, pooled_size = config.width, config.image_size // 4
        self.features = nn.Sequential(
            nn.Conv2d(config.in_channels, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.hidden = nn.Sequential(
            nn.Flatten(), nn.Linear(2 * width * pooled_size**2, config.embedding_size), nn.ReLU(), nn.Dropout(config.dropout)
        )
        self.output = nn.Linear(config.embedding_size, config.num_classes)

    @property
    def last_layer(self) -> nn.Linear:
        """The layer that turns an embedding into logits."""
        return self.output

    def embedding(self, x: Tensor) -> Tensor:
        """x (batch, in_channels, image_size, image_size) → (batch, embedding_size)."""
        found: Tensor = self.hidden(self.features(x))
        return found

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, in_channels, image_size, image_size) → logits (batch, num_classes)."""
        logits: Tensor = self.output(self.embedding(x))
        return logits
