"""Models of figure gpu. Their inputs are what the parsers of the records and of the images return."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from benchmark.data_path.records import FEATURES

NUM_DENSE = 13
"""Numbers of a click of Criteo. The other features of a record stand for categories."""
_TABLE_ROWS, _WIDTH = 2**20, 128


def _perceptron(*widths: int) -> nn.Sequential:
    """Return linear layers with ReLU after each but the last."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Tabular(nn.Module):
    """A multilayer perceptron over all features of a record."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = _perceptron(FEATURES, 1024, 1024, 512, 2)

    def forward(self, x: Tensor) -> Tensor:
        """x float32 (n, FEATURES) → logits (n, 2)."""
        logits: Tensor = self.layers(x)
        return logits


class DLRM(nn.Module):
    """The recommendation model of the paper's Criteo experiments, in the sizes of MLPerf: two perceptrons, one table of embeddings for each category,
    and the dot products of all pairs of embeddings. The bits of a number, modulo the rows of a table, are its category."""

    mixed = True
    firsts: Tensor
    pairs: Tensor

    def __init__(self) -> None:
        super().__init__()
        num_tables = FEATURES - NUM_DENSE
        self.bottom = nn.Sequential(_perceptron(NUM_DENSE, 512, 256, _WIDTH), nn.ReLU())
        self.tables = nn.Embedding(num_tables * _TABLE_ROWS, _WIDTH, sparse=True)
        pairs = (num_tables + 1) * num_tables // 2
        self.top = _perceptron(_WIDTH + pairs, 1024, 1024, 512, 256, 2)
        self.register_buffer("firsts", torch.arange(num_tables) * _TABLE_ROWS, persistent=False)
        self.register_buffer("pairs", torch.tril_indices(num_tables + 1, num_tables + 1, offset=-1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x float32 (n, FEATURES) → logits (n, 2)."""
        dense = self.bottom(x[:, :NUM_DENSE])
        categories = x[:, NUM_DENSE:].contiguous().view(torch.int32).bitwise_and(_TABLE_ROWS - 1)
        embedded = self.tables(categories + self.firsts).to(dense.dtype)
        vectors = torch.cat([dense[:, None], embedded], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        logits: Tensor = self.top(torch.cat([dense, products], dim=1))
        return logits


class ResNet50(nn.Module):
    """ResNet50 of torchvision over images of bytes, which it turns into numbers from -1 to 1."""

    mixed = True

    def __init__(self) -> None:
        from torchvision.models import resnet50

        super().__init__()
        self.network = resnet50(num_classes=10).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        """x uint8 (n, height, width, 3) → logits (n, 10)."""
        logits: Tensor = self.network(x.permute(0, 3, 1, 2).float().div_(127.5).sub_(1))
        return logits


MODELS: dict[str, type[nn.Module]] = {"tabular": Tabular, "DLRM": DLRM, "ResNet50": ResNet50}
