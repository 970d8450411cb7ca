"""One way to call a model: inputs by position and by name, embeddings, and scores as autograd has them. Scoring changes no state."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from modyn.errors import ConfigError
from modyn.models.calls import (
    SampleLoss,
    embedding,
    forward,
    has_embedding,
    has_last_layer,
    last_layer,
    logits,
    offers_embedding,
    score,
)
from modyn.models.weights import build_model


class Pair(nn.Module):
    """Two inputs; offers neither embedding nor last_layer; draws, and keeps statistics, while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 5), nn.Linear(2, 5)
        self.norm, self.dropout = nn.BatchNorm1d(5), nn.Dropout(0.5)
        self.out = nn.Linear(5, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        noise = functional.dropout(torch.ones(len(left), 5), training=True)  # draws in evaluation mode too
        hidden = self.dropout(torch.relu(self.norm(self.left(left) + self.right(right)))) + 0 * noise
        logits: Tensor = self.out(hidden)
        return logits


class SigmoidAfterLastLayer(nn.Module):
    """A model with code after the last layer. This code belongs to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(3, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.sigmoid(self.out(torch.tanh(self.hidden(x)))).squeeze(1)
        return found


@dataclass
class Output:
    """An output as models of transformers return it."""

    logits: Tensor
    hidden: Tensor


class ReturnsObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(3, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Output:
        hidden = torch.tanh(self.hidden(x))
        return Output(self.out(hidden), hidden)


def cross_entropy(output: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(output, labels, reduction="none", label_smoothing=0.1)


def binary(output: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy(output, labels.float(), reduction="none")


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def small_cnn() -> nn.Module:
    return build_model("SmallCNN", {"num_classes": 4, "image_size": 8, "width": 2, "embedding_size": 6, "dropout": 0.5})


CASES: list[Any] = [
    pytest.param(Pair, (drawn(7, 3), drawn(7, 2)), cross_entropy, id="by position"),
    pytest.param(Pair, {"right": drawn(7, 2), "left": drawn(7, 3)}, cross_entropy, id="by name"),
    pytest.param(SigmoidAfterLastLayer, drawn(7, 3), binary, id="code after the last layer"),
    pytest.param(ReturnsObject, drawn(7, 3), cross_entropy, id="an object with logits"),
    pytest.param(small_cnn, drawn(7, 1, 8, 8), cross_entropy, id="ours"),
]


def labels_for(model: nn.Module) -> Tensor:
    return torch.arange(7) % max(2, last_layer(model).out_features)


@pytest.mark.parametrize(("build", "data", "loss"), CASES)
def test_scores_are_those_of_autograd_sample_by_sample(build: Callable[[], nn.Module], data: Any, loss: SampleLoss) -> None:
    torch.manual_seed(3)
    model = build()
    labels = labels_for(model)
    found = score(model, data, labels, loss)
    weight_gradients, bias_gradients = found.last_layer_gradients()

    model.eval()
    layer = last_layer(model)
    for i in range(7):
        one = {k: v[i : i + 1] for k, v in data.items()} if isinstance(data, dict) else data
        one = tuple(v[i : i + 1] for v in data) if isinstance(data, tuple) else one
        one = data[i : i + 1] if isinstance(data, Tensor) else one
        expected = loss(forward(model, one), labels[i : i + 1])
        by_weight, by_bias = torch.autograd.grad(expected.sum(), (layer.weight, layer.bias))
        torch.testing.assert_close(found.losses[i : i + 1], expected.detach())
        torch.testing.assert_close(weight_gradients[i], by_weight)
        torch.testing.assert_close(bias_gradients[i], by_bias)
    torch.testing.assert_close(layer(found.embeddings).detach(), found.logits)
    torch.testing.assert_close(embedding(model, data).detach(), found.embeddings)
    assert not any(t.requires_grad for t in (found.losses, found.logits, found.embeddings, found.logit_gradients))


@pytest.mark.parametrize(("build", "data", "loss"), CASES)
def test_scoring_changes_neither_the_model_nor_the_random_generators(
    build: Callable[[], nn.Module], data: Any, loss: SampleLoss
) -> None:
    model = build().train()
    next(model.children()).eval()  # frozen by its user: stays so
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    score(model, data, labels_for(model), loss)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert np.array_equal(np.random.get_state()[1], generators[2])  # type: ignore[index]
    assert torch.is_grad_enabled()
    assert not any(module._forward_hooks for module in model.modules())


def test_an_embedding_that_the_model_offers_is_taken() -> None:
    model = small_cnn().eval()
    assert last_layer(model) is model.output
    images = drawn(2, 1, 8, 8)
    assert torch.equal(embedding(model, images), model.embedding(images))  # type: ignore[operator]


def test_without_a_last_layer_there_is_no_embedding() -> None:
    with pytest.raises(ConfigError, match=r"model\.id: ReLU has no embedding: .*no method `embedding\(data\)`; add one"):
        embedding(nn.ReLU(), drawn(2, 3))
    with pytest.raises(
        ConfigError,
        match=r"last layer of Linear was given \[2, 3, 3\]; .*of shape \(n, d\) for each batch: add a method `embedding",
    ):
        embedding(nn.Linear(3, 2), drawn(2, 3, 3))
    with pytest.raises(ConfigError, match=r"model\.id: ReLU has no last layer, because it has no nn.Linear: add one at its end"):
        score(nn.ReLU(), drawn(2, 3), torch.zeros(2), lambda output, labels: output.sum(1))
    with pytest.raises(
        ConfigError, match=r"Linear was given \[2, 3, 3\]; its gradients need one call, .* such a property `last_layer`"
    ):
        score(nn.Linear(3, 2), drawn(2, 3, 3), torch.zeros(2), lambda output, labels: output.flatten(1).sum(1))


class Tokens(nn.Module):
    """Has an embedding of its own, of another width than what its last layer is given, once for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(20, 4), nn.Linear(4, 3)

    def embedding(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.table(tokens)
        return torch.cat((vectors.mean(1), vectors.amax(1)), 1)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.last(self.table(tokens)).transpose(1, 2)
        return logits


def test_a_model_offers_an_embedding_by_a_method_and_not_by_a_table() -> None:
    assert embedding(Tokens(), torch.arange(14).reshape(7, 2)).shape == (7, 8)
    table = nn.Sequential()
    table.embedding = nn.Embedding(3, 2)
    assert (offers_embedding(table), has_embedding(table), has_last_layer(table)) == (False, False, False)
    assert (offers_embedding(Pair()), has_embedding(Pair()), has_last_layer(Pair())) == (False, True, True)
    assert offers_embedding(Tokens())


def test_logits_are_what_the_last_layer_returns() -> None:
    model, data = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Softmax(1)), drawn(5, 3)
    assert torch.equal(logits(model, data), model[:3](data))
    assert torch.equal(logits(nn.Tanh(), data), data.tanh()), "without a last layer, the model"
    with pytest.raises(ConfigError, match=r"last layer of Linear returned \[2, 3, 3\]"):
        logits(nn.Linear(3, 3), drawn(2, 3, 3))
