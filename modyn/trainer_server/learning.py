"""Decide at the end of a training whether the model has learned: raise an error if no step could change the model, and collect warnings for the
result.

Counts are read only at the end, because the read waits for the device. Imports torch: for workers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

import torch
from torch import Tensor

from modyn.dataset.batch import Batch
from modyn.errors import TrainingError
from modyn.trainer_server.loop.hooks import Losses
from modyn.trainer_server.loop.loop import Hook, Training
from modyn.trainer_server.loop.schedules import shortfalls
from modyn.trainer_server.request.config import GradScalerConfig, TrainingConfig
from modyn.trainer_server.scoring.downsampling_record import DownsamplingRecord

_SKIPPED: Final = Fraction(1, 10)
"""Share of skipped steps above which a training warns."""
_FEWEST_LOSSES: Final = 3
"""Smallest number of equal losses, one a batch, that count as a constant loss."""
_SUMMED_AT_ONCE: Final = 1 << 20
"""Number of values of a parameter that are summed at once, because a sum may copy its values as int64."""
_BITS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type of a value by its number of bytes."""
_NO_GRADIENT: Final = (
    "no parameter of training.optimizers had a gradient, as the loss does not depend on them: name other modules in param_groups"
)


class NothingLearnedError(TrainingError):
    """A training made no step that could change the model."""


class IgnoredLabels(Hook):
    """Counts the labels that the loss ignores, on the device."""

    name = "ignored_labels"

    def __init__(self) -> None:
        self._num_labels = 0
        self._ignored: Tensor | None = None

    def on_output(self, training: Training, batch: Batch, output: Any) -> None:
        """Count the labels of a batch, if the loss ignores a class."""
        ignored = training.components.criterion.num_ignored(batch.labels)
        if ignored is not None:
            self._num_labels += batch.labels.numel()
            self._ignored = ignored if self._ignored is None else self._ignored + ignored

    @property
    def num_labels(self) -> int:
        """Number of labels trained on, counted again in each epoch; 0 if the loss ignores no class."""
        return self._num_labels

    @property
    def num_ignored(self) -> int:
        """Number of labels that the loss ignored. Waits for the device."""
        return 0 if self._ignored is None else int(self._ignored)

    def state(self) -> dict[str, Any]:
        """Return the counts of all labels and of ignored labels. Waits for the device."""
        return {"num_labels": self._num_labels, "num_ignored": self.num_ignored}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state`."""
        self._num_labels, self._ignored = int(state["num_labels"]), torch.tensor(state["num_ignored"])


class FirstWeights(Hook):
    """Keeps a checksum of each optimized parameter from before the first step. All values count, because a step may change few rows of a large
    embedding."""

    name = "first_weights"

    def __init__(self) -> None:
        self._first: list[int] | None = None

    def on_begin(self, training: Training) -> None:
        """Compute the checksums, unless a checkpoint has restored them."""
        if self._first is None:
            self._first = _checksums(training)

    def have_changed(self, training: Training) -> bool:
        """Return whether any parameter has changed. Waits for the device."""
        return self._first != _checksums(training)

    def state(self) -> dict[str, Any]:
        """Return the checksums."""
        return {"first": self._first}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state`."""
        self._first = state["first"]


def _checksums(training: Training) -> list[int]:
    """Return the sum of the bits of each parameter of the optimizers, each value read as a whole number, modulo 2^64. Waits for the device."""
    groups = (group for optimizer in training.components.optimizers.values() for group in optimizer.param_groups)
    sums = [_sum_of_bits(parameter.detach()) for group in groups for parameter in group["params"]]
    return [int(total) for total in sums]


def _sum_of_bits(values: Tensor) -> Tensor:
    real = torch.view_as_real(values) if values.is_complex() else values
    bits = real.reshape(-1).view(_BITS[real.element_size()])
    return torch.stack([part.sum(dtype=torch.int64) for part in torch.split(bits, _SUMMED_AT_ONCE)]).sum()


def check_learned(training: Training, config: TrainingConfig) -> None:
    """Check at the end of a training that a step could change the model, unless the training had no step. Raises: NothingLearnedError."""
    progress = training.progress
    if training.tests_only or not progress.steps:
        return
    if not progress.made_steps:
        raise NothingLearnedError(_no_step(training, config))
    if progress.has_gradient:
        return
    if (labels := _ignored(training)).num_labels and labels.num_ignored == labels.num_labels:
        criterion = training.components.criterion
        raise NothingLearnedError(
            f"all {labels.num_labels} labels equal ignore_index of {config.optimization_criterion.name} ({criterion.ignore_index}), so "
            "there was nothing to learn: correct the labels, data.label_transformer_function, or optimization_criterion.config.ignore_index"
        )
    if not _losses_are_zero(training):
        scaling = (
            "enable training.grad_scaler_config or compute in bfloat16, as small gradients of float16 become 0 without scaling"
            if training.components.amp_dtype is torch.float16 and not training.components.scaler.is_enabled()
            else "the loss does not depend on the parameters of training.optimizers, or all activations are saturated: look at the scale of the "
            "inputs, and at what the model does with them"
        )
        raise NothingLearnedError(f"every gradient was 0 in all {progress.steps} steps, so no step followed the loss: {scaling}")


def count_ignored_labels(training: Training) -> tuple[int, int]:
    """Return the number of ignored labels and of all labels trained on; both 0 if the loss ignores no class. Waits for the device."""
    labels = _ignored(training)
    return labels.num_ignored, labels.num_labels


def learning_warnings(training: Training, config: TrainingConfig) -> Iterator[str]:
    """Yield warnings about a training's learning, one sentence each."""
    progress = training.progress
    if progress.skipped_steps > _SKIPPED * progress.steps:
        scaled = training.components.scaler.is_enabled()
        why = f"as gradients were infinite: {_scaling_advice(config)}" if scaled else f"as {_NO_GRADIENT}"
        yield f"{progress.skipped_steps:,} of {progress.steps:,} steps were skipped, {why}"
    if _losses_are_zero(training):
        yield "the loss of every batch was 0: nothing was left to learn"
    elif progress.made_steps and not all(hook.have_changed(training) for hook in training.hooks_of(FirstWeights)):
        yield (
            f"no parameter changed in {progress.made_steps:,} steps, so the model is as it was: raise the learning rate or "
            "training.gradient_clip_norm, and look at training.lr_scheduler, which may set the rate to 0"
        )
    # A loss that never changes, even in its last digit, does not depend on the weights.
    elif len(set(losses := _sampled_losses(training))) == 1 and len(losses) >= _FEWEST_LOSSES:
        yield (
            f"the loss of every batch that was looked at was {losses[0]:.6g}: it does not depend on what the optimizers change, or the learning rate "
            "is too small"
        )
    for found in shortfalls(config.lr_scheduler, num_batches=training.plan.num_steps, num_epochs=training.plan.num_epochs):
        yield f"{found.path}: {found.message}"
    for hook in training.hooks_of(DownsamplingRecord):
        yield from hook.warnings()


def _no_step(training: Training, config: TrainingConfig) -> str:
    """Explain why no step was made."""
    steps = training.progress.steps
    if not training.progress.has_gradient:
        return f"in all {steps} steps, {_NO_GRADIENT}"
    scale = training.components.scaler.get_scale()
    return (
        f"all {steps} steps were skipped: in mixed precision of float16 the gradients were infinite each time, though the loss scale fell from "
        f"{_scaler(config).init_scale:g} to {scale:g}, so the model is as it was: {_scaling_advice(config)}"
    )


def _scaling_advice(config: TrainingConfig) -> str:
    return (
        f"lower training.grad_scaler_config.init_scale ({_scaler(config).init_scale:g}), set training.amp_dtype: bfloat16, which needs no scale, or "
        "bring labels and inputs to values around 1"
    )


def _scaler(config: TrainingConfig) -> GradScalerConfig:
    return config.grad_scaler_config or GradScalerConfig()


def _ignored(training: Training) -> IgnoredLabels:
    return next(iter(training.hooks_of(IgnoredLabels)), IgnoredLabels())


def _losses_are_zero(training: Training) -> bool:
    found = _sampled_losses(training)
    return bool(found) and not any(found) and not any(_losses(training).epochs)


def _sampled_losses(training: Training) -> list[float]:
    return _losses(training).sampled()


def _losses(training: Training) -> Losses:
    [losses] = training.hooks_of(Losses)
    return losses
