"""Models of tables, images and texts, each with a small configuration, and inputs made of the six numbers of a sample of `MemoryData`."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modyn.models.weights import build_model
from tests.support.training import NUM_CLASSES, features_of

TABLE = "{'dense': rows[:, :3], 'categories': (rows[:, 3:] * 4).long()}"
TABLES: dict[str, Any] = {"num_categories": [5, 7, 3], "num_dense": 3, "num_classes": NUM_CLASSES, "embedding_size": 4}
IMAGE = "rows[:, :{}, None, None] + torch.linspace(-1, 1, 1024).reshape(32, 32)"


@dataclass(frozen=True)
class Use:
    """A model and its inputs. inputs: expression over the six numbers of each sample, `rows`. exported: the inputs of an export."""

    id: str
    config: dict[str, Any]
    inputs: str
    exported: tuple[str, ...]

    @property
    def model(self) -> dict[str, Any]:
        return {"id": self.id, "config": self.config}

    @property
    def data(self) -> dict[str, Any]:
        parser = "def batch_parser_function(data, offsets):\n    rows = {}\n    return {}\n"
        rows = "torch.from_numpy(data.reshape(len(offsets) - 1, -1).view(np.float32).copy())"
        return {"dataset_id": "fake", "batch_parser_function": parser.format(rows, self.inputs)}

    def batch(self, keys: range) -> Any:
        """The inputs of samples, made without Modyn."""
        rows = torch.from_numpy(np.stack([features_of(key) for key in keys]))
        return eval(self.inputs, {"rows": rows, "torch": torch})

    def build(self) -> nn.Module:
        return build_model(self.id, self.config)


USES = [
    Use("TabularMLP", {**TABLES, "hidden_sizes": [16], "dropout": 0.2}, TABLE, ("dense=3", "categories=3:int64")),
    Use("DLRM", {**TABLES, "bottom_sizes": [8], "top_sizes": [16, 8]}, TABLE, ("dense=3", "categories=3:int64")),
    Use("YearbookNet", {"num_classes": NUM_CLASSES}, IMAGE.format(1), ("1,32,32",)),
    Use("FmowNet", {"num_classes": NUM_CLASSES}, IMAGE.format(3), ("3,32,32",)),
    Use(
        "TextClassifier",
        {"vocabulary_size": 50, "num_classes": NUM_CLASSES, "dropout": 0.1},
        "{'input_ids': (rows * 10).long().clamp(0, 49)}",
        ("input_ids=6:int64",),
    ),
]
NO_TORCHVISION = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
EACH = pytest.mark.parametrize(
    "use", [pytest.param(use, id=use.id, marks=[NO_TORCHVISION, pytest.mark.slow] if use.id == "FmowNet" else []) for use in USES]
)
