"""Whether a training has diverged: a loss or a weight that is no finite number. Imports torch: for workers only."""

from __future__ import annotations

import math

import torch
from torch import nn

from modyn.errors import TrainingError
from modyn.trainer_server.loop import Hook, Training


class DivergedError(TrainingError):
    """The loss or the weights are not finite any more."""


class FiniteLoss(Hook):
    """Ends a training after the first epoch whose mean loss is not finite. That loss is read once an epoch anyway."""

    def on_epoch(self, training: Training) -> None:
        """Raise DivergedError if the mean loss of the epoch is no finite number."""
        loss = training.mean_epoch_loss()
        if not math.isfinite(loss):
            raise DivergedError(f"the mean loss of epoch {training.progress.epoch} is {loss}")


def check_weights(model: nn.Module) -> None:
    """Check that every parameter is finite and no buffer is NaN (a mask may hold infinities). Reads one number from the device.

    Raises DivergedError, naming the first that is not.
    """
    sound = {name: value.detach().isfinite().all() for name, value in model.named_parameters()}
    sound |= {name: ~value.isnan().any() for name, value in model.named_buffers() if value.is_floating_point()}
    if sound and not bool(torch.stack([each.reshape(()) for each in sound.values()]).all()):
        name = next(name for name, each in sound.items() if not bool(each))
        raise DivergedError(f"'{name}' holds values that are not finite")
