"""Whether a training has learned: what ends it with an error although all of its batches were trained on, and what its result warns of.

Counts are read at the end only, as reading them waits for the device. Imports torch: for workers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

import torch
from torch import Tensor

from modyn.dataset.batch import Batch
from modyn.errors import TrainingError
from modyn.trainer_server.config import GradScalerConfig, TrainingConfig
from modyn.trainer_server.downsampling_record import DownsamplingRecord
from modyn.trainer_server.hooks import Losses
from modyn.trainer_server.loop import Hook, Training
from modyn.trainer_server.schedules import shortfalls

_SKIPPED: Final = Fraction(1, 10)
"""Share of skipped steps above which a training warns."""
_FEWEST_LOSSES: Final = 3
"""Losses of batches that must be equal for the loss to count as constant."""
_NO_GRADIENT: Final = (
    "no parameter of training.optimizers had a gradient, as the loss does not depend on them: name other modules in param_groups"
)


class NothingLearnedError(TrainingError):
    """A training whose steps could not change the model."""


class IgnoredLabels(Hook):
    """Counts the labels that the loss ignores, on the device."""

    name = "ignored_labels"

    def __init__(self) -> None:
        self._num_labels = 0
        self._ignored: Tensor | None = None

    def on_output(self, training: Training, batch: Batch, output: Any) -> None:
        """Count the labels of a batch, if the loss ignores some class."""
        ignored = training.components.criterion.num_ignored(batch.labels)
        if ignored is not None:
            self._num_labels += batch.labels.numel()
            self._ignored = ignored if self._ignored is None else self._ignored + ignored

    @property
    def num_labels(self) -> int:
        """Labels that were trained on, each as often as it was; 0 where the loss ignores no class."""
        return self._num_labels

    @property
    def num_ignored(self) -> int:
        """Number of labels that the loss ignored. Waits for the device."""
        return 0 if self._ignored is None else int(self._ignored)

    def state(self) -> dict[str, Any]:
        """Return the counts of all labels and of ignored ones. Waits for the device."""
        return {"num_labels": self._num_labels, "num_ignored": self.num_ignored}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._num_labels, self._ignored = int(state["num_labels"]), torch.tensor(state["num_ignored"])


def check_learned(training: Training, config: TrainingConfig) -> None:
    """Check at the end of a training that a step could change the model, if any was to be made. Raises: NothingLearnedError."""
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


def learning_result(training: Training, config: TrainingConfig) -> dict[str, Any]:
    """What the result of a training says of how it learned: `skipped_steps`, and where there are some `ignored_labels`, of how many `num_labels`, and
    `warnings`, a sentence each."""
    labels = _ignored(training)
    counted = {"ignored_labels": labels.num_ignored, "num_labels": labels.num_labels} if labels.num_ignored else {}
    warnings = list(_warnings(training, config))
    return {"skipped_steps": training.progress.skipped_steps, **counted, **({"warnings": warnings} if warnings else {})}


def _warnings(training: Training, config: TrainingConfig) -> Iterator[str]:
    progress = training.progress
    if progress.skipped_steps > _SKIPPED * progress.steps:
        scaled = training.components.scaler.is_enabled()
        why = f"as gradients were infinite: {_scaling_advice(config)}" if scaled else f"as {_NO_GRADIENT}"
        yield f"{progress.skipped_steps:,} of {progress.steps:,} steps were skipped, {why}"
    if _losses_are_zero(training):
        yield "the loss of every batch was 0: nothing was left to learn"
    elif len(set(losses := _sampled_losses(training))) == 1 and len(losses) >= _FEWEST_LOSSES:
        yield (
            f"the loss of every batch that was looked at was {losses[0]:.6g}: it does not depend on what the optimizers change, or the learning rate "
            "is too small"
        )
    for found in shortfalls(config.lr_scheduler, num_batches=training.plan.num_steps, num_epochs=training.plan.num_epochs):
        yield f"{found.path}: {found.message}"
    for hook in training.hooks:
        if isinstance(hook, DownsamplingRecord):
            yield from hook.warnings()


def _no_step(training: Training, config: TrainingConfig) -> str:
    """Why none of the steps was made."""
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
    return next((hook for hook in training.hooks if isinstance(hook, IgnoredLabels)), IgnoredLabels())


def _losses_are_zero(training: Training) -> bool:
    found = _sampled_losses(training)
    return bool(found) and not any(found) and not any(_losses(training).epochs)


def _sampled_losses(training: Training) -> list[float]:
    return _losses(training).sampled()


def _losses(training: Training) -> Losses:
    return next(hook for hook in training.hooks if isinstance(hook, Losses))
