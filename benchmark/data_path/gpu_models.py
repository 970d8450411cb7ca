"""Models of figure gpu. Their inputs are what the parsers of the records and of the images return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from benchmark.data_path.records import FEATURES
from modyn.models.weights import build_model

NUM_DENSE: Final = 13
"""Numbers of a click of Criteo. The other features of a record stand for categories."""
_TABLE_ROWS: Final = 2**20


def tabular() -> nn.Module:
    """Return a multilayer perceptron over all features of a record."""
    return build_model("TabularMLP", {"num_dense": FEATURES, "hidden_sizes": [1024, 1024, 512], "num_classes": 2})


class DLRM(nn.Module):
    """The recommendation model of the paper's Criteo experiments, in the sizes of MLPerf. The bits of a number are its category."""

    mixed = True

    def __init__(self) -> None:
        super().__init__()
        tables = [_TABLE_ROWS] * (FEATURES - NUM_DENSE)
        options = {"num_categories": tables, "num_dense": NUM_DENSE, "num_classes": 2, "sparse_gradients": True}
        self.network = build_model("DLRM", options)

    def forward(self, x: Tensor) -> Tensor:
        """x float32 (n, FEATURES) → logits (n, 2)."""
        logits: Tensor = self.network(x[:, :NUM_DENSE], x[:, NUM_DENSE:].contiguous().view(torch.int32))
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


MODELS: Final[dict[str, Callable[[], nn.Module]]] = {"tabular": tabular, "DLRM": DLRM, "ResNet50": ResNet50}
