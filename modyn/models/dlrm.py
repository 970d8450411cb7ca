"""Network of DLRM."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from modyn.models.category_embeddings import ColumnNetwork
from modyn.models.networks import perceptron
from modyn.models.specs import DLRMConfig


class DLRMNetwork(ColumnNetwork):
    """The model of Naumov et al. (Deep Learning Recommendation Model, 2019). `bottom_model`: layers for dense numbers; `embeddings`: tables of the
    columns; `top_model`: hidden layers, and the last layer.
    """

    pairs: Tensor
    """Number of each pair i > j of v vectors in a matrix v × v, int64 (v (v - 1) / 2,)."""

    def __init__(self, config: DLRMConfig) -> None:
        super().__init__(config)
        size, num_vectors = config.embedding_size, len(config.num_categories) + 1
        self.bottom_model = perceptron((config.num_dense, *config.bottom_sizes, size))
        rows, columns = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self.register_buffer("pairs", rows * num_vectors + columns, persistent=False)
        widths = (size + len(self.pairs), *config.top_sizes)
        self.top_model = nn.Sequential(perceptron(widths), nn.Linear(widths[-1], config.num_classes))
        for module in self.modules():
            if isinstance(module, nn.Linear):  # as in the authors' implementation
                nn.init.normal_(module.weight, std=math.sqrt(2 / (module.in_features + module.out_features)))
                nn.init.normal_(module.bias, std=math.sqrt(1 / module.out_features))

    @property
    def last_layer(self) -> nn.Linear:
        """Return the layer that turns an embedding into logits."""
        found = self.top_model[1]
        assert isinstance(found, nn.Linear)
        return found

    def combined(self, dense: Tensor | None, vectors: Tensor | None) -> Tensor:
        """See `ColumnNetwork.combined`. The top model gets the output of the bottom model, and the dot products of all pairs of vectors."""
        assert dense is not None
        assert vectors is not None
        bottom = self.bottom_model(dense)
        found: Tensor = self.top_model[0](torch.cat([bottom, self.interactions(bottom, vectors)], dim=1))
        return found

    def interactions(self, bottom: Tensor, vectors: Tensor) -> Tensor:
        """bottom (batch, size), vectors (batch, columns, size) → dot products of vectors i > j, where `bottom` is vector 0, in the order of i, then
        j: (batch, pairs)."""
        every = torch.cat([bottom.unsqueeze(1), vectors.to(bottom.dtype)], dim=1)
        return torch.bmm(every, every.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
