"""The section `training`: every bound is enforced, what does not fit together is refused, and the message says where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modyn.config.base import check_section, load_section
from modyn.errors import ConfigError
from modyn.trainer_server.request.config import TrainingConfig
from tests.support.training import small_pipeline

SGD = {"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": 0.1}}]}


def section(**options: Any) -> dict[str, Any]:
    found: dict[str, Any] = small_pipeline(options)["training"]
    return found


def told(**options: Any) -> str:
    return "\n".join(map(str, check_section(TrainingConfig, section(**options), "training")))


def test_defaults_are_those_of_the_format() -> None:
    config = load_section(TrainingConfig, section(seed=None), "training")
    assert (config.gpus, config.device, config.epochs_per_trigger, config.num_samples_to_pass) == (1, "cpu", 1, None)
    assert (config.drop_last_batch, config.num_prefetched_partitions, config.parallel_prefetch_requests) == (True, 1, 1)
    assert (config.initial_model, config.initial_model_id, config.seed, config.amp) == ("random", None, None, False)
    assert (config.record_loss_every, config.enable_accurate_gpu_measurements, config.lr_scheduler) == (0, False, None)
    assert (config.gradient_accumulation_steps, config.gradient_clip_norm, config.compile) == (1, None, False)
    assert (config.keep_optimizer_state, config.early_stopping, config.checkpointing.activated) == (False, None, False)
    assert (config.grad_scaler_config, config.optimizers[0].source) == (None, "PyTorch")


def test_what_users_of_the_format_write_is_accepted() -> None:
    config = load_section(
        TrainingConfig,
        section(
            gpus=1,
            device="cuda:0",
            dataloader_workers=4,
            amp=True,
            grad_scaler_config={"growth_interval": 200000},
            checkpointing={"activated": True, "interval": 10, "path": "/tmp/modyn_checkpoint"},
            lr_scheduler={
                "name": "CosineAnnealingLR",
                "source": "PyTorch",
                "step_every": "batch",
                "optimizers": ["default"],
                "config": {"T_max": "MODYN_NUM_BATCHES"},
            },
            num_samples_to_pass=[100, 200],
            initial_model="pretrained",
            initial_model_id=3,
            enable_accurate_gpu_measurements=True,
        ),
        "training",
    )
    assert config.checkpointing.path == Path("/tmp/modyn_checkpoint")
    assert [config.samples_to_pass(i) for i in range(3)] == [100, 200, None]


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"gpus": 0}, "training.gpus"),
        ({"gpus": 2}, "training.gpus: 2 GPUs are not available yet"),
        ({"device": "gpu"}, "training.device"),
        ({"device": "cuda:x"}, "training.device"),
        ({"epochs_per_trigger": 0}, "training.epochs_per_trigger"),
        ({"num_samples_to_pass": [10, 0]}, "training.num_samples_to_pass.1"),
        ({"dataloader_workers": 0}, "training.dataloader_workers"),
        ({"batch_size": 0}, "training.batch_size"),
        ({"num_prefetched_partitions": -1}, "training.num_prefetched_partitions"),
        ({"parallel_prefetch_requests": 0}, "training.parallel_prefetch_requests"),
        ({"initial_model": "best"}, "training.initial_model"),
        ({"initial_model": "pretrained", "initial_model_id": 0}, "training.initial_model_id"),
        ({"seed": -1}, "training.seed"),
        ({"seed": 2**63}, "training.seed"),
        ({"record_loss_every": -1}, "training.record_loss_every"),
        ({"checkpointing": {"activated": True, "interval": 0}}, "training.checkpointing.interval"),
        ({"gradient_accumulation_steps": 0}, "training.gradient_accumulation_steps"),
        ({"gradient_clip_norm": 0.0}, "training.gradient_clip_norm"),
        ({"early_stopping": {"patience": 0}}, "training.early_stopping.patience"),
        ({"early_stopping": {"patience": 1, "min_delta": -1}}, "training.early_stopping.min_delta"),
        ({"optimizers": []}, "training.optimizers"),
        ({"optimizers": [{**SGD, "param_groups": []}]}, "training.optimizers.0.param_groups"),
        ({"optimizers": [{**SGD, "param_groups": [{"module": "net.x"}]}]}, "training.optimizers.0.param_groups.0.module"),
        ({"optimizers": [SGD, SGD]}, "training.optimizers: the name 'default' is used twice"),
        ({"optimizers": [{**SGD, "source": "JAX"}]}, "training.optimizers.0.source"),
        ({"optimization_criterion": {"name": "MSELoss", "config": {"reduction": "none"}}}, "training.optimization_criterion.config: reduction"),
        ({"lr_scheduler": {"name": "StepLR", "step_every": "hour"}}, "training.lr_scheduler.step_every"),
        ({"lr_scheduler": {"name": "ReduceLROnPlateau", "step_every": "batch"}}, "looks at the mean loss of an epoch"),
        (
            {"amp": True, "device": "cuda:0", "grad_scaler_config": {"backoff_factor": 1.5}},
            "training.grad_scaler_config.backoff_factor",
        ),
        ({"bach_size": 3}, "training.bach_size: there is no such key, did you mean 'batch_size'?"),
        ({"checkpointing": {"activ": True}}, "training.checkpointing.activ: there is no such key, did you mean 'activated'?"),
    ],
)  # fmt: skip
def test_bounds_are_enforced(options: dict[str, Any], path: str) -> None:
    assert path in told(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr_scheduler": {"name": "StepLR", "optimizers": ["defualt"]}}, "no optimizer 'defualt', did you mean 'default'?"),
        ({"initial_model": "pretrained"}, "'pretrained' needs initial_model_id"),
        ({"initial_model_id": 4}, "initial_model is 'random'"),
        ({"grad_scaler_config": {}}, "needs amp: true, and a CUDA device or amp_dtype: float16"),
        ({"grad_scaler_config": {}, "amp": True}, "needs amp: true, and a CUDA device or amp_dtype: float16"),
        ({"grad_scaler_config": {"enabled": False, "growth_factor": 3.0}}, "is of mixed precision: it needs amp: true"),
        ({"amp_dtype": "bfloat16"}, "amp_dtype is of mixed precision: it needs amp: true"),
        ({"keep_optimizer_state": True, "use_previous_model": False}, "needs use_previous_model: true"),
        ({"enable_accurate_gpu_measurements": True}, "needs a CUDA device"),
        ({"early_stopping": {"patience": 2}, "epochs_per_trigger": 2}, "allow more epochs or a smaller patience"),
    ],
)
def test_what_does_not_fit_together_is_refused(options: dict[str, Any], message: str) -> None:
    assert message in told(**options)


@pytest.mark.parametrize("name", ["batch_size", "use_previous_model", "optimizers", "optimization_criterion"])
def test_what_has_no_default_is_required(name: str) -> None:
    options = section()
    del options[name]
    with pytest.raises(ConfigError, match=f"training.{name}: is required"):
        load_section(TrainingConfig, options, "training")


def test_every_field_says_what_it_means() -> None:
    assert [name for name, field in TrainingConfig.model_fields.items() if not field.description] == []
