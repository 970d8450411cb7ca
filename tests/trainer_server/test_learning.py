"""A training that cannot have learned is no success: skipped steps, gradients of 0, ignored labels, constant losses; and why one diverged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from modyn.config.base import Severity
from modyn.dataset.batch import Batch
from modyn.errors import CancelledError, ConfigError, DataError, TrainingError
from modyn.model_storage.client import ModelHeader
from modyn.models import MODELS
from modyn.models.weights import build_model, save_weights
from modyn.records import RunId
from modyn.trainer_server.check import check
from modyn.trainer_server.divergence import _odd_rows
from modyn.trainer_server.loop.joint_step import JointStep
from tests.support.plugins import installed
from tests.support.training import (
    NUM_CLASSES,
    MemoryData,
    NoModel,
    RecordedReport,
    TrainingRoom,
    features_of,
    small_pipeline,
    train_in_memory,
)

FLOAT16: dict[str, Any] = {"amp": True, "amp_dtype": "float16"}
NONE_MADE = {**FLOAT16, "grad_scaler_config": {"init_scale": 1e30, "backoff_factor": 0.99}}
"""Each gradient is infinite under this scale."""
SOME_MADE = {**FLOAT16, "grad_scaler_config": {"init_scale": 2.0**40, "backoff_factor": 2.0**-6}}
"""The first steps are skipped, until the scale has come down."""


def test_a_training_of_which_every_step_is_skipped_fails(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    with pytest.raises(
        TrainingError, match=r"learned nothing: all 5 steps were skipped: .* the loss scale fell from 1e\+30 .*init_scale"
    ):
        room.train(small_pipeline(NONE_MADE))
    assert room.models.list() == []
    with pytest.raises(NoModel, match="all 5 steps were skipped") as found:
        room.train(small_pipeline({**NONE_MADE, "on_divergence": "keep_previous"}))
    assert found.value.result["skipped_steps"] == 5


@pytest.mark.parametrize("fused", [False, True])
def test_schedulers_advance_as_often_as_steps_are_made(tmp_path: Path, fused: bool) -> None:
    """Fused optimizers skip on the device: there the schedule waits once that is known, which is at the end of the first epoch."""
    lr = {"lr": 0.01, "fused": fused}
    options = {
        **SOME_MADE,
        "epochs_per_trigger": 4,
        "keep_optimizer_state": True,
        "optimizers": [{"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": lr}]}],
        "lr_scheduler": {"name": "ExponentialLR", "step_every": "batch", "config": {"gamma": 0.5}},
    }
    room = TrainingRoom(tmp_path)
    found = room.train(small_pipeline(options))
    skipped = found.result["skipped_steps"]
    assert 2 < skipped < 10
    assert found.result["num_steps"] == 20
    assert found.result["warnings"] == [
        f"{skipped} of 20 steps were skipped, as gradients were infinite: lower training.grad_scaler_config.init_scale (1.09951e+12), set "
        "training.amp_dtype: bfloat16, which needs no scale, or bring labels and inputs to values around 1"
    ]
    path = tmp_path / "optimizers of 1"
    room.models.get_optimizers(found.trained.model_id, path)
    (rate,) = {group["lr"] for group in optimizer_groups(path)}
    assert rate == pytest.approx(0.01 * 0.5 ** (20 - skipped))


def optimizer_groups(path: Path) -> list[dict[str, Any]]:
    from modyn.trainer_server.disk.state_file import read_state_file

    state = read_state_file(path)
    return list(state["optimizers"]["default"]["param_groups"])


def test_schedulers_of_epochs_wait_for_an_epoch_with_a_step(tmp_path: Path) -> None:
    """All labels of the first epoch are 0 in all of their gradients: the scale makes 5 steps of it infinite."""
    options = {**FLOAT16, "grad_scaler_config": {"init_scale": 2.0**100, "backoff_factor": 2.0**-19}, "epochs_per_trigger": 3}
    options |= {"lr_scheduler": {"name": "ExponentialLR", "config": {"gamma": 0.5}}, "keep_optimizer_state": True}
    room = TrainingRoom(tmp_path)
    found = room.train(small_pipeline(options))
    assert found.result["skipped_steps"] == 5
    path = tmp_path / "optimizers of 1"
    room.models.get_optimizers(found.trained.model_id, path)
    assert {group["lr"] for group in optimizer_groups(path)} == {0.1 * 0.5**2}


def test_a_resumed_training_counts_its_skipped_steps_once(tmp_path: Path) -> None:
    options = {**SOME_MADE, "epochs_per_trigger": 2, "checkpointing": {"activated": True, "interval": 1}}
    options["lr_scheduler"] = {"name": "ExponentialLR", "step_every": "batch", "config": {"gamma": 0.5}}
    pipeline = small_pipeline(options)
    (tmp_path / "whole").mkdir()
    whole = train_in_memory(pipeline, MemoryData(), tmp_path / "whole")
    room = TrainingRoom(tmp_path)
    with pytest.raises(CancelledError):
        room.train(pipeline, report=RecordedReport(stop_after=2))
    again = room.train(pipeline)
    assert again.result["skipped_steps"] == whole.result["skipped_steps"] > 2
    assert again.trained.weights_sha256 == whole.trained.weights_sha256


def test_few_skipped_steps_are_counted_without_a_warning(tmp_path: Path) -> None:
    options = {**FLOAT16, "grad_scaler_config": {"init_scale": 2.0**24, "backoff_factor": 2.0**-12}, "epochs_per_trigger": 4}
    found = train_in_memory(small_pipeline(options), MemoryData(), tmp_path)
    assert 0 < found.result["skipped_steps"] <= 2
    assert "warnings" not in found.result


def test_what_a_step_reports() -> None:
    model, unused = nn.Linear(3, 1), nn.Linear(3, 1)
    for fused, known in ((False, [True, False]), (True, [True, True])):
        step = JointStep({"all": SGD(model.parameters(), lr=0.1, fused=fused)}, torch.amp.GradScaler("cpu", init_scale=1.0))
        found = []
        for factor in (1.0, float("inf")):
            torch.autograd.backward(step._scaler.scale(factor * model(torch.ones(1, 3)).sum()))
            found.append(step.run())
        assert found == known
        assert (step.take_skipped(), step.take_skipped()) == (int(fused), 0)
        assert step.has_gradient
    step = JointStep({"none": SGD(unused.parameters(), lr=0.1)}, torch.amp.GradScaler("cpu", enabled=False))
    assert not step.run()
    assert not step.has_gradient
    for _ in range(3):
        torch.autograd.backward((unused(torch.zeros(1, 3)) * 0).sum())
        assert step.run()
    assert not step.has_gradient


DEAD = """
import torch
from modyn.config.base import Section


class Dead(torch.nn.Module):
    Config = Section

    def __init__(self, config):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(6, 10), torch.nn.Linear(6, 10)

    def forward(self, data):
        return torch.relu(self.used(data) - 1e9)


class Frozen(Dead):
    def __init__(self, config):
        super().__init__(config)
        for parameter in self.parameters():
            parameter.requires_grad = False
"""


def dead(module: str = "model", model: str = "Dead") -> dict[str, Any]:
    decayed = {"lr": 0.1, "weight_decay": 0.1}  # moves the weights, though nothing is learned
    groups = [{"module": module, "config": decayed}]
    pipeline = small_pipeline({"optimizers": [{"name": "default", "algorithm": "SGD", "param_groups": groups}]})
    return {**pipeline, "model": {"id": model}}


def test_gradients_of_zero_are_not_a_success(tmp_path: Path) -> None:
    with installed(tmp_path / "plugin", MODELS, "Dead", DEAD, "Dead"):
        with pytest.raises(
            TrainingError, match="learned nothing: every gradient was 0 in all 5 steps, .* activations are saturated"
        ):
            train_in_memory(dead(), MemoryData(), tmp_path)
        with pytest.raises(TrainingError, match=r"in all 5 steps, no parameter of training.optimizers had a gradient"):
            train_in_memory(dead("model.unused"), MemoryData(), tmp_path)


def test_an_optimizer_of_frozen_parameters_is_refused_by_check_and_training(tmp_path: Path) -> None:
    with installed(tmp_path / "plugin", MODELS, "Frozen", DEAD, "Frozen"):
        pipeline = dead(model="Frozen")
        message = "every parameter in their param_groups is frozen"
        assert [problem.path for problem in check(pipeline, RecordedReport()) if message in problem.message] == [
            "training.optimizers"
        ]
        with pytest.raises(ConfigError, match=message):
            train_in_memory(pipeline, MemoryData(), tmp_path)


IGNORING = {"optimization_criterion": {"name": "CrossEntropyLoss", "config": {"ignore_index": 3}}}


def test_labels_that_are_ignored_are_counted(tmp_path: Path) -> None:
    found = train_in_memory(small_pipeline({**IGNORING, "epochs_per_trigger": 2}), MemoryData(), tmp_path)
    assert (found.result["ignored_labels"], found.result["num_labels"]) == (8, 80)
    assert "ignored_labels" not in train_in_memory(small_pipeline(), MemoryData(), tmp_path).result


def test_a_training_of_ignored_labels_alone_fails(tmp_path: Path) -> None:
    all_ignored = "def label_transformer_function(labels):\n    return labels * 0 + 3\n"
    pipeline = small_pipeline(IGNORING)
    pipeline["data"] = {**pipeline["data"], "label_transformer_function": all_ignored}
    with pytest.raises(
        TrainingError, match=r"all 40 labels equal ignore_index of CrossEntropyLoss \(3\), so there was nothing to learn"
    ):
        train_in_memory(pipeline, MemoryData(), tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizers": [{"name": "default", "algorithm": "SGD", "param_groups": [{"config": {"lr": 1e-30}}]}]},
        {"gradient_clip_norm": 1e-30},
        {"lr_scheduler": {"name": "ConstantLR", "step_every": "batch", "config": {"factor": 0.0, "total_iters": 10**6}}},
    ],
    ids=["learning rate", "clipped gradients", "schedule"],
)
def test_steps_that_change_nothing_are_a_warning(tmp_path: Path, options: dict[str, Any]) -> None:
    """The first batch of each epoch has another loss than the second, so that the loss is not constant."""
    room, options = (
        TrainingRoom(tmp_path),
        {**options, "epochs_per_trigger": 2, "checkpointing": {"activated": True, "interval": 1}},
    )
    found = room.train(small_pipeline(options)).result["warnings"]
    assert found[0].startswith("no parameter changed in 10 steps, so the model is as it was: raise the learning rate")
    with pytest.raises(CancelledError):
        room.train(small_pipeline(options), report=RecordedReport(stop_after=6))
    assert room.train(small_pipeline(options)).result["warnings"] == found


def test_steps_that_change_few_rows_of_a_large_embedding_are_not_warned_of(tmp_path: Path) -> None:
    parse = "import torch\n\ndef batch_parser_function(data, offsets):\n    return torch.full((len(offsets) - 1, 1), 7)\n"
    pipeline = small_pipeline()
    pipeline["model"] = {"id": "SparseLogisticRegression", "config": {"num_features": 2**18, "num_classes": NUM_CLASSES}}
    pipeline["data"] = {"dataset_id": "fake", "batch_parser_function": parse}
    group = {"module": "model.weight", "config": {"lr": 0.1}}
    pipeline["training"] = {
        **pipeline["training"],
        "optimizers": [{"name": "default", "algorithm": "SGD", "param_groups": [group]}],
    }
    assert "warnings" not in train_in_memory(pipeline, MemoryData(), tmp_path).result


def test_a_loss_of_zero_and_a_constant_one_are_warnings(tmp_path: Path) -> None:
    zeros = "def label_transformer_function(labels):\n    return labels.unsqueeze(1) * 0 - 1.0\n"
    hinge = small_pipeline({"optimization_criterion": {"name": "SoftMarginLoss"}})
    hinge["data"] = {**hinge["data"], "label_transformer_function": zeros}
    hinge["model"] = {"id": "MLP", "config": {"input_size": 6, "hidden_sizes": [8], "num_classes": 1}}
    # The weights move, but the squared error of a label of 1e9 hides it.
    far = {**hinge["data"], "label_transformer_function": zeros.replace("- 1.0", "+ 1e9")}
    still = {
        **hinge["training"],
        "optimization_criterion": {"name": "MSELoss"},
        "optimizers": [{"name": "default", "algorithm": "SGD", "param_groups": [{"config": {"lr": 1e-11}}]}],
        "batch_size": 40,
        "epochs_per_trigger": 4,
    }
    found = train_in_memory({**hinge, "data": far, "training": still}, MemoryData(), tmp_path).result
    assert [warning[:47] for warning in found["warnings"]] == ["the loss of every batch that was looked at was "]
    margin = {**hinge["training"], "optimization_criterion": {"name": "HingeEmbeddingLoss", "config": {"margin": -1e9}}}
    found = train_in_memory({**hinge, "training": margin}, MemoryData(), tmp_path).result
    assert found["warnings"] == ["the loss of every batch was 0: nothing was left to learn"]


def with_nan(*keys: int) -> Any:
    def payload(key: int) -> bytes:
        features = features_of(key)
        if key in keys:
            features[2] = np.nan if key % 2 else np.inf
        return features.tobytes()

    return payload


@pytest.mark.parametrize("on_divergence", ["fail", "keep_previous"])
def test_a_divergence_names_the_samples_whose_inputs_are_not_finite(tmp_path: Path, on_divergence: str) -> None:
    pipeline = small_pipeline({"on_divergence": on_divergence})
    with pytest.raises(
        (TrainingError, NoModel),
        match=r"loss of epoch 0 is nan; the inputs of 2 samples .* sample keys 4, 17; `modyn data locate`.*`modyn data reindex NAME FILE`",
    ):
        train_in_memory(pipeline, MemoryData(payload=with_nan(4, 17)), tmp_path)


def test_a_divergence_names_at_most_ten_samples(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the inputs of at least 10 samples .*: sample keys 0, 1, 2, 3, 4, 5, 6, 7, 8, 9;"):
        train_in_memory(small_pipeline(), MemoryData(payload=with_nan(*range(30))), tmp_path)


@pytest.mark.parametrize(
    "shared", [torch.tensor(3.0), torch.ones(4), torch.tensor(float("nan"))], ids=["finite", "of another length", "nan"]
)
def test_an_input_that_is_not_made_of_rows_is_looked_at_too(shared: torch.Tensor) -> None:
    data = {"rows": torch.tensor([[1.0, 2.0], [torch.inf, 1.0], [0.0, 0.0]]), "shared": shared}
    batch = Batch(torch.arange(3), data, torch.zeros(3), torch.ones(3))
    odd = _odd_rows(batch, uses_weights=True)["inputs"].tolist()
    assert odd == ([True] * 3 if shared.isnan().any() else [False, True, False])


def test_a_divergence_names_the_samples_that_random_transformations_make_nan(tmp_path: Path) -> None:
    pipeline = small_pipeline()
    pipeline["data"] = {**pipeline["data"], "random_transformations": ["torch:log"]}
    with pytest.raises(
        TrainingError,
        match=r"at least 10 samples .* hold NaN or infinity after data.random_transformations: sample keys 0, 1, .*correct these",
    ):
        train_in_memory(pipeline, MemoryData(), tmp_path)


def test_a_divergence_names_labels(tmp_path: Path) -> None:
    logs = "import torch\n\ndef label_transformer_function(labels):\n    return torch.log(labels.float() - 3).unsqueeze(1)\n"
    pipeline = small_pipeline({"optimization_criterion": {"name": "MSELoss"}})
    pipeline["data"] = {**pipeline["data"], "label_transformer_function": logs}
    pipeline["model"] = {"id": "MLP", "config": {"input_size": 6, "hidden_sizes": [8], "num_classes": 1}}
    with pytest.raises(
        TrainingError,
        match=r"the labels of at least 10 samples .*: sample keys 0, 1, 2, 3, 10, .*data.label_transformer_function",
    ):
        train_in_memory(pipeline, MemoryData(), tmp_path)


def test_scores_that_are_nan_name_the_samples_too(tmp_path: Path) -> None:
    selection = {
        "name": "CoresetStrategy",
        "maximum_keys_in_memory": 16,
        "downsampling_config": {"strategy": "Loss", "ratio": 50},
    }
    pipeline = small_pipeline(selection_strategy=selection)
    with pytest.raises(TrainingError, match=r"Loss scored sample key 9 as nan .*; the inputs of 1 samples .*: sample keys 9;"):
        train_in_memory(pipeline, MemoryData(payload=with_nan(9)), tmp_path)


def test_a_model_that_is_not_finite_is_not_trained_further(tmp_path: Path) -> None:
    room, pipeline = TrainingRoom(tmp_path), small_pipeline()
    model = build_model("MLP", pipeline["model"]["config"])
    next(model.parameters()).data[0] = float("nan")
    save_weights(model, tmp_path / "odd.safetensors")
    header = ModelHeader(RunId(""), 0, "MLP", pipeline["model"]["config"], {}, {}, None)
    parent = room.models.put(header, tmp_path / "odd.safetensors").model_id
    with pytest.raises(DataError, match=f"model {parent} cannot be trained further: .* holds values that are not finite"):
        room.train(pipeline, parent_model_id=parent)


def scheduled(step_every: str = "batch", **config: Any) -> dict[str, Any]:
    return small_pipeline(
        {"epochs_per_trigger": 4, "lr_scheduler": {"name": "OneCycleLR", "step_every": step_every, "config": config}}
    )


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"max_lr": 0.1, "total_steps": 19}, "MODYN_NUM_BATCHES"),
        ({"max_lr": 0.1, "epochs": 4, "steps_per_epoch": 4}, "MODYN_NUM_BATCHES"),
        ({"max_lr": 0.1, "total_steps": 3, "step_every": "epoch"}, "MODYN_NUM_EPOCHS"),
    ],
)
def test_a_scheduler_that_ends_too_early_is_named_before_the_first_step(
    tmp_path: Path, options: dict[str, Any], number: str
) -> None:
    report = RecordedReport()
    with pytest.raises(
        ConfigError, match=rf"training.lr_scheduler.config.\w+: OneCycleLR is made for \d+ steps, .* write total_steps: {number}"
    ):
        TrainingRoom(tmp_path).train(scheduled(**options), report=report)
    assert report.messages == []


def test_a_part_of_a_scheduler_that_ends_too_early_is_named_when_it_does(tmp_path: Path) -> None:
    parts = [{"name": "OneCycleLR", "config": {"max_lr": 0.1, "total_steps": 3}}, {"name": "ConstantLR"}]
    schedule = {"name": "SequentialLR", "step_every": "batch", "config": {"schedulers": parts, "milestones": [10]}}
    with pytest.raises(
        ConfigError, match=r"training.lr_scheduler.config: SequentialLR cannot step any further: .*MODYN_NUM_BATCHES"
    ):
        train_in_memory(small_pipeline({"epochs_per_trigger": 4, "lr_scheduler": schedule}), MemoryData(), tmp_path)


def test_a_scheduler_that_follows_the_training_is_not_a_mistake(tmp_path: Path) -> None:
    pipeline = scheduled(max_lr=0.1, total_steps="MODYN_NUM_BATCHES")
    assert not [problem for problem in check(pipeline, RecordedReport()) if "lr_scheduler" in problem.path]
    assert "warnings" not in train_in_memory(pipeline, MemoryData(), tmp_path).result


def test_check_tells_of_schedulers_of_a_fixed_length() -> None:
    def found(step_every: str, name: str, **config: Any) -> list[str]:
        schedule = {"name": name, "step_every": step_every, "config": config}
        problems = check(small_pipeline({"epochs_per_trigger": 4, "lr_scheduler": schedule}), RecordedReport())
        return [f"{each.severity} {each.path}" for each in problems if "lr_scheduler" in each.path]

    at = "training.lr_scheduler.config"
    assert found("batch", "OneCycleLR", max_lr=0.1, total_steps=100) == [f"warning {at}.total_steps"]
    assert found("epoch", "OneCycleLR", max_lr=0.1, total_steps=3) == [f"error {at}.total_steps"]
    assert found("epoch", "OneCycleLR", max_lr=0.1, total_steps=4) == []
    assert found("batch", "CosineAnnealingLR", T_max=50) == [f"warning {at}.T_max"]
    assert found("epoch", "PolynomialLR", total_iters=2) == [f"warning {at}.total_iters"]
    assert found("batch", "PolynomialLR", total_iters="MODYN_NUM_BATCHES") == []


def test_a_schedule_that_ends_early_is_a_warning_of_the_training(tmp_path: Path) -> None:
    schedule = {"name": "PolynomialLR", "step_every": "batch", "config": {"total_iters": 4}}
    (warning,) = train_in_memory(small_pipeline({"lr_scheduler": schedule}), MemoryData(), tmp_path).result["warnings"]
    assert warning.startswith(
        "training.lr_scheduler.config.total_iters: PolynomialLR is made for 4 steps, and this training has 5: after"
    )


def test_check_tells_of_groups_that_do_not_learn(tmp_path: Path) -> None:
    half = DEAD.replace("self.parameters()", "self.unused.parameters()")
    with installed(tmp_path / "plugin", MODELS, "Frozen", half, "Frozen"):
        pipeline = dead("model.used", "Frozen")
        groups = pipeline["training"]["optimizers"][0]["param_groups"]
        groups.append({"module": "model.unused", "config": {"lr": 0.1}})
        (found,) = [problem for problem in check(pipeline, RecordedReport()) if "optimizers" in problem.path]
        assert (found.path, found.severity) == ("training.optimizers.0.param_groups.1.module", Severity.WARNING)
        groups[:] = [{"module": "model", "config": {"lr": 0.0}}]
        (found,) = [problem for problem in check(pipeline, RecordedReport()) if "optimizers" in problem.path]
        assert "the learning rate of every group is 0" in found.message


def test_a_bound_on_samples_that_leaves_no_batch_is_refused() -> None:
    bounded = {"num_samples_to_pass": [80, 5]}

    def found(training: dict[str, Any], **sections: Any) -> list[str]:
        return [problem.path for problem in check(small_pipeline({**bounded, **training}, **sections), RecordedReport())]

    assert found({}) == ["training.num_samples_to_pass.1"]
    assert found({"drop_last_batch": False}) == found({"batch_size": 5}) == []
    for before_batches in (True, False):
        chosen = {"strategy": "Loss", "ratio": 50, "sample_then_batch": before_batches}
        section = {"name": "CoresetStrategy", "maximum_keys_in_memory": 16, "downsampling_config": chosen}
        assert found({}, selection_strategy=section) == ["training.num_samples_to_pass.1"] * before_batches
