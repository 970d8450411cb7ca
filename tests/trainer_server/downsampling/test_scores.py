"""Scores against losses and gradients computed sample by sample in float64, for every kind of criterion, model and input."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modyn.dataset.batch import Batch
from modyn.errors import ConfigError
from modyn.trainer_server.downsampling.policies.grand import GraNd, GraNdConfig
from modyn.trainer_server.downsampling.policies.importance import ImportanceConfig
from modyn.trainer_server.downsampling.policies.loss import LossDownsampling
from modyn.trainer_server.downsampling.policies.sampling import NO_CLASS
from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.loop.hooks import DivergedError
from modyn.trainer_server.request.config import CriterionConfig
from modyn.trainer_server.scoring.batch_then_sample import check_scores

NUM = 12


class Network(nn.Module):
    """BatchNorm and dropout, which scoring must leave alone."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.5))
        self.last = nn.Linear(7, outputs)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.body(x))
        return logits


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = Network(3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        logits: Tensor = self.network(torch.cat((left, right), 1))
        return logits


class Answering(nn.Module):
    """Returns an object with `logits`, as models of transformers do."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.network(x))


class Tokens(nn.Module):
    """Whole numbers as inputs, a label for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.table(x)).transpose(1, 2)
        return logits


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


CLASSES = torch.arange(NUM) % 3
IGNORED = CLASSES.where(torch.arange(NUM) % 4 > 0, -100)
WEIGHTS = {"weight": [0.5, 2.0, 1.5]}
CASES: list[Any] = [
    ("CrossEntropyLoss", {}, 3, CLASSES),
    ("CrossEntropyLoss", {"label_smoothing": 0.2, **WEIGHTS}, 3, IGNORED),
    ("CrossEntropyLoss", {"reduction": "sum"}, 3, CLASSES),
    ("CrossEntropyLoss", WEIGHTS, 3, torch.rand(NUM, 3, generator=seeded(1)).softmax(1)),
    ("MultiMarginLoss", {}, 3, CLASSES),
    ("BCEWithLogitsLoss", {"pos_weight": [2.0]}, 1, (torch.arange(NUM) % 2).float().unsqueeze(1)),
    ("MSELoss", {}, 2, torch.rand(NUM, 2, generator=seeded(2))),
    ("HuberLoss", {}, 2, torch.rand(NUM, 2, generator=seeded(3))),
]


def criterion(name: str, options: dict[str, Any]) -> Criterion:
    return Criterion(CriterionConfig(name=name, config=options))


def batch_of(data: Any, labels: Tensor) -> Batch:
    return Batch(torch.arange(len(labels)), data, labels, torch.ones(len(labels)))


def made(network: nn.Module) -> nn.Module:
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=seeded(number)))
    return network.train()


def by_hand(network: nn.Module, batch: Batch, name: str, options: dict[str, Any]) -> list[Tensor]:
    """The loss of each sample by itself, as a sum over its elements, in float64 and in evaluation mode: graphs to differentiate."""
    tensors = {
        key: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value for key, value in options.items()
    }
    module = getattr(nn, name)(**{**tensors, "reduction": "none"})
    network = network.double().eval()
    inputs = batch.data.double() if isinstance(batch.data, Tensor) and batch.data.is_floating_point() else batch.data
    labels = batch.labels.double() if batch.labels.is_floating_point() else batch.labels
    assert isinstance(inputs, Tensor)
    return [module(network(inputs[i : i + 1]), labels[i : i + 1]).sum() for i in range(len(batch))]


@pytest.mark.parametrize(("name", "options", "outputs", "labels"), CASES)
def test_losses_are_those_of_the_criterion_sample_by_sample(
    name: str, options: dict[str, Any], outputs: int, labels: Tensor
) -> None:
    network, batch = made(Network(outputs)), batch_of(torch.randn(NUM, 5, generator=seeded(9)), labels)
    found = ScoringModel(network, criterion(name, options)).losses(batch)
    expected = torch.stack(by_hand(network, batch, name, options)).detach()
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(("name", "options", "outputs", "labels"), CASES)
def test_gradient_norms_are_those_of_autograd(name: str, options: dict[str, Any], outputs: int, labels: Tensor) -> None:
    network, batch = made(Network(outputs)), batch_of(torch.randn(NUM, 5, generator=seeded(9)), labels)
    model = ScoringModel(network, criterion(name, options))
    whole, last = model.gradient_norms(batch), model.last_layer(batch)
    norms, last_norms = [], []
    for loss in by_hand(network, batch, name, options):
        gradients = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
        squares = [gradient.square().sum() for gradient in gradients if gradient is not None]
        norms.append(torch.stack(squares).sum().sqrt())
        last_norms.append(torch.stack(squares[-2:]).sum().sqrt())
    assert torch.allclose(whole.double(), torch.stack(norms), rtol=1e-4, atol=1e-5)
    weight, bias = last.last_layer_gradients()
    closed = (weight.square().sum((1, 2)) + bias.square().sum(1)).sqrt()
    assert torch.allclose(closed.double(), torch.stack(last_norms), rtol=1e-4, atol=1e-5)


def test_a_label_for_each_token_gives_sums_over_the_tokens() -> None:
    network, labels = made(Tokens()), torch.randint(0, 3, (NUM, 6), generator=seeded(4))
    labels[:, 4:] = -100
    labels[3] = -100
    batch = batch_of(torch.randint(0, 20, (NUM, 6), generator=seeded(5)), labels)
    model = ScoringModel(network, criterion("CrossEntropyLoss", {}))
    expected = torch.stack(by_hand(network, batch, "CrossEntropyLoss", {})).detach()
    assert torch.allclose(model.losses(batch).double(), expected, rtol=1e-5, atol=1e-6)
    assert model.counts(batch).tolist() == [0.0 if i == 3 else 4.0 for i in range(NUM)]
    assert model.classes(batch).tolist() == [NO_CLASS] * NUM


@pytest.mark.parametrize("by_name", [False, True])
def test_models_with_several_inputs_are_scored(by_name: bool) -> None:
    left, right = torch.randn(NUM, 2, generator=seeded(1)), torch.randn(NUM, 3, generator=seeded(2))
    pair = Pair()
    made(pair)
    loss = criterion("CrossEntropyLoss", {})
    batch = batch_of({"right": right, "left": left} if by_name else (left, right), CLASSES)
    one = batch_of(torch.cat((left, right), 1), CLASSES)
    model, single = ScoringModel(pair, loss), ScoringModel(pair.network, loss)
    assert torch.equal(model.losses(batch), single.losses(one))
    assert torch.allclose(model.gradient_norms(batch), single.gradient_norms(one))
    assert torch.equal(model.last_layer(batch).logit_gradients, single.last_layer(one).logit_gradients)


def test_models_that_return_objects_are_scored_by_their_logits() -> None:
    network, loss = made(Network(3)), criterion("CrossEntropyLoss", {})
    batch = batch_of(torch.randn(NUM, 5, generator=seeded(9)), CLASSES)
    model, plain = ScoringModel(Answering(network), loss), ScoringModel(network, loss)
    assert torch.equal(model.losses(batch), plain.losses(batch))
    assert torch.allclose(model.gradient_norms(batch), plain.gradient_norms(batch))
    assert torch.equal(model.last_layer(batch).logit_gradients, plain.last_layer(batch).logit_gradients)


def test_scoring_leaves_the_model_and_the_generators_as_they_were() -> None:
    network = made(Network(3))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state, batch = torch.get_rng_state(), batch_of(torch.randn(NUM, 5, generator=seeded(9)), CLASSES)
    model = ScoringModel(network, criterion("CrossEntropyLoss", {}))
    with model.scoring():
        assert not network.training
        model.losses(batch)
        model.last_layer(batch)
        model.gradient_norms(batch)
    assert all(module.training for module in network.modules())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert torch.equal(torch.get_rng_state(), state)


class Noisy(nn.Module):
    """Draws also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(nn.functional.dropout(x, 0.5, training=True))
        return logits


def test_what_a_model_draws_does_not_depend_on_the_batches_scored_before() -> None:
    network, batch = made(Noisy()), batch_of(torch.randn(NUM, 5, generator=seeded(9)), CLASSES)
    model = ScoringModel(network, criterion("CrossEntropyLoss", {}))
    with model.scoring():
        first, layer = model.losses(batch), model.last_layer(batch)
        assert torch.equal(model.losses(batch), first)
        assert torch.equal(model.last_layer(batch).losses, first)
        assert torch.equal(model.last_layer(batch).logit_gradients, layer.logit_gradients)
    assert torch.equal(model.losses(batch), first)
    assert network.training


def test_scores_as_the_model_trains_draw_apart_from_the_step_and_keep_no_statistics() -> None:
    """Dropout draws, BatchNorm goes by the statistics that it has; what a step draws afterwards is not what the scores have seen."""
    torch.manual_seed(3)
    network, batch = Network(3).train(), Batch(torch.arange(NUM), torch.randn(NUM, 5), torch.arange(NUM) % 3, torch.ones(NUM))
    network.body[1].eval()  # as its user wants
    before, generator = {name: value.clone() for name, value in network.state_dict().items()}, torch.get_rng_state()
    model = ScoringModel(network, criterion("CrossEntropyLoss", {}))
    with model.scoring():
        evaluated = model.losses(batch)
    with model.scoring(as_trained=True):
        assert [module.training for module in network.modules()] == [True, True, True, False, True, True, True]
        found, again = model.losses(batch), model.losses(batch)
        mean, single = model.mean_over_draws(lambda: model.losses(batch)), model.losses(batch)
        draws = list[Tensor]()

        def draw() -> Tensor:
            draws.append(model.losses(batch))
            return draws[-1]

        model.mean_over_draws(draw)
    assert [module.training for module in network.modules()] == [True, True, True, False, True, True, True]
    assert torch.allclose(mean, torch.stack(draws).mean(0))
    assert len({tuple(draw.tolist()) for draw in draws}) == 4
    assert torch.equal(found, single)
    assert torch.equal(found, again)
    assert not torch.equal(found, evaluated)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    with torch.no_grad():
        stepped = nn.functional.cross_entropy(network(batch.data), batch.labels, reduction="none")
    assert not torch.equal(found, stepped)


def test_scores_do_not_depend_on_the_other_samples_of_a_batch() -> None:
    network, batch = made(Network(3)), batch_of(torch.randn(NUM, 5, generator=seeded(9)), IGNORED)
    policy, model = LossDownsampling(ImportanceConfig(ratio=50)), ScoringModel(network, criterion("CrossEntropyLoss", {}))
    whole = policy.scored(model, batch)
    assert whole.shape == (NUM, 1)
    for size in (1, 5):
        pieces = torch.cat([policy.scored(model, piece) for piece in batch.slices(size)])
        assert torch.allclose(whole, pieces, rtol=1e-5, atol=1e-7)
    assert [score == 0 for score in whole[:, 0].tolist()] == [label == -100 for label in IGNORED.tolist()]
    assert model.classes(batch).tolist() == [NO_CLASS if label == -100 else label for label in IGNORED.tolist()]


@pytest.mark.parametrize("amp_dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_scores_in_its_type_and_keeps_float32(amp_dtype: torch.dtype) -> None:
    network, batch = made(Network(3)), batch_of(torch.randn(NUM, 5, generator=seeded(9)), CLASSES)
    loss = criterion("CrossEntropyLoss", WEIGHTS)
    exact, mixed = ScoringModel(network, loss), ScoringModel(network, loss, amp_dtype)
    assert mixed.outputs(batch).dtype == amp_dtype
    for found, expected in (
        (mixed.losses(batch), exact.losses(batch)),
        (mixed.last_layer(batch).logit_gradients, exact.last_layer(batch).logit_gradients),
    ):
        assert found.dtype == torch.float32
        assert torch.allclose(found, expected, rtol=0.1, atol=0.1)
        assert not torch.equal(found, expected)


def test_probabilities_come_from_the_criterion() -> None:
    network, data = made(Network(1)), torch.randn(NUM, 5, generator=seeded(9))
    batch = batch_of(data, torch.ones(NUM, 1))
    found = ScoringModel(network, criterion("BCEWithLogitsLoss", {})).probabilities(batch)
    logits = network.eval()(data).detach()
    assert torch.allclose(found, torch.cat((1 - logits.sigmoid(), logits.sigmoid()), 1))
    with pytest.raises(ConfigError, match=r"probabilities of classes are needed, but MSELoss over an output of shape \[12, 1\]"):
        ScoringModel(network, criterion("MSELoss", {})).probabilities(batch)


def test_scores_that_are_not_finite_are_named() -> None:
    policy, keys = LossDownsampling(ImportanceConfig(ratio=50)), np.array([7, 8, 9])
    with pytest.raises(DivergedError, match="LossDownsampling scored sample key 8 as nan under the model of batch 3"):
        check_scores(policy, np.array([[0.0], [np.nan], [np.inf]], np.float32), keys, "of batch 3")
    with pytest.raises(ConfigError, match=r"scores, but that of sample key 9 is -1\.0"):
        check_scores(policy, np.array([[0.0], [np.inf], [-1]], np.float32), keys, "of batch 3")
    with pytest.raises(DivergedError, match="sample key 7 as inf"):
        check_scores(policy, np.array([[0.0, np.inf]], np.float32), keys, "of batch 3")


def test_a_model_without_a_last_layer_is_refused() -> None:
    network = nn.Sequential(nn.Conv1d(1, 3, 5), nn.Flatten())
    batch = batch_of(torch.randn(NUM, 1, 5, generator=seeded(9)), CLASSES)
    with pytest.raises(ConfigError, match="has no last layer"):
        ScoringModel(network, criterion("CrossEntropyLoss", {})).last_layer(batch)


class Masked(nn.Module):
    """Attention among tokens, some of which are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.last = nn.Linear(8, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        found = self.encoder(self.table(tokens), src_key_padding_mask=~mask)
        logits: Tensor = self.last((found * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True))
        return logits


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.last = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.last(self.layer(self.table(tokens))[0].mean(1))
        return logits


TOKENS = torch.randint(0, 20, (NUM, 6), generator=seeded(5))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradient_norms_of_a_transformer_with_a_padding_mask_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    network, mask = Masked(), torch.arange(6) < torch.randint(2, 7, (NUM, 1), generator=seeded(6))
    model, fused = ScoringModel(network, criterion("CrossEntropyLoss", {})), torch.backends.mha.get_fastpath_enabled()
    found = model.gradient_norms(batch_of({"tokens": TOKENS, "mask": mask}, CLASSES))
    assert torch.backends.mha.get_fastpath_enabled() == fused
    network.eval()
    for i in range(NUM):
        loss = nn.functional.cross_entropy(network(TOKENS[i : i + 1], mask[i : i + 1]), CLASSES[i : i + 1])
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        expected = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        assert torch.allclose(found[i], expected, rtol=1e-4)


def test_a_model_that_has_no_gradients_sample_by_sample_is_sent_to_its_last_layer() -> None:
    torch.manual_seed(0)
    model, batch = ScoringModel(Recurrent(), criterion("CrossEntropyLoss", {})), batch_of(TOKENS, CLASSES)
    with pytest.raises(ConfigError, match=r"gradients of Recurrent by all parameters cannot .*: set parameters: LastLayer"):
        model.gradient_norms(batch)
    assert GraNd(GraNdConfig(ratio=50, parameters="LastLayer")).scored(model, batch).shape == (NUM, 1)


def test_a_model_that_draws_nothing_is_asked_once_but_for_the_first_batch() -> None:
    network, batch = nn.Linear(5, 3), Batch(torch.arange(NUM), torch.randn(NUM, 5), torch.arange(NUM) % 3, torch.ones(NUM))
    model, calls = ScoringModel(network, criterion("CrossEntropyLoss", {})), list[Tensor]()

    def score() -> Tensor:
        calls.append(model.losses(batch))
        return calls[-1]

    with model.scoring(as_trained=True):
        found = [model.mean_over_draws(score) for _ in range(3)]
    assert len(calls) == 2 + 1 + 1
    assert all(torch.equal(each, calls[0]) for each in found)
    with model.scoring():
        model.mean_over_draws(score)
    assert len(calls) == 5
