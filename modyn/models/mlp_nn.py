"""The network of `mlp`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class MLPNetwork(nn.Module):
    """`hidden`: linear layers with ReLU and dropout; `output`: the last linear layer."""

    def __init__(self, input_size: int, hidden_sizes: Sequence[int], num_classes: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = input_size
        for hidden_size in hidden_sizes:
            layers += [nn.Linear(width, hidden_size), nn.ReLU(), nn.Dropout(dropout)]
            width = hidden_size
        self.hidden = nn.Sequential(*layers)
        self.output = nn.Linear(width, num_classes)

    @property
    def last_layer(self) -> nn.Linear:
        """The layer that turns an embedding into logits."""
        return self.output

    def embedding(self, x: Tensor) -> Tensor:
        """x (batch, ...) → (batch, width of the last hidden layer)."""
        found: Tensor = self.hidden(x.flatten(1))
        return found

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, ...) with `input_size` values a sample → logits (batch, num_classes)."""
        logits: Tensor = self.output(self.embedding(x))
        return logits
