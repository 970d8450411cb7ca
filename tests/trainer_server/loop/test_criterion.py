"""The loss of a batch: weights keep their ratio across batches, equal weights are no weights, and shapes that would spread are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from modyn.errors import ConfigError, InvalidArgumentError, TrainingError
from modyn.models.weights import build_model
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.loop.seeding import derived_seed, seed_everything
from modyn.trainer_server.request.config import CriterionConfig
from tests.support.training import NUM_CLASSES, MemoryData, features_of, small_pipeline, train_in_memory

WEIGHTED = {"name": "CoresetStrategy", "uses_weights": True}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "CrossEntropy"}, "torch.nn has no loss 'CrossEntropy', did you mean 'CrossEntropyLoss'"),
        ({"name": "Linear"}, "torch.nn has no loss 'Linear'"),
        ({"name": "CrossEntropyLoss", "config": {"smoothing": 0.1}}, r"optimization_criterion\.config: CrossEntropyLoss refuses"),
    ],
)
@pytest.mark.parametrize("mean_weight", [1.0, None])
def test_a_wrong_loss_is_named_with_its_path(fields: dict[str, Any], message: str, mean_weight: float | None) -> None:
    with pytest.raises(ConfigError, match=message):
        Criterion(CriterionConfig(**fields), mean_weight)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


LABELS = torch.tensor([0, 2, 1, -100, 2, 0])
CASES: list[Any] = [
    ("CrossEntropyLoss", {}, drawn(6, 3), LABELS.clamp(0)),
    ("CrossEntropyLoss", {}, drawn(6, 3), LABELS),
    ("CrossEntropyLoss", {"ignore_index": 2, "weight": [1.0, 3.0, 0.5]}, drawn(6, 3), LABELS.clamp(0)),
    ("CrossEntropyLoss", {"ignore_index": 0, "label_smoothing": 0.2, "weight": [1.0, 3.0, 0.5]}, drawn(6, 3), LABELS.clamp(0)),
    ("CrossEntropyLoss", {}, drawn(6, 3, 4), LABELS.unsqueeze(1).repeat(1, 4)),
    ("CrossEntropyLoss", {"weight": [1.0, 3.0, 0.5]}, drawn(6, 3), drawn(6, 3).softmax(1)),
    ("NLLLoss", {"ignore_index": 1, "weight": [1.0, 3.0, 0.5]}, drawn(6, 3).log_softmax(1), LABELS.clamp(0)),
    ("MSELoss", {}, drawn(6, 3), drawn(6, 3).flip(0)),
    ("BCEWithLogitsLoss", {"pos_weight": [2.0, 1.0, 0.5]}, drawn(6, 3), drawn(6, 3).sigmoid()),
    ("MultiMarginLoss", {}, drawn(6, 3), LABELS.clamp(0)),
]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("name", "options", "output", "labels"), CASES)
def test_equal_weights_have_the_effect_of_no_weights(
    name: str, options: dict[str, Any], output: Tensor, labels: Tensor, reduction: str
) -> None:
    config = CriterionConfig(name=name, config={**options, "reduction": reduction})
    plain = Criterion(config)(output, labels, torch.ones(6))
    for size in (0.01, 1.0, 100.0):
        torch.testing.assert_close(Criterion(config, size)(output, labels, torch.full((6,), size)), plain)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_weights_keep_their_ratio_across_batches(reduction: str) -> None:
    config = CriterionConfig(name="CrossEntropyLoss", config={"reduction": reduction})
    output, labels = drawn(6, 3), LABELS.clamp(0)
    light, heavy = torch.full((6,), 0.01), torch.full((6,), 100.0)
    loss = Criterion(config, 50.0)
    torch.testing.assert_close(loss(output, labels, heavy), 10_000 * loss(output, labels, light))


def test_the_mean_over_the_batches_of_a_trigger_set_is_the_weighted_mean_of_all_samples() -> None:
    output, labels = drawn(60, 3), torch.arange(60) % 3
    weights = torch.rand(60, generator=torch.Generator().manual_seed(1)) * 9
    loss = Criterion(CriterionConfig(name="CrossEntropyLoss"), float(weights.mean()))
    batches = [loss(output[i : i + 6], labels[i : i + 6], weights[i : i + 6]) for i in range(0, 60, 6)]
    expected = torch.dot(functional.cross_entropy(output, labels, reduction="none"), weights) / weights.sum()
    torch.testing.assert_close(torch.stack(batches).mean(), expected)


@pytest.mark.parametrize("mean_weight", [1.0, None])
def test_a_batch_whose_labels_are_all_ignored_has_no_loss(mean_weight: float | None) -> None:
    """The loss would be 0 / 0, which looks like a diverged training."""
    loss = Criterion(CriterionConfig(name="CrossEntropyLoss"), mean_weight)
    output = drawn(6, 3).requires_grad_()
    ignored = loss(output, torch.full((6,), -100), torch.ones(6))
    ignored.backward()  # type: ignore[no-untyped-call]
    assert ignored.item() == 0
    assert output.grad is not None
    assert torch.equal(output.grad, torch.zeros(6, 3))


@pytest.mark.parametrize("name", ["MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"])
@pytest.mark.parametrize("mean_weight", [1.0, None])
def test_outputs_and_labels_of_two_shapes_are_refused(name: str, mean_weight: float | None) -> None:
    loss = Criterion(CriterionConfig(name=name), mean_weight)
    with pytest.raises(ValueError, match=rf"{name} compares .* shape \[6, 1\] and the labels have \[6\]"):
        loss(drawn(6, 1), drawn(6), torch.ones(6))


def test_a_regression_on_the_wrong_shape_is_refused_at_its_first_batch(tmp_path: Path) -> None:
    model = {"id": "MLP", "config": {"input_size": 6, "num_classes": 1}}
    data = {**small_pipeline()["data"], "label_transformer_function": "def label_transformer_function(l):\n    return l.float()"}
    pipeline = small_pipeline({"optimization_criterion": {"name": "MSELoss"}}, model=model, data=data)
    with pytest.raises(TrainingError, match=r"batch 0 of epoch 0 .*shape \[8, 1\] and the labels have \[8\]"):
        train_in_memory(pipeline, MemoryData(), tmp_path)


def test_a_loss_that_has_no_value_per_sample_is_refused_with_weights(tmp_path: Path) -> None:
    pipeline = small_pipeline({"optimization_criterion": {"name": "CosineEmbeddingLoss"}}, selection_strategy=WEIGHTED)
    with pytest.raises(TrainingError, match="batch 0 of epoch 0"):
        train_in_memory(pipeline, MemoryData(), tmp_path)
    with pytest.raises(ConfigError, match=r"L1Loss gives no loss per sample, which .*uses_weights needs"):
        Criterion(CriterionConfig(name="L1Loss"), 1.0)(torch.tensor(1.0), torch.tensor(2.0), torch.ones(6))


@pytest.mark.parametrize(("reduction", "accumulation"), [("mean", 1), ("mean", 2), ("sum", 1), ("sum", 2)])
@pytest.mark.parametrize("weighted", [True, False])
def test_training_equals_a_loop_written_by_hand(tmp_path: Path, reduction: str, accumulation: int, weighted: bool) -> None:
    criterion = {"name": "CrossEntropyLoss", "config": {"reduction": reduction, "label_smoothing": 0.1}}
    optimizers = [{"name": "default", "algorithm": "SGD", "param_groups": [{"config": {"lr": 0.01}}]}]
    options = {"optimization_criterion": criterion, "optimizers": optimizers, "gradient_accumulation_steps": accumulation}
    pipeline = small_pipeline(options, selection_strategy={"name": "CoresetStrategy", "uses_weights": weighted})
    found = train_in_memory(pipeline, MemoryData(32), tmp_path)

    seed_everything(derived_seed(7, 0, 1))
    model = build_model("MLP", pipeline["model"]["config"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.from_numpy(np.stack([features_of(key) for key in range(32)]))
    labels, weights = torch.arange(32) % NUM_CLASSES, torch.arange(32) / 2
    weights = weights / weights.mean() if weighted else torch.ones(32)
    for start in range(0, 32, 8 * accumulation):
        optimizer.zero_grad()
        group = slice(start, start + 8 * accumulation)
        losses = (
            functional.cross_entropy(model(inputs[group]), labels[group], reduction="none", label_smoothing=0.1) * weights[group]
        )
        torch.autograd.backward(losses.mean() if reduction == "mean" else losses.sum())
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found.weights[name], value)


def test_weights_that_weigh_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"weights of the trigger set have the mean 0\.0, but it must be above 0"):
        train_in_memory(small_pipeline({"batch_size": 1}, selection_strategy=WEIGHTED), MemoryData(1), tmp_path)


def test_a_loss_with_weights_of_classes_is_a_module_on_the_device_of_the_labels() -> None:
    loss = Criterion(CriterionConfig(name="CrossEntropyLoss", config={"weight": [1.0, 3.0]}))
    assert loss(torch.zeros(1, 2), torch.tensor([1]), torch.ones(1)).item() == pytest.approx(0.6931, abs=1e-3)
