"""Trainings that are downsampled, in both modes: models with several inputs, tokens, a label a token, regression by features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modyn.models import MODELS
from tests.support.plugins import installed
from tests.support.training import MemoryData, Outcome, small_pipeline, train_in_memory

MODES = pytest.mark.parametrize("first", [False, True], ids=["batch-then-sample", "sample-then-batch"])
WITH_EMBEDDING = {"full_grad_approximation": "LastLayerWithEmbedding", "balance": True}
BY_FEATURES: list[dict[str, Any]] = [
    {"strategy": "KcenterGreedy"},
    {"strategy": "Craig", **WITH_EMBEDDING},
    {"strategy": "GradMatch", **WITH_EMBEDDING},
    {"strategy": "Submodular", "submodular_function": "FacilityLocation"},
]
POLICIES: list[dict[str, Any]] = [
    {"strategy": "Loss"},
    {"strategy": "GradNorm"},
    {"strategy": "Uncertainty", "score_metric": "Margin"},
    {"strategy": "EL2N"},
    {"strategy": "Forgetting"},
    {"strategy": "GraNd"},
    {"strategy": "RHOLoss", "holdout_set_strategy": "Twin"},
    {"strategy": "RS2", "with_replacement": True},
    *BY_FEATURES,
]
EACH_ONCE = pytest.mark.parametrize(
    ("config", "first"),
    [
        pytest.param(
            config,
            first,
            id=f"{config['strategy']}-{'sample-then-batch' if first else 'batch-then-sample'}",
            marks=[] if number % 2 == first else pytest.mark.slow,
        )
        for number, config in enumerate(POLICIES)
        for first in (False, True)
    ],
)
"""In the gate in one mode each; `test_models_with_several_inputs_are_trained` has the other one."""

MODELS_OF_TWO = """
import torch
from torch import nn
from modyn.config.base import Section


class Pair(nn.Module):
    Config = Section

    def __init__(self, config):
        super().__init__()
        self.left, self.right = nn.Linear(2, 8), nn.Linear(4, 8)
        self.output = nn.Linear(8, 10)

    def forward(self, left, right):
        return self.output(torch.relu(self.left(left) + self.right(right)))
"""
MODELS_OF_TOKENS = """
import torch
from torch import nn
from modyn.config.base import Section


class Text(nn.Module):
    Config = Section

    def __init__(self, config):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        self.output = nn.Linear(8, 10)

    def forward(self, tokens, mask):
        found = self.encoder(self.table(tokens), src_key_padding_mask=~mask)
        return self.output((found * mask.unsqueeze(2)).mean(1))


class Tagger(nn.Module):
    Config = Section

    def __init__(self, config):
        super().__init__()
        self.table, self.output = nn.Embedding(20, 8), nn.Linear(8, 10)

    def embedding(self, tokens):
        return self.table(tokens).mean(1)

    def forward(self, tokens):
        return self.output(self.table(tokens)).transpose(1, 2)
"""
PARSER = """
def batch_parser_function(data, offsets):
    rows = torch.from_numpy(data.reshape(len(offsets) - 1, -1).view(np.float32).copy())
    tokens = (rows * 10).long().abs() % 20
    return {}
"""
BY_POSITION, BY_NAME = "(rows[:, :2], rows[:, 2:])", "{'right': rows[:, 2:], 'left': rows[:, :2]}"
MASKED = "{'tokens': tokens, 'mask': torch.arange(6) < 2 + tokens[:, :1] % 5}"


def pipeline_of(config: dict[str, Any], first: bool, **sections: Any) -> dict[str, Any]:
    downsampling = {"ratio": 30, "sample_then_batch": first, **config}
    section = {"name": "CoresetStrategy", "downsampling_config": downsampling}
    options = {"drop_last_batch": False, "epochs_per_trigger": 2, "shuffle": True}
    return small_pipeline(options, selection_strategy=section, **sections)


def trained(pipeline: dict[str, Any], folder: Path) -> Outcome:
    """Two epochs on 15 of 50 samples each, which change every weight."""
    found = train_in_memory(pipeline, MemoryData(50), folder)
    assert found.result["num_samples"] == 2 * 15
    assert found.result["downsampling"]["num_chosen"] == 2 * 15
    assert all(value.isfinite().all() for value in found.weights.values())
    assert 0 < found.result["loss"] < 30
    return found


@pytest.mark.parametrize(
    ("config", "inputs", "first"),
    [
        pytest.param(
            config,
            inputs,
            first,
            id=f"{config['strategy']}-{name}-{'sample-then-batch' if first else 'batch-then-sample'}",
            marks=[] if number % 2 != first and number // 2 % 2 == place else pytest.mark.slow,
        )
        for number, config in enumerate(POLICIES)
        for place, (name, inputs) in enumerate({"by position": BY_POSITION, "by name": BY_NAME}.items())
        for first in (False, True)
    ],
)
def test_models_with_several_inputs_are_trained(tmp_path: Path, config: dict[str, Any], inputs: str, first: bool) -> None:
    data = {"dataset_id": "fake", "batch_parser_function": PARSER.replace("{}", inputs)}
    with installed(tmp_path / "plugin", MODELS, "Pair", MODELS_OF_TWO, "Pair"):
        trained(pipeline_of(config, first, data=data, model={"id": "Pair"}), tmp_path)


@EACH_ONCE
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_models_of_masked_tokens_are_trained(tmp_path: Path, config: dict[str, Any], first: bool) -> None:
    data = {"dataset_id": "fake", "batch_parser_function": PARSER.replace("{}", MASKED)}
    with installed(tmp_path / "plugin", MODELS, "Text", MODELS_OF_TOKENS, "Text"):
        trained(pipeline_of(config, first, data=data, model={"id": "Text"}), tmp_path)


@MODES
@pytest.mark.parametrize("strategy", ["Loss", "GraNd", "KcenterGreedy"])
def test_a_label_for_each_token_is_trained_on(tmp_path: Path, strategy: str, first: bool) -> None:
    data = {
        "dataset_id": "fake",
        "batch_parser_function": PARSER.replace("{}", "tokens"),
        "label_transformer_function": "def label_transformer_function(label):\n    return torch.stack([label] * 6, -1)",
    }
    with installed(tmp_path / "plugin", MODELS, "Tagger", MODELS_OF_TOKENS, "Tagger"):
        trained(pipeline_of({"strategy": strategy}, first, data=data, model={"id": "Tagger"}), tmp_path)


@MODES
@pytest.mark.parametrize("config", BY_FEATURES, ids=lambda config: config["strategy"])
@pytest.mark.parametrize("loss", ["MSELoss", pytest.param("HuberLoss", marks=pytest.mark.slow)])
def test_a_regression_is_trained_on_what_features_choose(tmp_path: Path, loss: str, config: dict[str, Any], first: bool) -> None:
    pipeline = pipeline_of({**config, "balance": False}, first)
    pipeline["model"]["config"]["num_classes"] = 1
    pipeline["training"]["optimization_criterion"] = {"name": loss}
    pipeline["data"]["label_transformer_function"] = (
        "def label_transformer_function(label):\n    return (label.float() / 10).unsqueeze(-1)"
    )
    found = trained(pipeline, tmp_path)
    assert found.result["downsampling"]["class_shares"] == {"before": {}, "after": {}}
    assert bool(found.result["downsampling"]["weight_quantiles"]) == (config["strategy"] in ("Craig", "GradMatch"))
