"""Hooks of the training loop: loss log, divergence, early stopping, progress reports. Imports torch: for workers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn

from modyn.errors import TrainingError
from modyn.trainer_server.config import EarlyStoppingConfig
from modyn.trainer_server.loop import Hook, Training, stopped
from modyn.workers import JobConnection

MAX_LOSSES: Final = 10_000
"""Entries in a loss log. Beyond, every second one is dropped and the distance doubled: the log is bounded, whatever the data."""


class Losses(Hook):
    """Keeps the mean loss of each epoch, of samples that are held out too, and the loss of every n-th batch (0: of none). Losses of batches
    stay on the device until they are read."""

    name = "losses"

    def __init__(self, every: int) -> None:
        self.every = every
        self.epochs: list[float] = []
        """Mean loss of each epoch."""
        self.validation: list[float] = []
        """Mean loss, at the end of each epoch, of the samples that are held out; empty: there are none."""
        self._batches: list[int] = []
        self._losses: list[Tensor | float] = []
        self._sampled: list[Tensor | float] = []

    def on_batch(self, training: Training) -> None:
        """Keep the loss if it is the turn of this batch; halve the log once it holds MAX_LOSSES entries."""
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

    def read(self) -> list[list[float]]:
        """[number of the batch from 1, its loss], in order. Waits for the device."""
        self._losses = [float(loss) for loss in self._losses]
        return [[batch, float(loss)] for batch, loss in zip(self._batches, self._losses, strict=True)]

    def sampled(self) -> list[float]:
        """The losses of batches 1, 2, 4, 8, …. Waits for the device, once for all."""
        if not self._sampled:
            return []
        losses: list[float] = torch.stack([torch.as_tensor(loss) for loss in self._sampled]).float().cpu().numpy().tolist()
        return losses

    def state(self) -> dict[str, Any]:
        """The log and its distance `every`. Waits for the device."""
        log = {"every": self.every, "epochs": self.epochs, "validation": self.validation, "entries": self.read()}
        return {**log, "sampled": self.sampled()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.every, self.epochs, self.validation = state["every"], list(state["epochs"]), list(state["validation"])
        self._batches = [int(batch) for batch, _ in state["entries"]]
        self._losses = [loss for _, loss in state["entries"]]
        self._sampled = list(state["sampled"])


class DivergedError(TrainingError):
    """The loss or the weights are not finite any more."""


class FiniteLoss(Hook):
    """Ends a training after the first epoch whose mean loss is not finite. That loss is read once an epoch anyway."""

    def on_epoch(self, training: Training) -> None:
        """Raise DivergedError if the mean loss of the epoch is no finite number."""
        loss = training.mean_epoch_loss()
        if not training.tests_only and not math.isfinite(loss):
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


class EarlyStopping(Hook):
    """Ends the training when the mean loss of what is held out, else of an epoch, has not improved for `patience` epochs."""

    name = "early_stopping"

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self._config = config
        self._best: float | None = None
        self._waited = 0

    def on_epoch(self, training: Training) -> None:
        """Compare the loss with the best one; mark the training as finished when the patience is used up."""
        loss = training.watched_loss()
        if self._best is None or loss < self._best - self._config.min_delta:
            self._best, self._waited = loss, 0
        else:
            self._waited += 1
            training.finished = self._waited >= self._config.patience

    def state(self) -> dict[str, Any]:
        """The best mean loss so far and the epochs since then."""
        return {"best": self._best, "waited": self._waited}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._best, self._waited = state["best"], state["waited"]


class ProgressReports(Hook):
    """Sends progress every `interval_s` seconds, and ends the training once the service asks to stop.

    Only then is the loss read, which waits for the device.

    Args: between_steps: end it between two steps, where a checkpoint can be taken; otherwise at once.
    """

    def __init__(self, connection: JobConnection, interval_s: float, *, between_steps: bool) -> None:
        self._connection = connection
        self._between_steps = between_steps
        self._interval_s = interval_s
        self._last = 0.0
        self._last_samples = 0

    def on_begin(self, training: Training) -> None:
        """Send the progress that a checkpoint brought (else 0), and start the clock."""
        self._last, self._last_samples = perf_counter(), training.progress.samples
        self._send(training, 0.0)

    def on_batch(self, training: Training) -> None:
        """Send progress if `interval_s` seconds have passed since the last message. Raises CancelledError."""
        if self._connection.stopping:
            if not self._between_steps:
                raise stopped()
            training.stopping = True
        now = perf_counter()
        if now - self._last >= self._interval_s:
            self._send(training, (training.progress.samples - self._last_samples) / (now - self._last))
            self._last, self._last_samples = now, training.progress.samples

    def _send(self, training: Training, samples_per_s: float) -> None:
        self._connection.send(
            {
                "samples_seen": training.progress.samples,
                "samples_total": training.plan.num_samples,
                "batches_seen": training.progress.batches,
                "loss": None if training.loss is None else float(training.loss),
                "samples_per_s": samples_per_s,
                "num_cached": dict(training.progress.cached),
                "cache_work": dict(training.progress.cache_work),
                "samples_loaded": training.progress.samples + training.progress.unchosen,
            }
        )
