"""The section `training` of a pipeline: every option with its bounds and what has to fit together. Knows no torch.

Optimizers and schedulers of PyTorch are named by their class; the registries hold those that packages of users bring.

What needs torch to be checked (class names, constructor arguments, module paths) is checked by `check.py` in a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from modyn.config.base import Matching, Section
from modyn.registry import Registry, nearest

OPTIMIZERS: Registry[Callable[..., Any]] = Registry(group="modyn.optimizers", kind="optimizer", has_options=False)
"""Called with the parameter groups, a list of {params, **options}; returns a torch.optim.Optimizer."""

SCHEDULERS: Registry[Callable[..., Any]] = Registry(group="modyn.schedulers", kind="learning rate scheduler", has_options=False)
"""Called with (optimizer, **config); returns an object with step(), state_dict() and load_state_dict()."""


class ParamGroupConfig(Section):
    """Parameters that an optimizer treats alike."""

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
    """One optimizer and what it optimizes."""

    name: str = Field(description="what `lr_scheduler.optimizers` calls it", min_length=1, examples=["default"])
    algorithm: str = Field(description="a class of torch.optim, of apex.optimizers, or a registered id", examples=["SGD"])
    source: Literal["PyTorch", "APEX", "Custom"] = Field(
        "PyTorch", description="where `algorithm` is from; `Custom`: the registry modyn.optimizers"
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
    """A scheduler, by itself or as a part of another one."""

    name: str = Field(description="a class of torch.optim.lr_scheduler, or a registered id", examples=["CosineAnnealingLR"])
    source: Literal["PyTorch", "Custom"] = Field(
        "PyTorch", description="where `name` is from; `Custom`: the registry modyn.schedulers"
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="arguments of its constructor; MODYN_NUM_BATCHES and MODYN_NUM_EPOCHS stand for the number of times that the "
        "optimizers step, and of epochs, in this training; arithmetic is allowed. `schedulers` of SequentialLR and ChainedScheduler: a list of "
        "entries with `name`, `source` and `config`, for a warm-up before a cosine, say; `milestones` are rounded down",
        examples=[{"T_max": "MODYN_NUM_BATCHES"}],
    )


class SchedulerConfig(SchedulerPart):
    """How learning rates change over one training. A scheduler starts anew with each trigger."""

    step_every: Literal["epoch", "batch"] = Field("epoch", description="`batch`: after each step of the optimizers")
    optimizers: list[str] = Field(
        default_factory=list, description="names of the optimizers that it drives, each with a scheduler of its own; none: all"
    )

    @model_validator(mode="after")
    def _plateaus_are_seen_by_epoch(self) -> Self:
        if self.name == "ReduceLROnPlateau" and self.step_every == "batch":
            raise ValueError("ReduceLROnPlateau looks at the mean loss of an epoch: set step_every to 'epoch'")
        return self


class CheckpointingConfig(Section):
    """Snapshots from which a killed training goes on, with the same result. Removed when the training has finished."""

    activated: bool = Field(False, description="write checkpoints")
    interval: int = Field(1000, ge=1, description="batches between two checkpoints")
    path: Path | None = Field(None, description="folder for them; none: below the state folder of the trainer server")

    @field_validator("interval", mode="before")
    @classmethod
    def _default_if_null(cls, value: object) -> object:
        """Files of the published system say null where checkpoints are off."""
        return cls.model_fields["interval"].default if value is None else value


class ValidationConfig(Section):
    """Samples of each trigger set that are held out: not trained on, their mean loss after each epoch is what `early_stopping` and
    ReduceLROnPlateau look at."""

    ratio: int = Field(
        ge=1,
        le=99,
        description="percent of each partition (`selection_strategy.maximum_keys_in_memory`), rounded down, of the keys that rank lowest by a "
        "hash of `seed` (none: 0) and key. Trigger sets that overlap hold out the same keys, but for a few at the edge of the share, more in "
        "small partitions: with `use_previous_model`, the model may have been trained on those, as on any after a change of `ratio` or `seed`. "
        "Where the share is no sample, nothing is held out, and the log warns",
    )


class EarlyStoppingConfig(Section):
    """Stop when the mean loss of an epoch, of samples that are held out if there is `validation`, has not fallen by more than `min_delta` for
    `patience` epochs in a row."""

    patience: int = Field(ge=1, description="epochs without improvement")
    min_delta: float = Field(0.0, ge=0, description="how much lower a loss must be to count as better")


class GradScalerConfig(Section):
    """Options of torch.amp.GradScaler, see there."""

    init_scale: float = Field(65536.0, gt=0, description="factor of the loss at the start")
    growth_factor: float = Field(2.0, gt=1, description="what the factor is multiplied by after `growth_interval` sound steps")
    backoff_factor: float = Field(
        0.5, gt=0, lt=1, description="what the factor is multiplied by after a step with infinite gradients"
    )
    growth_interval: int = Field(2000, ge=1, description="steps in a row without infinite gradients before the factor grows")
    enabled: bool = Field(
        True,
        description="scale at all; without, mixed precision is in bfloat16 unless `amp_dtype` is float16, whose small gradients then become 0",
    )


class TrainingConfig(Section):
    """How a model is trained on a trigger set."""

    gpus: int = Field(1, ge=1, description="more than one is not available yet")
    device: Annotated[str, Matching(r"^(cpu|cuda(:\d+)?)$", "write cpu, cuda or cuda:N")] = Field(
        "cpu", description="`cpu`, `cuda:N`, or `cuda`: the GPU with the fewest trainings", examples=["cuda:0"]
    )
    epochs_per_trigger: int = Field(1, ge=1, description="passes over the trigger set")
    num_samples_to_pass: list[Annotated[int, Field(ge=1)]] | None = Field(
        None,
        description="entry i bounds the samples of trigger i, over as many epochs as it takes; later triggers use the epochs",
    )
    dataloader_workers: int = Field(
        1, ge=1, le=1024, description="threads that read and decode batches; processes where Python runs for each sample"
    )
    batch_size: int = Field(ge=1, description="samples in a batch")
    drop_last_batch: bool = Field(
        True,
        description="leave out the last batch of an epoch where it is smaller than the others. Where batches are chosen by downsampling "
        "(batch-then-sample) there is none: an epoch keeps exactly its ratio, in batches of nearly one size, at most `batch_size`",
    )
    shuffle: bool = Field(
        False,
        description="draw the order of the samples anew in each epoch, within and among partitions; one partition: over all samples",
    )
    num_prefetched_partitions: int = Field(
        1, ge=0, description="partitions, or fetch slices of large ones, that are fetched ahead"
    )
    parallel_prefetch_requests: int = Field(
        1, ge=1, description="streams of payloads at the same time, where the short cut is not taken"
    )
    use_previous_model: bool = Field(description="start from the model of the trigger before (fine-tune), not from scratch")
    initial_model: Literal["random", "pretrained"] = Field("random", description="what the first trigger starts from")
    initial_model_id: int | None = Field(None, ge=1, description="the stored model that `pretrained` means")
    seed: int | None = Field(None, ge=0, le=2**63 - 1, description="makes a run repeatable: same weights on CPU")
    amp: bool = Field(False, description="mixed precision, in `amp_dtype`")
    amp_dtype: Literal["float16", "bfloat16"] | None = Field(
        None,
        description="what mixed precision computes in; none: bfloat16, which needs no loss scaling, but float16 on a GPU that lacks it (older than "
        "Ampere), or where grad_scaler_config is given and enabled",
    )
    grad_scaler_config: GradScalerConfig | None = Field(None, description="loss scaling of mixed precision in float16")
    checkpointing: CheckpointingConfig = Field(default_factory=CheckpointingConfig, description="snapshots to go on from")
    record_loss_every: int = Field(0, ge=0, description="keep the loss of every n-th batch with the model; 0: none")
    enable_accurate_gpu_measurements: bool = Field(
        False, description="wait for the GPU around each measured block: exact stage times, slower training"
    )
    optimizers: list[OptimizerConfig] = Field(min_length=1, description="all step after each batch, in this order")
    optimization_criterion: CriterionConfig = Field(description="the loss")
    lr_scheduler: SchedulerConfig | None = Field(None, description="how learning rates change; none: they stay")
    gradient_accumulation_steps: int = Field(1, ge=1, description="batches whose gradients are averaged for one step")
    gradient_clip_norm: float | None = Field(None, gt=0, description="bound of the norm of all gradients together")
    compile: bool = Field(False, description="run the model through torch.compile")
    keep_optimizer_state: bool = Field(
        False, description="fine-tuning goes on with the optimizers' state of the parent training, which model storage keeps"
    )
    on_divergence: Literal["fail", "keep_previous"] = Field(
        "fail",
        description="where the loss of an epoch or a weight is not finite, or no step could change the model (all skipped in mixed precision, all "
        "gradients 0, all labels ignored): `fail` ends the run with an error; `keep_previous` stores no model, "
        "the one before stays in use and the run goes on",
    )
    validation: ValidationConfig | None = Field(
        None, description="samples to hold out for `early_stopping` and ReduceLROnPlateau; none: they look at the training loss"
    )
    early_stopping: EarlyStoppingConfig | None = Field(None, description="stop before the last epoch when it no longer helps")

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
            yield "keep_optimizer_state goes on from the parent training: it needs use_previous_model: true"
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
        """Whether to scale the loss, as `grad_scaler_config` says; None: as the type of mixed precision needs."""
        return None if self.grad_scaler_config is None else self.grad_scaler_config.enabled

    def samples_to_pass(self, trigger_id: int) -> int | None:
        """Bound on the samples of this trigger's training; None: `epochs_per_trigger` counts."""
        bounds = self.num_samples_to_pass or []
        return bounds[trigger_id] if trigger_id < len(bounds) else None
