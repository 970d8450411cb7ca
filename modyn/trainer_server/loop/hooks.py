"""Hooks of the training loop: loss log, divergence, early stopping, progress reports. Imports torch: for workers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from modyn.errors import TrainingError
from modyn.trainer_server.loop.loop import Hook, Training
from modyn.trainer_server.request.config import EarlyStoppingConfig

MAX_LOSSES: Final = 10_000
"""Largest number of entries in a loss log. At this number, every second entry is dropped and the interval doubles."""


class Losses(Hook):
    """Keeps the mean loss of each epoch, the mean loss of the validation set, and the loss of every n-th batch (0: of no batch). Losses of batches
    stay on the device until `read`.
    """

    name = "losses"

    def __init__(self, every: int) -> None:
        self.every = every
        self.epochs: list[float] = []
        """Mean loss of each epoch."""
        self.validation: list[float] = []
        """Mean loss of the validation set at the end of each epoch; empty if the training has no validation set."""
        self._batches: list[int] = []
        self._losses: list[Tensor | float] = []
        self._sampled: list[Tensor | float] = []

    def on_batch(self, training: Training) -> None:
        """Keep the loss of every n-th batch; halve the log when it has MAX_LOSSES entries."""
        # The losses of batches 1, 2, 4, 8, … are enough to detect a constant loss, and are few in any training.
        if training.loss is not None and training.progress.batches & (training.progress.batches - 1) == 0:
            self._sampled.append(training.loss)
        if not self.every or training.progress.batches % self.every or training.loss is None:
            return
        self._batches.append(training.progress.batches)
        self._losses.append(training.loss)
        if len(self._losses) >= MAX_LOSSES:
            self.every *= 2
            kept = [i for i, batch in enumerate(self._batches) if batch % self.every == 0]
            self._batches = [self._batches[i] for i in kept]
            self._losses = [float(self._losses[i]) for i in kept]

    def on_epoch(self, training: Training) -> None:
        """Keep the epoch's mean loss, for the first MAX_LOSSES epochs."""
        if len(self.epochs) < MAX_LOSSES:
            self.epochs.append(training.mean_epoch_loss())
            if training.validation_loss is not None:
                self.validation.append(training.validation_loss)

    def read(self) -> list[tuple[int, float]]:
        """Return pairs of batch number (from 1) and loss, in order. Waits for the device."""
        self._losses = [float(loss) for loss in self._losses]
        return [(batch, float(loss)) for batch, loss in zip(self._batches, self._losses, strict=True)]

    def sampled(self) -> list[float]:
        """Return the losses of batches 1, 2, 4, 8, …. Waits once for the device."""
        if not self._sampled:
            return []
        losses: list[float] = torch.stack([torch.as_tensor(loss) for loss in self._sampled]).float().cpu().numpy().tolist()
        return losses

    def state(self) -> dict[str, Any]:
        """Return the log and its interval `every`. Waits for the device."""
        log = {"every": self.every, "epochs": self.epochs, "validation": self.validation, "entries": self.read()}
        return {**log, "sampled": self.sampled()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state`."""
        self.every, self.epochs, self.validation = state["every"], list(state["epochs"]), list(state["validation"])
        self._batches = [int(batch) for batch, _ in state["entries"]]
        self._losses = [loss for _, loss in state["entries"]]
        self._sampled = list(state["sampled"])


class DivergedError(TrainingError):
    """The loss or a weight is no longer finite."""


class FiniteLoss(Hook):
    """Ends a training after the first epoch whose mean loss is not finite. The check causes no additional wait for the device, because each epoch
    reads the mean loss anyway.
    """

    def on_epoch(self, training: Training) -> None:
        """Raise DivergedError if the mean loss of the epoch is not finite."""
        loss = training.mean_epoch_loss()
        if not training.tests_only and not math.isfinite(loss):
            raise DivergedError(f"the mean loss of epoch {training.progress.epoch} is {loss}")


def check_weights(model: nn.Module) -> None:
    """Check that every parameter is finite and no buffer is NaN (a mask may contain infinities). Reads one number from the device.

    Raises DivergedError, which names the first wrong tensor.
    """
    sound = {name: value.detach().isfinite().all() for name, value in model.named_parameters()}
    sound |= {name: ~value.isnan().any() for name, value in model.named_buffers() if value.is_floating_point()}
    if sound and not bool(torch.stack([each.reshape(()) for each in sound.values()]).all()):
        name = next(name for name, each in sound.items() if not bool(each))
        raise DivergedError(f"'{name}' holds values that are not finite")


class EarlyStopping(Hook):
    """Ends the training when the mean loss of the validation set has not improved for `patience` epochs. Without a validation set, the hook uses the
    mean loss of the epoch.
    """

    name = "early_stopping"

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self._config = config
        self._best: float | None = None
        self._waited = 0

    def on_epoch(self, training: Training) -> None:
        """Compare the loss with the best loss. After `patience` epochs without improvement, mark the training as finished."""
        loss = training.watched_loss()
        if self._best is None or loss < self._best - self._config.min_delta:
            self._best, self._waited = loss, 0
        else:
            self._waited += 1
            training.finished = self._waited >= self._config.patience

    def state(self) -> dict[str, Any]:
        """Return the best mean loss, and the number of epochs since the best loss."""
        return {"best": self._best, "waited": self._waited}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state`."""
        self._best, self._waited = state["best"], state["waited"]
