"""The section `training` of a pipeline: its options, their limits and their dependencies. Imports no torch.

PyTorch's optimizers and schedulers are named by their class; registries contain the optimizers and schedulers from packages of users.

Checks that need torch (class names, constructor arguments, module paths) are in `check.py` and run in a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from modyn.cache.plan.tier_choice import SampleOrder
from modyn.config.base import Matching, Section
from modyn.registry import Registry, nearest

OPTIMIZERS: Registry[Callable[..., Any]] = Registry(group="modyn.optimizers", kind="optimizer", has_options=False)
"""Called with the parameter groups, a list of {params, **options}; returns a torch.optim.Optimizer."""

SCHEDULERS: Registry[Callable[..., Any]] = Registry(group="modyn.schedulers", kind="learning rate scheduler", has_options=False)
"""Called with (optimizer, **config); returns an object with step(), state_dict() and load_state_dict()."""


class ParamGroupConfig(Section):
    """Parameters with the same options in an optimizer."""

    module: Annotated[
        str,
        Matching(r"^model(\.[A-Za-z0-9_]+)*$", "write `model`, or a path below it with dots, for example model.layer1.0.weight"),
    ] = Field(
        "model",
        description="path to a module or parameter: `model` is the whole model",
        examples=["model.top_model"],
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="options of the optimizer for this group", examples=[{"lr": 0.1, "momentum": 0.9}]
    )


class OptimizerConfig(Section):
    """One optimizer and its parameters."""

    name: str = Field(description="name for `lr_scheduler.optimizers`", min_length=1, examples=["default"])
    algorithm: str = Field(description="a class of torch.optim, of apex.optimizers, or a registered id", examples=["SGD"])
    source: Literal["PyTorch", "APEX", "Custom"] = Field(
        "PyTorch", description="source of `algorithm`; `Custom`: the registry modyn.optimizers"
    )
    param_groups: list[ParamGroupConfig] = Field(min_length=1, description="disjoint groups of parameters")


class CriterionConfig(Section):
    """The loss."""

    name: str = Field(description="a class of torch.nn", examples=["CrossEntropyLoss"])
    config: dict[str, Any] = Field(default_factory=dict, description="arguments of its constructor")

    @field_validator("config")
    @classmethod
    def _one_number(cls, value: dict[str, Any]) -> dict[str, Any]:
        if value.get("reduction", "mean") not in ("mean", "sum"):
            raise ValueError(f"reduction is {value['reduction']!r}, but a loss must be one number: use 'mean' or 'sum'")
        return value


class SchedulerPart(Section):
    """A scheduler, or a part of another scheduler."""

    name: str = Field(description="a class of torch.optim.lr_scheduler, or a registered id", examples=["CosineAnnealingLR"])
    source: Literal["PyTorch", "Custom"] = Field(
        "PyTorch", description="source of `name`; `Custom`: the registry modyn.schedulers"
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="arguments of its constructor, in which MODYN_NUM_BATCHES (number of steps of the optimizers in this training), "
        "MODYN_NUM_EPOCHS and arithmetic are allowed. `schedulers` of SequentialLR and ChainedScheduler: a list of entries with "
        "`name`, `source` and `config`, for example a warm-up before a cosine; `milestones` are rounded down",
        examples=[{"T_max": "MODYN_NUM_BATCHES"}],
    )


class SchedulerConfig(SchedulerPart):
    """Changes of learning rates during one training. A scheduler starts again with each trigger."""

    step_every: Literal["epoch", "batch"] = Field(
        "epoch", description="`batch`: the scheduler steps after each step of the optimizers"
    )
    optimizers: list[str] = Field(
        default_factory=list, description="names of the optimizers whose rates change, each with its own scheduler; none: all"
    )

    @model_validator(mode="after")
    def _plateaus_are_seen_by_epoch(self) -> Self:
        if self.name == "ReduceLROnPlateau" and self.step_every == "batch":
            raise ValueError("ReduceLROnPlateau looks at the mean loss of an epoch: set step_every to 'epoch'")
        return self


class CheckpointingConfig(Section):
    """Checkpoints from which a killed training resumes, with the same result. The trainer server removes checkpoints at the end of the training."""

    activated: bool = Field(False, description="write checkpoints")
    interval: int = Field(1000, ge=1, description="number of batches between two checkpoints")
    path: Path | None = Field(None, description="folder of checkpoints; none: below the state folder of the trainer server")

    @field_validator("interval", mode="before")
    @classmethod
    def _default_if_null(cls, value: object) -> object:
        """Replace null by the default, because files of the published system write null if checkpoints are off."""
        return cls.model_fields["interval"].default if value is None else value


class ValidationConfig(Section):
    """A validation set from each trigger set. The training does not use these samples; `early_stopping` and ReduceLROnPlateau use their mean loss
    after each epoch.
    """

    ratio: int = Field(
        ge=1,
        le=99,
        description="percent of each partition (`selection_strategy.maximum_keys_in_memory`) to hold out, rounded down: the keys with the "
        "lowest hash of `seed` and key. Overlapping trigger sets hold out mostly the same keys; with `use_previous_model`, the parent "
        "may have been trained on the others. If the share is less than one sample, no sample is held out, and the log warns",
    )


class EarlyStoppingConfig(Section):
    """Stop when the mean loss has not fallen by more than `min_delta` for `patience` epochs in a row. With `validation`, the loss of the validation
    set counts, otherwise the loss of the epoch.
    """

    patience: int = Field(ge=1, description="number of epochs without improvement")
    min_delta: float = Field(0.0, ge=0, description="minimum decrease of the loss that counts as an improvement")


class GradScalerConfig(Section):
    """Options of torch.amp.GradScaler; see PyTorch's documentation."""

    init_scale: float = Field(65536.0, gt=0, description="initial factor of the loss")
    growth_factor: float = Field(2.0, gt=1, description="multiplier of the factor after `growth_interval` sound steps")
    backoff_factor: float = Field(0.5, gt=0, lt=1, description="multiplier of the factor after a step with infinite gradients")
    growth_interval: int = Field(
        2000, ge=1, description="number of successive steps without infinite gradients before the factor grows"
    )
    enabled: bool = Field(
        True,
        description="scale the loss; if false, mixed precision is in bfloat16, unless `amp_dtype` is float16, whose small gradients then become "
        "0",
    )


class TrainingConfig(Section):
    """Training of a model on a trigger set."""

    gpus: int = Field(1, ge=1, description="more than one is not available yet")
    device: Annotated[str, Matching(r"^(cpu|cuda(:\d+)?)$", "write cpu, cuda or cuda:N")] = Field(
        "cpu", description="`cpu`, `cuda:N`, or `cuda`: the GPU with the fewest trainings", examples=["cuda:0"]
    )
    epochs_per_trigger: int = Field(1, ge=1, description="number of passes over the trigger set")
    num_samples_to_pass: list[Annotated[int, Field(ge=1)]] | None = Field(
        None,
        description="entry i: largest number of samples that the training of trigger i sees, over as many epochs as it takes; later triggers "
        "use `epochs_per_trigger`",
    )
    dataloader_workers: int = Field(
        1,
        ge=1,
        le=1024,
        description="number of threads that read and decode batches; processes, if Python code runs for each sample",
    )
    batch_size: int = Field(ge=1, description="samples in a batch")
    drop_last_batch: bool = Field(
        True,
        description="leave out the last batch of an epoch if it is smaller than the others. Without effect if downsampling chooses batches "
        "(batch-then-sample): an epoch keeps exactly its ratio, in batches of nearly equal size, at most `batch_size`",
    )
    shuffle: bool = Field(
        False,
        description="in each epoch, draw a new order of partitions and of the samples in each; one partition: of all samples",
    )
    num_prefetched_partitions: int = Field(
        1, ge=0, description="number of partitions (or of slices of large ones) that are fetched ahead"
    )
    parallel_prefetch_requests: int = Field(
        1, ge=1, description="number of concurrent streams of payloads, if workers do not read data files directly"
    )
    use_previous_model: bool = Field(description="start from the model of the previous trigger (fine-tuning), not from scratch")
    initial_model: Literal["random", "pretrained"] = Field("random", description="weights from which the first trigger starts")
    initial_model_id: int | None = Field(None, ge=1, description="number of the stored model for `pretrained`")
    seed: int | None = Field(None, ge=0, le=2**63 - 1, description="seed that makes a run repeatable: same weights on CPU")
    amp: bool = Field(False, description="train in mixed precision, see `amp_dtype`")
    amp_dtype: Literal["float16", "bfloat16"] | None = Field(
        None,
        description="type of mixed precision; none: bfloat16, which needs no loss scaling; but float16 on a GPU without bfloat16 (older than "
        "Ampere), or if grad_scaler_config is given and enabled",
    )
    grad_scaler_config: GradScalerConfig | None = Field(None, description="loss scaling of mixed precision in float16")
    checkpointing: CheckpointingConfig = Field(default_factory=CheckpointingConfig, description="snapshots to resume from")
    record_loss_every: int = Field(0, ge=0, description="keep the loss of every n-th batch with the model; 0: none")
    enable_accurate_gpu_measurements: bool = Field(
        False, description="wait for the GPU around each measured block, which gives exact stage times and slower training"
    )
    optimizers: list[OptimizerConfig] = Field(min_length=1, description="all of them step after each batch, in this order")
    optimization_criterion: CriterionConfig = Field(description="the loss")
    lr_scheduler: SchedulerConfig | None = Field(None, description="how learning rates change; none: they are constant")
    gradient_accumulation_steps: int = Field(1, ge=1, description="number of batches whose gradients are averaged for one step")
    gradient_clip_norm: float | None = Field(None, gt=0, description="largest norm of all gradients together")
    compile: bool = Field(False, description="run the model through torch.compile")
    keep_optimizer_state: bool = Field(
        False, description="fine-tuning continues with the state of the parent training's optimizers, which model storage keeps"
    )
    on_divergence: Literal["fail", "keep_previous"] = Field(
        "fail",
        description="if the loss of an epoch or a weight is not finite, or if no step could change the model (all skipped in mixed precision, "
        "all gradients 0, or all labels ignored): `fail` ends the run with an error; `keep_previous` stores no model, so the "
        "previous one stays in use, and the run continues",
    )
    validation: ValidationConfig | None = Field(
        None, description="samples to hold out for `early_stopping` and ReduceLROnPlateau; none: they use the training loss"
    )
    early_stopping: EarlyStoppingConfig | None = Field(None, description="stop before the last epoch if the loss no longer falls")

    @field_validator("gpus")
    @classmethod
    def _one_gpu(cls, value: int) -> int:
        if value > 1:
            raise ValueError(f"{value} GPUs are not available yet; use 1")
        return value

    @field_validator("optimizers")
    @classmethod
    def _distinct_names(cls, value: list[OptimizerConfig]) -> list[OptimizerConfig]:
        names = [optimizer.name for optimizer in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the name '{name}' is used twice; give each optimizer its own")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        wrong = "; ".join(self._contradictions())
        if wrong:
            raise ValueError(wrong)
        return self

    def _contradictions(self) -> Iterable[str]:
        names = [optimizer.name for optimizer in self.optimizers]
        for name in self.lr_scheduler.optimizers if self.lr_scheduler else ():
            if name not in names:
                yield f"lr_scheduler.optimizers: there is no optimizer '{name}'{nearest(name, names)} Allowed: {', '.join(names)}"
        if self.initial_model == "pretrained" and self.initial_model_id is None:
            yield "initial_model: 'pretrained' needs initial_model_id, a stored model (`modyn models ls`)"
        if self.initial_model == "random" and self.initial_model_id is not None:
            yield "initial_model_id is set, but initial_model is 'random': set it to 'pretrained' or remove the id"
        if self.amp_dtype is not None and not self.amp:
            yield "amp_dtype is of mixed precision: it needs amp: true"
        scaled = self.amp and (self.amp_dtype == "float16" or (self.amp_dtype is None and self.on_gpu))
        if self.loss_scaling and not scaled:
            yield "grad_scaler_config scales the loss of float16: it needs amp: true, and a CUDA device or amp_dtype: float16"
        elif self.grad_scaler_config is not None and not self.amp:
            yield "grad_scaler_config is of mixed precision: it needs amp: true"
        if self.keep_optimizer_state and not self.use_previous_model:
            yield "keep_optimizer_state continues from the parent training: it needs use_previous_model: true"
        if self.enable_accurate_gpu_measurements and not self.on_gpu:
            yield "enable_accurate_gpu_measurements needs a CUDA device"
        if (
            self.early_stopping is not None
            and self.epochs_per_trigger <= self.early_stopping.patience
            and not self.num_samples_to_pass
        ):
            yield (
                f"early_stopping.patience is {self.early_stopping.patience}, which {self.epochs_per_trigger} epochs_per_trigger "
                "never exceed: allow more epochs or a smaller patience"
            )

    @property
    def on_gpu(self) -> bool:
        """Whether `device` is a CUDA device."""
        return self.device.startswith("cuda")

    @property
    def loss_scaling(self) -> bool | None:
        """Whether to scale the loss, by `grad_scaler_config`. None: the type of mixed precision decides."""
        return None if self.grad_scaler_config is None else self.grad_scaler_config.enabled

    @property
    def order(self) -> SampleOrder:
        """The order in which a training reads its samples."""
        return SampleOrder(self.shuffle, self.seed is not None, self.batch_size, self.dataloader_workers)

    def samples_to_pass(self, trigger_id: int) -> int | None:
        """Return the limit on the samples of this trigger's training, or None if `epochs_per_trigger` applies."""
        bounds = self.num_samples_to_pass or []
        return bounds[trigger_id] if trigger_id < len(bounds) else None
