"""Policies that choose by embeddings and gradients: their features, their weights, and edges; in trainings, resumed ones included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modyn.config.base import Severity
from modyn.dataset.batch import Batch
from modyn.errors import CancelledError, ConfigError, TrainingError, UserCodeError
from modyn.trainer_server.check import check
from modyn.trainer_server.downsampling.coresets import Coreset
from modyn.trainer_server.downsampling.coresets.choices import FUNCTIONS
from modyn.trainer_server.downsampling.policies import DOWNSAMPLING, downsampling_of_trigger
from modyn.trainer_server.downsampling.policies.feature_policy import MOST_FEATURES, FeaturePolicy
from modyn.trainer_server.downsampling.policies.kcenter_greedy import KcenterGreedy
from modyn.trainer_server.downsampling.policies.policy import Candidates, Draw, ScoredTraining
from modyn.trainer_server.downsampling.policies.sampling import NO_CLASS
from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.request.config import CriterionConfig
from tests.support.training import MemoryData, RecordedReport, TrainingRoom, small_pipeline, train_in_memory

CONFIGS: dict[str, dict[str, Any]] = {
    "Craig": {"strategy": "Craig"},
    "GradMatch": {"strategy": "GradMatch"},
    "KcenterGreedy": {"strategy": "KcenterGreedy"},
    **{name: {"strategy": "Submodular", "submodular_function": name} for name in FUNCTIONS},
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
BY_GRADIENTS = pytest.mark.parametrize("config", [config for config in CONFIGS.values() if config["strategy"] != "KcenterGreedy"])


def policy(config: dict[str, Any], **options: Any) -> FeaturePolicy:
    found = downsampling_of_trigger({"downsampling_config": {"ratio": 50, **config, **options}}, 0)
    assert isinstance(found, FeaturePolicy)
    return found


def candidates(features: Any, counted: Any = None, labels: Any = None) -> Candidates:
    x = np.asarray(features, np.float32)
    marks = np.ones(len(x), np.float32) if counted is None else np.asarray(counted, np.float32)
    classes = np.full(len(x), NO_CLASS) if labels is None else np.asarray(labels, np.int64)
    return Candidates(np.hstack([x * marks[:, None], marks[:, None]]), classes, np.arange(len(x)))


def normal(count: int, dimensions: int = 5, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((count, dimensions))


class Network(nn.Module):
    def __init__(self, width: int = 7, outputs: int = 3) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(4, width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.tanh(self.body(x)))
        return logits


def scored(
    config: dict[str, Any], network: nn.Module, labels: Tensor, criterion: str = "CrossEntropyLoss", **options: Any
) -> Tensor:
    inputs = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(1))
    batch = Batch(torch.arange(len(labels)), inputs, labels, torch.ones(len(labels)))
    model = ScoringModel(network, Criterion(CriterionConfig(name=criterion)))
    with model.scoring():
        return policy(config, **options).scored(model, batch)


def by_autograd(network: Network, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients by the bias, (n, c), and by weight and bias, (n, c, d + 1), sample by sample."""
    inputs = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(1))
    biases, both = [], []
    for i in range(len(labels)):
        loss = nn.functional.cross_entropy(network(inputs[i : i + 1]), labels[i : i + 1])
        weight, bias = torch.autograd.grad(loss, [network.last.weight, network.last.bias])
        biases.append(bias)
        both.append(torch.cat([weight, bias[:, None]], 1))
    return torch.stack(biases), torch.stack(both)


@BY_GRADIENTS
def test_features_are_the_gradients_of_the_last_layer(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network, labels = Network(), torch.arange(12) % 3
    biases, both = by_autograd(network, labels)
    found = scored(config, network, labels, full_grad_approximation="LastLayer")
    assert torch.allclose(found[:, :-1], biases, atol=1e-6)
    found = scored(config, network, labels, full_grad_approximation="LastLayerWithEmbedding")
    assert torch.allclose(found[:, :-1], both.flatten(1), atol=1e-6)
    assert found[:, -1].tolist() == [1] * 12


def test_long_gradients_are_projected_so_that_their_products_stay() -> None:
    torch.manual_seed(0)
    network, labels = Network(width=300, outputs=20), torch.arange(40) % 20
    _, both = by_autograd(network, labels)
    found = scored(CONFIGS["Craig"], network, labels, full_grad_approximation="LastLayerWithEmbedding")[:, :-1]
    assert found.shape == (40, MOST_FEATURES)
    flat = both.flatten(1)
    lengths = flat.norm(dim=1)
    errors = (found @ found.T - flat @ flat.T) / (lengths[:, None] * lengths)
    assert float(errors.square().mean().sqrt()) < 0.06
    again = scored(CONFIGS["Craig"], network, labels[:3], full_grad_approximation="LastLayerWithEmbedding")
    assert again.shape == (3, MOST_FEATURES + 1)


def test_embeddings_are_what_the_last_layer_is_given() -> None:
    network = Network()
    found = scored(CONFIGS["KcenterGreedy"], network, torch.arange(12) % 3)
    inputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(found[:, :-1], torch.tanh(network.body(inputs)), atol=1e-6)


class OwnEmbedding(Network):
    def embedding(self, x: Tensor) -> Tensor:
        both: Tensor = torch.cat((x, self.body(x)), 1)
        return both


def test_an_embedding_that_the_model_offers_goes_before_and_gradients_are_still_those_of_the_last_layer() -> None:
    torch.manual_seed(0)
    network, labels = OwnEmbedding(), torch.arange(12) % 3
    inputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    found = scored(CONFIGS["KcenterGreedy"], network, labels)
    assert torch.equal(found[:, :-1], network.embedding(inputs).detach())
    _, both = by_autograd(network, labels)
    found = scored(CONFIGS["Craig"], network, labels, full_grad_approximation="LastLayerWithEmbedding")
    assert torch.allclose(found[:, :-1], both.flatten(1), atol=1e-6)


def test_an_embedding_must_have_a_row_a_sample() -> None:
    class Wrong(Network):
        def embedding(self, x: Tensor) -> Tensor:
            return x.mean(0)

    with pytest.raises(UserCodeError, match="`embedding` of Wrong must return one tensor with a row a sample"):
        scored(CONFIGS["KcenterGreedy"], Wrong(), torch.arange(12) % 3)


@EACH
@pytest.mark.parametrize("approximation", ["LastLayer", "LastLayerWithEmbedding"])
def test_mixed_precision_and_one_logit_give_features_too(config: dict[str, Any], approximation: str) -> None:
    options = {} if config["strategy"] == "KcenterGreedy" else {"full_grad_approximation": approximation}
    inputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    labels = (torch.arange(12) % 2).float().unsqueeze(1)
    batch = Batch(torch.arange(12), inputs, labels, torch.ones(12))
    network, criterion = Network(outputs=1), Criterion(CriterionConfig(name="BCEWithLogitsLoss"))
    half, whole = (
        policy(config, **options).scored(ScoringModel(network, criterion, dtype), batch) for dtype in (torch.bfloat16, None)
    )
    assert half.dtype == whole.dtype == torch.float32
    assert torch.allclose(half, whole, atol=0.05)
    found = policy(config, **options).select(
        Candidates(half.numpy(), labels[:, 0].long().numpy(), np.arange(12)), 5, Draw(0, 0, 0)
    )
    assert len(found) == 5


@EACH
def test_samples_whose_label_is_ignored_are_chosen_only_where_there_are_no_others(config: dict[str, Any]) -> None:
    labels = torch.tensor([0, -100, 1, 2, -100, 0, 1, 2])
    assert scored(config, Network(), labels)[[1, 4]].count_nonzero() == 0
    counted = labels.numpy() >= 0
    few = candidates(normal(8), counted)
    chosen = policy(config).select(few, 5, Draw(1, 0, 0))
    assert counted[chosen.positions].all()
    chosen = policy(config).select(few, 7, Draw(1, 0, 0))
    assert len(chosen) == 7
    assert set(np.flatnonzero(counted)) <= set(chosen.positions.tolist())
    none = policy(config).select(candidates(normal(8), np.zeros(8)), 3, Draw(1, 0, 0))
    assert len(none) == 3


@EACH
@pytest.mark.parametrize("size", [1, 2, 15, 29, 30, 40])
def test_a_choice_has_its_size_and_the_draw_alone_decides(config: dict[str, Any], size: int) -> None:
    some = candidates(normal(30))
    found, again = (policy(config).select(some, size, Draw(3, 1, 4)) for _ in range(2))
    assert len(found) == min(size, 30)
    assert (np.diff(found.positions) > 0).all()
    assert again.positions.tolist() == found.positions.tolist()
    assert (found.weights is not None) == policy(config).weighs
    if found.weights is not None and again.weights is not None:
        assert found.weights.dtype == np.float32
        assert (found.weights >= 0).all()
        assert again.weights.tolist() == found.weights.tolist()


def test_the_weights_of_craig_estimate_means_and_are_one_on_average() -> None:
    x = np.concatenate([normal(90, seed=1) * 0.01, normal(30, seed=2) * 0.01 + 4])
    chosen = policy(CONFIGS["Craig"]).select(candidates(x), 12, Draw(0, 0, 0))
    assert chosen.weights is not None
    assert chosen.weights.mean() == pytest.approx(1)
    assert chosen.weights @ x[chosen.positions] / 12 == pytest.approx(x.mean(0), abs=0.02)


@pytest.mark.parametrize("ignored", [0, 40])
def test_the_weighted_mean_of_gradients_is_matched(ignored: int) -> None:
    x = normal(200, 20) + 0.2
    counted = np.arange(200) >= ignored
    chosen = policy(CONFIGS["GradMatch"]).select(candidates(x, counted), 60, Draw(0, 0, 0))
    assert chosen.weights is not None
    mean = (x * counted[:, None]).mean(0)
    assert np.linalg.norm(chosen.weights @ x[chosen.positions] / 60 - mean) < 0.06 * np.linalg.norm(mean)


def test_what_matches_nothing_fills_the_choice_and_weighs_nothing() -> None:
    x = np.array([[2.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    chosen = policy(CONFIGS["GradMatch"]).select(candidates(x), 4, Draw(0, 0, 0))
    assert chosen.weights is not None
    assert {0, 2} < set(chosen.positions.tolist())
    assert np.flatnonzero(chosen.weights).tolist() == np.flatnonzero(np.isin(chosen.positions, [0, 2])).tolist()
    assert chosen.weights @ x[chosen.positions] / 4 == pytest.approx(x.mean(0), rel=0.2)
    zeros = policy(CONFIGS["GradMatch"]).select(candidates(np.zeros((6, 2))), 3, Draw(0, 0, 0))
    assert zeros.weights is not None
    assert zeros.weights.tolist() == [1, 1, 1]


@EACH
def test_each_class_keeps_its_share_if_balanced(config: dict[str, Any]) -> None:
    labels = np.repeat([0, 1, 2], [60, 36, 4])
    x = normal(100) + labels[:, None] * 10
    chosen = policy(config, balance=True).select(candidates(x, labels=labels), 25, Draw(0, 0, 0))
    assert np.bincount(labels[chosen.positions]).tolist() == [15, 9, 1]
    if chosen.weights is not None and config["strategy"] == "Craig":
        by_class = [chosen.weights[labels[chosen.positions] == label].sum() / 25 for label in range(3)]
        assert by_class == pytest.approx([0.6, 0.36, 0.04], rel=1e-5)
    one = policy(config, balance=True).select(candidates(x, labels=np.zeros(100)), 25, Draw(0, 0, 0))
    assert len(one) == 25


@EACH
def test_a_model_without_a_last_layer_and_balance_without_classes_are_refused(config: dict[str, Any]) -> None:
    classes, numbers = ScoredTraining("CrossEntropyLoss", False, False, 8), ScoredTraining("MSELoss", True, True, 8)
    needed = "embeddings" if config["strategy"] == "KcenterGreedy" else "the last layer"
    assert [f"needs {needed}" in text for text in policy(config).refusals(classes)] == [True]
    assert list(policy(config, balance=False).refusals(numbers)) == []
    assert any(
        "balances classes" in text and "set balance: false" in text for text in policy(config, balance=True).refusals(numbers)
    )
    own = replace(classes, has_embedding=True)
    assert bool(list(policy(config).refusals(own))) == (config["strategy"] != "KcenterGreedy")


def test_gradmatch_matches_within_classes_by_default_and_the_check_warns_of_what_collapses() -> None:
    """The mean gradient of a model that knows something is nearly 0; those of its classes are not."""
    x = np.concatenate([normal(100, 20) + 3, normal(100, 20, seed=1) - 3])
    labels = np.repeat([0, 1], 100)
    by_default = policy({"strategy": "GradMatch"}).select(candidates(x, labels=labels), 40, Draw(0, 0, 0))
    at_once = policy({"strategy": "GradMatch", "balance": False}).select(candidates(x, labels=labels), 40, Draw(0, 0, 0))
    assert by_default.weights is not None
    assert at_once.weights is not None
    assert np.bincount(labels[by_default.positions]).tolist() == [20, 20]
    assert by_default.weights.sum() / 40 > 0.5
    assert at_once.weights.sum() / 40 < 0.2
    section = {"strategy": "GradMatch", "ratio": 50, "sample_then_batch": True}
    found = {
        name: [
            (problem.path.rpartition(".")[2], problem.severity)
            for problem in check(
                small_pipeline(
                    {"optimization_criterion": {"name": loss}},
                    selection_strategy={"name": "CoresetStrategy", "downsampling_config": section | options},
                ),
                RecordedReport(),
            )
        ]
        for name, loss, options in (
            ("default", "CrossEntropyLoss", {}),
            ("both", "CrossEntropyLoss", {"balance": False, "full_grad_approximation": "LastLayer"}),
            ("regression", "MSELoss", {"balance": False}),
            ("several labels a sample", "BCEWithLogitsLoss", {"balance": False}),
        )
    }
    both = [("balance", Severity.WARNING), ("full_grad_approximation", Severity.WARNING)]
    assert found == {"default": [], "both": both, "regression": [], "several labels a sample": []}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"strategy": "Submodular"}, "submodular_function: is required"),
        ({"strategy": "Craig", "greedy": "Greedy"}, "greedy: 'Greedy' is wrong"),
        ({"strategy": "Craig", "selection_batch": 0}, "selection_batch: 0 is wrong"),
        ({"strategy": "GradMatch", "full_grad_approximation": "Last"}, "full_grad_approximation: 'Last' is wrong"),
        ({"strategy": "KcenterGreedy", "greedy": "NaiveGreedy"}, "greedy"),
    ],
)
def test_wrong_options_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy(config)


def pipeline_of(config: dict[str, Any], training: dict[str, Any] | None = None) -> dict[str, Any]:
    section = {"name": "CoresetStrategy", "maximum_keys_in_memory": 16, "downsampling_config": {"ratio": 50, **config}}
    return small_pipeline({"drop_last_batch": False, **(training or {})}, selection_strategy=section)


@pytest.mark.parametrize(
    ("config", "balance", "sample_then_batch", "stops"),
    [
        pytest.param(
            config,
            balance,
            first,
            (3, 8)[number // 2 % 2 :][:1] if (in_gate := number % 4 == 2 * balance + first) else (3, 8),
            id=f"{'samples' if first else 'batches'}-{'balanced' if balance else 'any'}-{name}",
            marks=[] if in_gate else pytest.mark.slow,
        )
        for number, (name, config) in enumerate(CONFIGS.items())
        for balance in (False, True)
        for first in (False, True)
    ],
)
def test_a_resumed_training_chooses_the_same(
    tmp_path: Path, config: dict[str, Any], balance: bool, sample_then_batch: bool, stops: tuple[int, ...]
) -> None:
    """Stopped early and late, in the gate at one of both."""
    options = {"epochs_per_trigger": 2, "checkpointing": {"activated": True, "interval": 2}, "shuffle": True}
    pipeline = pipeline_of({**config, "balance": balance, "sample_then_batch": sample_then_batch}, options)
    whole = train_in_memory(pipeline, MemoryData(45), tmp_path / "whole")
    for stop_after in stops:
        room = TrainingRoom(tmp_path / f"stopped-{stop_after}", limits={"report_interval_s": 0})
        with pytest.raises(CancelledError):
            room.train(pipeline, MemoryData(45), RecordedReport(stop_after=stop_after if sample_then_batch else stop_after // 2))
        again = room.train(pipeline, MemoryData(45))
        assert again.trained.weights_sha256 == whole.trained.weights_sha256
        assert again.result["downsampling"]["class_shares"] == whole.result["downsampling"]["class_shares"]
    assert whole.result["downsampling"]["num_chosen"] == 46
    assert bool(whole.result["downsampling"]["weight_quantiles"]) == policy(config).weighs


@EACH
def test_features_that_are_nan_end_the_training_as_diverged(tmp_path: Path, config: dict[str, Any]) -> None:
    sgd = [{"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": 1e30}}]}]
    pipeline = pipeline_of(config, {"epochs_per_trigger": 5, "optimizers": sgd})
    with pytest.raises(TrainingError, match=rf"diverged: {config['strategy']} scored sample key \d+ as nan under the model"):
        train_in_memory(pipeline, MemoryData(45), tmp_path)


def test_all_are_registered() -> None:
    assert {config["strategy"] for config in CONFIGS.values()} <= set(DOWNSAMPLING.names())


def test_balanced_choices_copy_no_features() -> None:
    everything, seen = candidates(normal(60), labels=np.arange(60) % 2), list[int]()

    class Watched(KcenterGreedy):
        def coreset(self, features: Any, size: int, generator: Any, among: Any) -> Coreset:
            assert np.shares_memory(features, everything.scores)
            seen.append(len(among))
            return super().coreset(features, size, generator, among)

    choice = Watched(policy({"strategy": "KcenterGreedy", "balance": True}).config).select(everything, 20, Draw(0, 0, 0))
    assert np.bincount(everything.labels[choice.positions]).tolist() == [10, 10]
    assert seen == [30, 30]


@EACH
def test_a_choice_among_some_is_that_of_these_alone(config: dict[str, Any]) -> None:
    everything, among = candidates(normal(60), np.arange(60) % 7 > 0), np.arange(0, 60, 2)
    found = policy(config).choose_among(everything, among, 12, Draw(0, 0, 0))
    alone = policy(config).choose(everything.take(among), 12, Draw(0, 0, 0))
    assert found.positions.tolist() == among[alone.positions].tolist()
    if found.weights is not None and alone.weights is not None:
        np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-5)
