"""From names to optimizers, schedulers, losses; the registries; and the problems that the check of a pipeline reports for them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from modyn.config.base import Severity
from modyn.dataset.code.user_code import EXTRAS
from modyn.errors import ConfigError
from modyn.registry import Registry
from modyn.trainer_server.check import check
from modyn.trainer_server.downsampling.policies import DOWNSAMPLING, downsampling_of_trigger
from modyn.trainer_server.downsampling.policies.policy import Candidates, Choice, DownsamplingPolicy, Draw
from modyn.trainer_server.loop.components import build_optimizers, build_scaler, build_schedulers, mixed_precision, resolve
from modyn.trainer_server.loop.hooks import MAX_LOSSES, Losses
from modyn.trainer_server.request.config import OPTIMIZERS, SCHEDULERS, OptimizerConfig, SchedulerConfig, TrainingConfig
from tests.support.training import MemoryData, RecordedReport, small_pipeline, train_in_memory


class Scaled(SGD):
    """An optimizer of a user's package."""

    def __init__(self, params: Any, lr: float = 1.0, scale: float = 0.1) -> None:
        super().__init__(params, lr=lr * scale)


class Halving:
    """A scheduler of a user's package: not a class of PyTorch."""

    def __init__(self, optimizer: SGD, every: int) -> None:
        self.optimizer, self.every, self.steps = optimizer, every, 0

    def step(self) -> None:
        self.steps += 1
        if self.steps % self.every == 0:
            for group in self.optimizer.param_groups:
                group["lr"] /= 2

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


class FirstHalf(DownsamplingPolicy):
    """A downsampling policy of a user's package."""

    needs_pass = False

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        return Choice(np.arange(size))


def register(monkeypatch: pytest.MonkeyPatch, registry: Registry[Any], name: str, kind: type) -> None:
    """Register it, as an installed package would."""
    monkeypatch.setitem(sys.modules, "users_package", sys.modules[__name__])
    entry = EntryPoint(name, f"users_package:{kind.__name__}", registry.group)
    monkeypatch.setattr("modyn.registry.entry_points", lambda group: [entry] if group == registry.group else [])
    registry.__dict__.pop("plugins", None)
    assert registry.ids()


@pytest.fixture(autouse=True)
def registries_as_they_were() -> Any:
    yield
    for registry in (OPTIMIZERS, SCHEDULERS, DOWNSAMPLING):
        registry.__dict__.pop("plugins", None)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def optimizer(**fields: Any) -> OptimizerConfig:
    return OptimizerConfig(
        **{"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": 0.1}}], **fields}
    )


def test_every_optimizer_of_torch_can_be_named() -> None:
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adadelta", "Adamax", "ASGD", "Rprop"):
        assert type(build_optimizers(network(), [optimizer(algorithm=name)])["default"]).__name__ == name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"algorithm": "Adamm"}, r"optimizers\.0\.algorithm: torch\.optim has no optimizer 'Adamm', did you mean 'Adam'"),
        ({"algorithm": "Optimizer"}, "torch.optim has no optimizer 'Optimizer'"),
        ({"algorithm": "LBFGS"}, "LBFGS evaluates the model several times"),
        ({"algorithm": "FusedAdam", "source": "APEX"}, r"optimizers\.0\.algorithm: cannot import 'apex\.optimizers:FusedAdam'"),
        ({"algorithm": "Mine", "source": "Custom"}, "there is no optimizer 'Mine'"),
        ({"param_groups": [{"module": "model.7"}]}, r"param_groups\.0\.module: Sequential has no module 'model\.7'.*model\.0"),
        ({"param_groups": [{"module": "model.1"}]}, "has no parameters to optimize"),
        ({"param_groups": [{"module": "model"}, {"module": "model.0"}]}, r"param_groups\.1\.module: .*groups are disjoint"),
        ({"param_groups": [{"config": {"lrate": 1}}]}, "there is no option 'lrate', did you mean 'lr'"),
        (
            {"param_groups": [{"config": {"lr": -1}}]},
            r"optimizers\.0\.param_groups\.0\.config\.lr: -1 is wrong: SGD refuses its options: Invalid learning rate",
        ),
        (
            {"param_groups": [{"config": {"lr": "fast"}}]},
            r"optimizers\.0\.param_groups\.0\.config\.lr: 'fast' is wrong: a number is expected, for example 0\.001",
        ),
        ({"param_groups": [{"config": {"lr": "1e-3"}}]}, r"param_groups\.0\.config\.lr: '1e-3' is a text in YAML.* write 0\.001"),
        ({"param_groups": [{"config": {"nesterov": True}}]}, r"param_groups\.0\.config\.nesterov: True is wrong"),
    ],
)
def test_a_wrong_optimizer_is_named_with_its_path(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_optimizers(network(), [optimizer(**fields)])


def test_two_optimizers_cannot_share_parameters() -> None:
    both = [optimizer(), optimizer(name="other", param_groups=[{"module": "model.0.weight"}])]
    with pytest.raises(
        ConfigError, match=r"optimizers\.1\.param_groups\.0\.module: 'model\.0\.weight' holds parameters that .*optimizers\.0"
    ):
        build_optimizers(network(), both)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "CosineAnealingLR"}, "has no 'CosineAnealingLR', did you mean 'CosineAnnealingLR'"),
        ({"name": "LRScheduler"}, "has no 'LRScheduler'"),
        ({"name": "StepLR"}, r"lr_scheduler\.config: StepLR refuses its options: .*step_size"),
        ({"name": "Mine", "source": "Custom"}, "there is no learning rate scheduler 'Mine'"),
        ({"name": "StepLR", "config": {"step_size": "MODYN_NUM_BATCH"}}, r"config\.step_size: cannot compute .* did you mean 'MODYN_NUM_BATCHES'"),
        ({"name": "StepLR", "config": {"step_size": "MODYN_NUM_BATCHES // 0"}}, "cannot compute"),
        ({"name": "StepLR", "config": {"step_size": "MODYN_NUM_BATCHES.__class__"}}, "is not arithmetic"),
        ({"name": "LambdaLR", "config": {"lr_lambda": "lambda epoch: ("}}, r"config\.lr_lambda: .* is not a Python expression"),
    ],
)  # fmt: skip
def test_a_wrong_scheduler_is_named_with_its_path(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_schedulers(SchedulerConfig(**fields), {"default": SGD(network().parameters(), lr=1.0)}, num_batches=5, num_epochs=2)


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_mixed_precision_is_in_bfloat16_where_the_gpu_of_the_training_has_it(
    has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU that is current, the first, is another one, of the other kind."""
    current = ["cuda:0"]

    @contextmanager
    def on(device: str) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    def supported(including_emulation: bool = True) -> bool:
        return (current[-1] == "cuda:1") == has_bfloat16 or including_emulation

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    on_gpu = {**small_pipeline()["training"], "amp": True, "device": "cuda:1"}
    assert mixed_precision(TrainingConfig(**on_gpu)) is (torch.bfloat16 if has_bfloat16 else torch.float16)
    assert mixed_precision(TrainingConfig(**on_gpu, grad_scaler_config={})) is torch.float16
    assert mixed_precision(TrainingConfig(**on_gpu, amp_dtype="float16")) is torch.float16
    assert mixed_precision(TrainingConfig(**{**on_gpu, "device": "cpu"})) is torch.bfloat16
    assert mixed_precision(TrainingConfig(**{**on_gpu, "amp": False})) is None


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_without_loss_scaling_mixed_precision_is_in_bfloat16_unless_float16_is_asked_for(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a GPU that lacks it and computes in it by float32: without scaling, gradients of float16 vanish."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    unscaled = {**small_pipeline()["training"], "amp": True, "device": device, "grad_scaler_config": {"enabled": False}}
    assert mixed_precision(TrainingConfig(**unscaled)) is torch.bfloat16
    assert mixed_precision(TrainingConfig(**unscaled, amp_dtype="bfloat16")) is torch.bfloat16
    assert mixed_precision(TrainingConfig(**unscaled, amp_dtype="float16")) is torch.float16
    assert not build_scaler(TrainingConfig(**unscaled, amp_dtype="float16")).is_enabled()


def test_the_loss_is_scaled_for_float16_only() -> None:
    training = small_pipeline()["training"]
    assert not build_scaler(TrainingConfig(**training)).is_enabled()
    assert not build_scaler(TrainingConfig(**{**training, "amp": True})).is_enabled()
    assert build_scaler(TrainingConfig(**{**training, "amp": True, "amp_dtype": "float16"})).is_enabled()
    on_gpu_in_bfloat16 = {**training, "amp": True, "device": "cuda:0", "amp_dtype": "bfloat16"}
    assert not build_scaler(TrainingConfig(**on_gpu_in_bfloat16)).is_enabled()
    on_gpu = {**training, "amp": True, "device": "cuda:0", "grad_scaler_config": {"init_scale": 64.0, "growth_interval": 3}}
    if torch.cuda.is_available():
        assert build_scaler(TrainingConfig(**on_gpu)).get_growth_interval() == 3
    else:
        with pytest.warns(UserWarning, match="CUDA is not available"):
            build_scaler(TrainingConfig(**on_gpu))


def test_numbers_known_at_run_time_are_filled_in_at_any_depth() -> None:
    numbers = {"MODYN_NUM_BATCHES": 12, "MODYN_NUM_EPOCHS": 3}
    given = {
        "milestones": ["MODYN_NUM_BATCHES * 0.5", "-MODYN_NUM_EPOCHS + 10 % 4"],
        "mode": "min",
        "nested": {"x": "MODYN_NUM_EPOCHS"},
    }
    assert resolve(given, numbers, "config") == {"milestones": [6.0, -1], "mode": "min", "nested": {"x": 3}}


WARM_UP_AND_COSINE: dict[str, Any] = {
    "name": "SequentialLR",
    "step_every": "batch",
    "config": {
        "schedulers": [
            {"name": "LinearLR", "config": {"start_factor": 0.25, "total_iters": "MODYN_NUM_BATCHES // 5"}},
            {"name": "CosineAnnealingLR", "config": {"T_max": "MODYN_NUM_BATCHES - MODYN_NUM_BATCHES // 5"}},
        ],
        "milestones": ["0.23 * MODYN_NUM_BATCHES"],
    },
}


def rates(config: dict[str, Any], num_steps: int) -> list[float]:
    """The learning rates of steps 0, 1, … of an optimizer whose rate is 1."""
    sgd = SGD(network().parameters(), lr=1.0)
    (scheduler,) = build_schedulers(SchedulerConfig(**config), {"default": sgd}, num_batches=num_steps, num_epochs=1)
    found = []
    for _ in range(num_steps):
        found.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step()
    return found


def test_a_warm_up_is_followed_by_a_cosine() -> None:
    found = rates(WARM_UP_AND_COSINE, 20)
    assert found[:5] == pytest.approx([0.25, 0.4375, 0.625, 0.8125, 1.0])
    assert found[4:] == pytest.approx([(1 + math.cos(math.pi * i / 16)) / 2 for i in range(16)])


def test_schedulers_are_chained() -> None:
    parts = [
        {"name": "ConstantLR", "config": {"factor": 0.5, "total_iters": 2}},
        {"name": "ExponentialLR", "config": {"gamma": 0.5}},
    ]
    assert rates({"name": "ChainedScheduler", "step_every": "batch", "config": {"schedulers": parts}}, 4) == [
        0.5,
        0.25,
        0.25,
        0.125,
    ]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"name": "LinearR"}], r"lr_scheduler\.config\.schedulers\.0\.name: .* no 'LinearR', did you mean 'LinearLR'"),
        ([{"name": "StepLR"}], r"lr_scheduler\.config\.schedulers\.0\.config: StepLR refuses its options: .*step_size"),
        ([{"name": "ReduceLROnPlateau"}], r"schedulers\.0\.name: ReduceLROnPlateau looks at a loss .* cannot be a part"),
        ([{"nam": "StepLR"}], r"lr_scheduler\.config\.schedulers\.0\.nam"),
        ("StepLR", r"lr_scheduler\.config\.schedulers: 'StepLR' is not a list"),
    ],
)
def test_a_wrong_part_of_a_scheduler_is_named_with_its_path(parts: Any, message: str) -> None:
    config = SchedulerConfig(name="ChainedScheduler", config={"schedulers": parts})
    with pytest.raises(ConfigError, match=message):
        build_schedulers(config, {"default": SGD(network().parameters(), lr=1.0)}, num_batches=5, num_epochs=2)


def test_functions_of_the_user_drive_a_lambda_scheduler() -> None:
    sgd = SGD(network().parameters(), lr=1.0)
    config = SchedulerConfig(name="LambdaLR", config={"lr_lambda": ["lambda step: 1 - step / MODYN_NUM_BATCHES"]})
    (scheduler,) = build_schedulers(config, {"default": sgd}, num_batches=4, num_epochs=1)
    sgd.step()
    scheduler.step()
    assert sgd.param_groups[0]["lr"] == 0.75


def test_an_optimizer_of_another_package_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, OPTIMIZERS, "Scaled", Scaled)
    own = [{"name": "default", "algorithm": "Scaled", "source": "Custom", "param_groups": [{}]}]
    found = train_in_memory(small_pipeline({"optimizers": own}), MemoryData(), tmp_path)
    assert found.trained.weights_sha256 == train_in_memory(small_pipeline(), MemoryData(), tmp_path).trained.weights_sha256


def test_a_scheduler_of_another_package_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, SCHEDULERS, "Halving", Halving)
    own = {"name": "Halving", "source": "Custom", "step_every": "batch", "config": {"every": 2}}
    torchs = {"name": "StepLR", "step_every": "batch", "config": {"step_size": 2, "gamma": 0.5}}
    found, expected = (train_in_memory(small_pipeline({"lr_scheduler": one}), MemoryData(), tmp_path) for one in (own, torchs))
    assert found.trained.weights_sha256 == expected.trained.weights_sha256


def test_a_downsampling_policy_of_another_package_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, DOWNSAMPLING, "FirstHalf", FirstHalf)
    selection = {"name": "CoresetStrategy", "downsampling_config": {"strategy": "FirstHalf", "ratio": 50}}
    found = train_in_memory(small_pipeline(selection_strategy=selection), MemoryData(16), tmp_path)
    half = train_in_memory(small_pipeline(), MemoryData(8), tmp_path)
    assert found.trained.weights_sha256 == half.trained.weights_sha256


@pytest.mark.parametrize(
    "config", [None, {"strategy": "No"}, {"strategy": "No", "ratio": 100}, {"strategy": "No", "ratio": 1000, "ratio_max": 1000}]
)
def test_no_downsampling_changes_nothing(tmp_path: Path, config: dict[str, Any] | None) -> None:
    selection = {"name": "CoresetStrategy", **({"downsampling_config": config} if config else {})}
    found = train_in_memory(small_pipeline(selection_strategy=selection), MemoryData(), tmp_path)
    assert found.trained.weights_sha256 == train_in_memory(small_pipeline(), MemoryData(), tmp_path).trained.weights_sha256


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        *(
            ({"downsampling_config": {"strategy": name}}, f"downsampling_config.strategy: '{name}' is not available yet")
            for name in DOWNSAMPLING.not_yet
        ),
        ({"downsampling_config": {"strategy": "Lost"}}, "there is no downsampling strategy 'Lost'"),
        ({"downsampling_config": {"strategy": "No", "ratio": 50}}, "selection_strategy.downsampling_config.ratio"),
        ({"downsampling_config": {"strategy": "Loss"}}, "downsampling_config.ratio: is required"),
        ({"downsampling_config": {"strategy": "Loss", "ratio": 101}}, "ratio: 101 is more than the whole; it must be at most"),
        (
            {"downsampling_config": {"strategy": "Loss", "ratio": 5, "period": -1}},
            "period: -1 is wrong: .* greater than or equal to 0",
        ),
        ({"downsampling_config": "No"}, "this is a mapping with the key `strategy`"),
    ],
)
def test_other_downsampling_is_refused(selection: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        downsampling_of_trigger(selection, 0)


def test_a_loss_log_is_bounded() -> None:
    log = Losses(1)

    class At:
        class progress:  # noqa: N801
            batches = 0

        loss = torch.tensor(1.0)

    for batch in range(1, 3 * MAX_LOSSES):
        At.progress.batches = batch
        log.on_batch(At)  # type: ignore[arg-type]
    entries = log.read()
    assert len(entries) < MAX_LOSSES
    assert [int(batch) % log.every for batch, _ in entries] == [0] * len(entries)
    assert entries[-1][0] > 3 * MAX_LOSSES - 2 * log.every


def problems(pipeline: dict[str, Any]) -> dict[str, str]:
    return {problem.path: problem.message for problem in check(pipeline, RecordedReport())}


def test_a_right_pipeline_has_no_problems() -> None:
    assert problems(small_pipeline()) == {}


@pytest.mark.parametrize("name", ["model", "training", "data"])
def test_a_section_that_is_missing_is_told(name: str) -> None:
    pipeline = small_pipeline()
    del pipeline[name]
    assert problems(pipeline) == {name: "is required"}


def test_what_this_machine_lacks_is_told_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "transforms", "no_such_package")
    data = {**small_pipeline()["data"], "transformations": ["transforms.Nope(3)"]}
    found = problems(
        small_pipeline({"device": "cuda:999", "checkpointing": {"activated": True, "path": "/proc/nope"}}, data=data)
    )
    assert set(found) == {"data", "training.device", "training.checkpointing.path"}
    assert "'transforms.Nope(3)' needs no_such_package, which is not installed: pip install no_such_package" in found["data"]
    assert found["training.device"].startswith("'cuda:999' does not exist")
    assert "written to the folder /proc/nope" in found["training.checkpointing.path"]
    folder = tmp_path / "a" / "b"
    assert problems(small_pipeline({"checkpointing": {"activated": True, "path": str(folder)}})) == {}
    assert list(tmp_path.iterdir()) == []  # a check leaves nothing


def test_all_mistakes_are_told_at_once_with_their_paths() -> None:
    pipeline = small_pipeline({"batch_size": 0, "amp": "perhaps"}, data={"dataset_id": "d"})
    pipeline["model"]["id"] = "MPL"
    pipeline["selection_strategy"]["downsampling_config"] = {"strategy": "Cragi", "ratio": 50}
    assert set(problems(pipeline)) == {
        "model.id",
        "training.batch_size",
        "training.amp",
        "data",
        "selection_strategy.downsampling_config.strategy",
    }


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"optimization_criterion": {"name": "CrossEntropyLos"}}, "training.optimization_criterion.name"),
        ({"optimizers": [{"name": "a", "algorithm": "Sdg", "param_groups": [{}]}]}, "training.optimizers.0.algorithm"),
        (
            {"optimizers": [{"name": "a", "algorithm": "SGD", "param_groups": [{"module": "model.hiden"}]}]},
            "training.optimizers.0.param_groups.0.module",
        ),
        ({"lr_scheduler": {"name": "StepLR", "config": {}}}, "training.lr_scheduler.config"),
    ],
)
def test_what_only_torch_knows_is_checked_too(options: dict[str, Any], path: str) -> None:
    assert list(problems(small_pipeline(options))) == [path]


def test_a_check_warns_of_float16_without_loss_scaling() -> None:
    options = {"amp": True, "amp_dtype": "float16", "grad_scaler_config": {"enabled": False}}
    (problem,) = check(small_pipeline(options), RecordedReport())
    assert (problem.path, problem.severity) == ("training.grad_scaler_config.enabled", Severity.WARNING)


def test_checking_executes_nothing_of_the_pipeline(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    scheduler = {"name": "LambdaLR", "config": {"lr_lambda": f"lambda epoch, x={code}: 1.0"}}
    parser = f"def bytes_parser_function(data, x={code}):\n    {code}\n    return data\n"
    problems(small_pipeline({"lr_scheduler": scheduler}, data={"dataset_id": "d", "bytes_parser_function": parser}))
    assert not mark.exists()
