"""Every registered model passes the same checks; residual networks have the published numbers of parameters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from modyn.config.base import Problem
from modyn.errors import ConfigError
from modyn.models import MODELS, check_model
from modyn.models.calls import has_last_layer
from modyn.models.weights import build_model
from modyn.preprocessing import Preprocessing

torch.set_num_threads(1)

SMALL: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "LogisticRegression": ({"input_size": 64, "num_classes": 7}, (1, 8, 8)),
    "MLP": ({"input_size": 64, "hidden_sizes": [12, 9], "num_classes": 7, "dropout": 0.5}, (64,)),
    "ResNet152": ({"num_classes": 7, "in_channels": 1, "small_input": True}, (1, 8, 8)),
    "ResNet18": ({"num_classes": 7, "in_channels": 1, "small_input": True}, (1, 8, 8)),
    "ResNet50": ({"num_classes": 7}, (3, 40, 40)),
    "SmallCNN": ({"num_classes": 7, "image_size": 9, "in_channels": 3, "dropout": 0.5}, (3, 9, 9)),
    "TabularMLP": ({"num_dense": 64, "hidden_sizes": [12, 9], "num_classes": 7, "dropout": 0.5}, (64,)),
    "YearbookNet": ({"num_classes": 7, "in_channels": 3}, (3, 32, 32)),
}
"""A small configuration of each, and the shape of a sample for it."""
EACH = [pytest.param(id_, marks=[pytest.mark.slow] if id_ == "ResNet152" else []) for id_ in SMALL]
"""ResNet50 keeps what ResNet152 does: the same blocks, fewer of them."""


def small(id_: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build_model(id_, SMALL[id_][0])


def samples(id_: str, count: int = 4) -> torch.Tensor:
    return torch.randn(count, *SMALL[id_][1], generator=torch.Generator().manual_seed(1))


def test_registry_is_the_explicit_list() -> None:
    ours = [id_ for id_ in MODELS if MODELS.plugins[id_].distribution == "modyn"]
    assert ours == sorted([*SMALL, "DLRM", "FmowNet", "SparseLogisticRegression", "TextClassifier"])


def test_a_sparse_regression_is_a_dense_one_over_zeros_and_ones() -> None:
    network: Any = build_model("SparseLogisticRegression", {"num_features": 9, "num_classes": 2})
    dense = torch.nn.Linear(9, 2)
    with torch.no_grad():
        network.weight.weight[:9] = dense.weight.T
        network.bias.copy_(dense.bias)
    x = torch.tensor([[0, 8, -1], [3, 3, 5], [-1, -7, -1]])
    ones = torch.zeros(3, 10).scatter_add_(1, x.masked_fill(x < 0, 9), torch.ones(3, 3))[:, :9]
    torch.testing.assert_close(network(x), dense(ones))
    torch.autograd.backward([network(x).sum(), dense(ones).sum()])
    assert dense.weight.grad is not None
    torch.testing.assert_close(network.weight.weight.grad[:9], dense.weight.grad.T)
    assert not network.weight.weight.grad[9].any()
    with pytest.raises(RuntimeError, match="idx"):
        network(torch.tensor([[10]]))


def test_a_sparse_regression_takes_what_preprocessing_makes() -> None:
    section = {
        "columns": {"age": "number", "site": "category"},
        "components": [{"id": "HashedEncoder", "max_categories": 3, "num_buckets": 2}],
    }
    features = Preprocessing(section).update_and_transform({"age": [1.0, 2.5, -3.0], "site": ["a", "b", "a"]})
    network: Any = build_model(
        "SparseLogisticRegression", {"num_features": features.num_sparse, "num_classes": 2, "num_dense": 1}
    )
    linear = torch.nn.Linear(1 + features.num_sparse, 2)
    with torch.no_grad():
        network.dense.copy_(linear.weight[:, :1].T)
        network.weight.weight[:-1] = linear.weight[:, 1:].T
        network.bias.copy_(linear.bias)
    inputs = features.to_torch()
    assert isinstance(inputs, dict)
    torch.testing.assert_close(network(**inputs), linear(torch.from_numpy(features.to_dense())))
    assert not has_last_layer(network)
    inputs.pop("dense")
    with pytest.raises(ConfigError, match="samples have 0 dense features, but the model takes 1"):
        network(**inputs)


@pytest.mark.parametrize("id_", EACH)
def test_logits_are_last_layer_of_embedding(id_: str) -> None:
    network, x = small(id_).eval(), samples(id_)
    before = x.clone()
    logits, embedding = network(x), network.embedding(x)
    assert logits.shape == (4, 7)
    assert embedding.shape == (4, network.last_layer.in_features)
    assert torch.equal(network.last_layer(embedding), logits)
    assert torch.equal(x, before)
    assert network(x[:0]).shape == (0, 7)


@pytest.mark.parametrize(
    "id_", [pytest.param(id_, marks=[pytest.mark.slow] if id_ in ("ResNet50", "ResNet152") else []) for id_ in SMALL]
)
def test_same_seed_gives_the_same_weights(id_: str) -> None:
    """The gate tests only the smallest residual network, because all residual networks are built in the same way."""
    network, other = small(id_), small(id_)
    assert all(torch.equal(a, b) for a, b in zip(network.state_dict().values(), other.state_dict().values(), strict=True))
    assert not torch.equal(small(id_, seed=1).last_layer.weight, network.last_layer.weight)


@pytest.mark.parametrize("id_", EACH)
def test_gradients_reach_all_weights(id_: str) -> None:
    network = small(id_)
    torch.autograd.backward(network(samples(id_)).square().sum())
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("id_", ["LogisticRegression", "MLP", "SmallCNN", "TabularMLP"])
def test_learns_a_separable_task(id_: str) -> None:
    network, x = small(id_), samples(id_, 32)
    labels = (x.flatten(1).sum(1) > 0).long()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(network(x), labels))
        optimizer.step()
    assert (network.eval()(x).argmax(1) == labels).float().mean() > 0.9


@pytest.mark.parametrize(("id_", "parameters"), [("ResNet18", 11_689_512), ("ResNet50", 25_557_032), ("ResNet152", 60_192_808)])
def test_residual_networks_have_the_published_size(id_: str, parameters: int) -> None:
    with torch.device("meta"):
        network = build_model(id_, {})
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    names = network.state_dict()
    assert names["conv1.weight"].shape == (64, 3, 7, 7)
    assert names["fc.weight"].shape == (1000, 512 if id_ == "ResNet18" else 2048)
    shortcut = "layer2.0.downsample.0.weight"
    assert names[shortcut].shape == ((128, 64, 1, 1) if id_ == "ResNet18" else (512, 256, 1, 1))
    assert ("layer1.0.downsample.0.weight" in names) == (id_ != "ResNet18")
    assert {"bn1.running_mean", "bn1.num_batches_tracked", "layer1.0.conv1.weight", "layer4.1.bn2.bias"} <= names.keys()


def test_residual_network_halves_the_image_five_times() -> None:
    network = build_model("ResNet18", {"num_classes": 2}).eval()
    features = network.maxpool(network.conv1(torch.zeros(1, 3, 64, 64)))  # type: ignore[operator]
    assert features.shape == (1, 64, 16, 16)
    for name, size in (("layer1", 16), ("layer2", 8), ("layer3", 4), ("layer4", 2)):
        features = network.get_submodule(name)(features)
        assert features.shape[2:] == (size, size)


@pytest.mark.parametrize(
    ("id_", "config", "path", "told"),
    [
        ("ResNet8", {}, "model.id", "did you mean 'ResNet18'?"),
        ("MLP", {"input_size": 4, "num_classes": 2, "droput": 0.1}, "model.config.droput", "did you mean 'dropout'?"),
        ("MLP", {"input_size": 4, "num_classes": 2, "dropout": 1.0}, "model.config.dropout", "less than 1"),
        ("MLP", {"input_size": 4, "num_classes": 2, "hidden_sizes": [3, 0]}, "model.config.hidden_sizes.1", "0"),
        ("LogisticRegression", {"num_classes": 2}, "model.config.input_size", "required"),
        ("SmallCNN", {"image_size": 3}, "model.config.image_size", "greater than or equal to 4"),
    ],
)
def test_a_wrong_section_names_path_and_what_is_allowed(id_: str, config: dict[str, Any], path: str, told: str) -> None:
    (problem,) = check_model(id_, config)
    assert problem.path == path
    assert told in problem.message
    with pytest.raises(ConfigError, match=path if path != "model.id" else "there is no model"):
        build_model(id_, config)


def test_valid_sections_have_no_problem() -> None:
    assert [problem for id_, (config, _) in SMALL.items() for problem in check_model(id_, config)] == []


PLUGIN = """
import torch
from modyn.config.base import Section

class Config(Section):
    width: int = 2

class Toy(torch.nn.Linear):
    Config = Config

    def __init__(self, config):
        super().__init__(config.width, 3)

class Built:
    Config = Config

    def __init__(self, config):
        self.config = config

    def build(self):
        return Toy(self.config) if self.config.width > 1 else "no network"

class Declared:
    Config = Config
    network = "toy_models:Toy"

class Neither:
    Config = Config
"""

CHECK = """
from modyn.errors import ConfigError
from modyn.models import check_model
from modyn.models.weights import build_model
from modyn.preprocessing import Preprocessing
for id_, config in (("Toy", {"width": 5}), ("Toy", {"with": 5}), ("NoConfig", {}), ("Gone", {})):
    print([str(problem) for problem in check_model(id_, config)])
for id_ in ("Toy", "Built", "Declared"):
    print([*check_model(id_, {"width": 5}), tuple(build_model(id_, {"width": 5}).weight.shape)])
print([str(problem) for problem in check_model("Neither", {})])
try:
    build_model("Built", {"width": 1})
except ConfigError as error:
    print(error)"""


def test_classes_of_another_package_are_models(tmp_path: Path) -> None:
    (tmp_path / "toy_models.py").write_text(PLUGIN)
    (tmp_path / "toy_rest.py").write_text("class NoConfig: pass")
    (tmp_path / "toy-1.0.dist-info").mkdir()
    (tmp_path / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (tmp_path / "toy-1.0.dist-info" / "entry_points.txt").write_text(
        "[modyn.models]\nToy = toy_models:Toy\nNoConfig = toy_rest:NoConfig\nGone = toy_rest:Gone\n"
        "Built = toy_models:Built\nDeclared = toy_models:Declared\nNeither = toy_models:Neither\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0, done.stderr
    good, unknown, no_config, gone, *shapes, neither, no_module = done.stdout.splitlines()
    assert good == "[]"
    assert "model.config.with: there is no such key, did you mean 'width'?" in unknown
    assert "must be a class with a `Config`" in no_config
    assert "cannot import 'toy_rest:Gone'" in gone
    assert shapes == 3 * ["[(3, 5)]"]
    assert "model.id: model 'Neither' must be an nn.Module, or have `build()` or the import path of its `network`" in neither
    assert "model.id: 'Built' built a str, not an nn.Module" in no_module


def test_checking_our_models_does_not_import_torch() -> None:
    check = (
        "import sys; from modyn.models import MODELS, check_model; "
        "[check_model(id_, {}) for id_ in MODELS.builtin]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_problem_is_the_record_of_the_configuration() -> None:
    assert isinstance(check_model("nothing", {})[0], Problem)
    (problem,) = check_model("MLP", [3, 32])
    assert (problem.path, problem.message[:39]) == ("model.config", "[3, 32] is wrong: write a mapping of th")
