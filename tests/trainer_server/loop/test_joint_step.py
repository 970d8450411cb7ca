"""Several optimizers step as one: scaled, clipped, skipped together; an optimizer without gradients is no error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from modyn.trainer_server.loop.components import build_optimizers
from modyn.trainer_server.loop.joint_step import JointStep
from modyn.trainer_server.request.config import OptimizerConfig
from tests.support.training import MemoryData, small_pipeline, train_in_memory


def two_layers() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def optimizers_of(model: nn.Sequential, fused: bool) -> dict[str, Optimizer]:
    return {"body": Adam(model[0].parameters(), lr=0.1, fused=fused), "head": SGD(model[1].parameters(), lr=0.1, fused=fused)}


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)


def loss_of(model: nn.Module) -> Tensor:
    inputs = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    return nn.functional.cross_entropy(model(inputs), torch.tensor([0, 1]))


def weights_of(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_an_infinite_gradient_of_one_optimizer_keeps_all_from_stepping(fused: bool, clip_norm: float | None, odd: float) -> None:
    model, scale = two_layers(), scaler()
    step = JointStep(optimizers_of(model, fused), scale, clip_norm)
    before = weights_of(model)
    torch.autograd.backward(scale.scale(loss_of(model)))
    gradient = next(model.parameters()).grad
    assert gradient is not None
    gradient[0, 0] = odd
    step.run()
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(model), strict=True))
    assert scale.get_scale() == 4.0
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_scaled_steps_equal_those_without_a_scaler(fused: bool, clip_norm: float | None) -> None:
    found, expected, scale = two_layers(), two_layers(), scaler()
    step = JointStep(optimizers_of(found, fused), scale, clip_norm)
    plain = optimizers_of(expected, fused)
    for _ in range(3):
        torch.autograd.backward(scale.scale(loss_of(found)))
        step.run()
        torch.autograd.backward(loss_of(expected))
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(expected.parameters(), clip_norm)
        for optimizer in plain.values():
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(weights_of(found), weights_of(expected), strict=True):
        torch.testing.assert_close(a, b)


def test_an_optimizer_without_gradients_steps_with_the_others() -> None:
    model, scale = two_layers(), scaler()
    unused = nn.Linear(2, 2)
    step = JointStep({"used": SGD(model.parameters(), lr=0.1), "unused": SGD(unused.parameters(), lr=0.1)}, scale)
    before, untouched = weights_of(model), weights_of(unused)
    torch.autograd.backward(scale.scale(loss_of(model)))
    step.run()
    assert not any(torch.equal(a, b) for a, b in zip(before, weights_of(model), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(untouched, weights_of(unused), strict=True))
    step.run()  # without any gradient: nothing happens


class CountedScaler(torch.amp.GradScaler):
    """Counts how often a step reads from the device whether gradients were infinite."""

    reads = 0

    def _maybe_opt_step(self, *arguments: Any, **options: Any) -> float | None:
        self.reads += 1
        found: float | None = super()._maybe_opt_step(*arguments, **options)
        return found


@pytest.mark.parametrize(("fused", "reads"), [(False, 1), (True, 0)])
def test_the_device_is_read_once_a_step_and_not_at_all_if_all_are_fused(fused: bool, reads: int) -> None:
    model, scale = two_layers(), CountedScaler("cpu", init_scale=8.0)
    torch.autograd.backward(scale.scale(loss_of(model)))
    JointStep(optimizers_of(model, fused), scale, 1.0).run()
    assert scale.reads == reads


def test_fused_is_given_to_the_constructor() -> None:
    groups = [{"module": "model.0", "config": {"lr": 0.1, "fused": True}}, {"module": "model.1", "config": {"fused": True}}]
    config = OptimizerConfig.model_validate({"name": "default", "algorithm": "AdamW", "param_groups": groups})
    with torch.device("meta"):  # as the check does
        build_optimizers(two_layers(), [config])
    optimizer = build_optimizers(two_layers(), [config])["default"]
    assert getattr(optimizer, "_step_supports_amp_scaling", False)
    assert [group["fused"] for group in optimizer.param_groups] == [True, True]


class ApexLike(SGD):
    """NVIDIA Apex's optimizers decide in their constructor how gradients are cleared."""

    def zero_grad(self) -> None:  # type: ignore[override]
        raise AssertionError("not asked")


def test_an_optimizer_whose_zero_grad_takes_no_argument_is_one() -> None:
    model = two_layers()
    torch.autograd.backward(loss_of(model))
    JointStep({"apex": ApexLike(model.parameters(), lr=0.1)}, torch.amp.GradScaler("cpu", enabled=False)).run()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_float16_on_a_cpu_is_scaled_and_learns_as_float32(tmp_path: Path) -> None:
    options = {"amp": True, "amp_dtype": "float16", "grad_scaler_config": {"init_scale": 128.0}, "gradient_clip_norm": 1.0}
    halves = train_in_memory(small_pipeline({**options, "epochs_per_trigger": 3}), MemoryData(), tmp_path / "halves")
    whole = train_in_memory(
        small_pipeline({"gradient_clip_norm": 1.0, "epochs_per_trigger": 3}), MemoryData(), tmp_path / "whole"
    )
    for name, value in whole.weights.items():
        torch.testing.assert_close(halves.weights[name], value, rtol=0.05, atol=0.01)
    assert halves.trained.weights_sha256 != whole.trained.weights_sha256
