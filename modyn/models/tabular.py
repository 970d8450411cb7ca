"""Network of TabularMLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from modyn.models.category_embeddings import ColumnNetwork
from modyn.models.networks import perceptron
from modyn.models.specs import TabularMLPConfig


class TabularMLPNetwork(ColumnNetwork):
    """A multilayer perceptron. `hidden`: linear layers with ReLU and dropout; `output`: the last linear layer."""

    def __init__(self, config: TabularMLPConfig) -> None:
        super().__init__(config)
        widths = (config.num_dense + len(config.num_categories) * config.embedding_size, *config.hidden_sizes)
        self.hidden = perceptron(widths, config.dropout)
        self.output = nn.Linear(widths[-1], config.num_classes)

    def combined(self, dense: Tensor | None, vectors: Tensor | None) -> Tensor:
        """See `ColumnNetwork.combined`."""
        parts = [part.flatten(1) for part in (dense, vectors) if part is not None]
        found: Tensor = self.hidden(torch.cat(parts, dim=1))
        return found
