"""The training loop and its hooks: loss log, early stopping, progress reports.

The loop reads nothing but the iterator of batches, waits for no device and no queue, and calls hooks at each event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from modyn.dataset.batch import Batch, map_tensors
from modyn.errors import CancelledError, DataError, ModynError, TrainingError
from modyn.models.calls import forward
from modyn.trainer_server.components import TrainingComponents
from modyn.trainer_server.config import EarlyStoppingConfig
from modyn.trainer_server.joint_step import JointStep
from modyn.trainer_server.plan import TrainingPlan
from modyn.workers import JobConnection

MAX_LOSSES: Final = 10_000
"""Entries in a loss log. Beyond, every second one is dropped and the distance doubled: the log is bounded, whatever the data."""


@dataclass(slots=True)
class TrainingProgress:
    """How far a training is: `batches` in all, of them `batches_in_epoch` in `epoch`; `steps` of the optimizers; `samples` seen;
    `skipped` samples that were deleted after the selection, or left out by `data.on_bad_sample`."""

    epoch: int = 0
    batches_in_epoch: int = 0
    batches: int = 0
    samples: int = 0
    steps: int = 0
    skipped: int = 0


class Clock:
    """Seconds by stage: `lap` books the time since the lap before. `device`: wait for it before each look at the clock."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(("load", "forward", "backward", "step", "hooks"), 0.0)
        self._device = device
        self._last = perf_counter()

    def lap(self, stage: str) -> None:
        """Add the seconds since the last lap to `stage`."""
        if self._device is not None:
            torch.cuda.synchronize(self._device)
        now = perf_counter()
        self.seconds[stage] += now - self._last
        self._last = now


class Hook:
    """Called around the training, in the order of the hooks. Those that keep state name it: it stands in checkpoints."""

    name = ""

    def on_begin(self, training: Training) -> None:
        """Before the first batch of this process, after a checkpoint was loaded."""

    def on_batch(self, training: Training) -> None:
        """After each batch. Must not wait for the device."""

    def on_epoch(self, training: Training) -> None:
        """After the last batch of an epoch that had any."""

    def on_boundary(self, training: Training) -> None:
        """After all that belongs to a step: nothing is half done, the state as it is now can be gone on from."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this hook; plain values and tensors only."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned in an earlier process."""


class Training:
    """One training as it goes on."""

    def __init__(
        self, components: TrainingComponents, plan: TrainingPlan, hooks: Sequence[Hook], clock: Clock | None = None
    ) -> None:
        self.components = components
        self.plan = plan
        self.hooks = hooks
        self.clock = clock or Clock()
        self.progress = TrainingProgress()
        self.loss: Tensor | None = None
        """Loss of the newest batch, on the device: reading it waits for the device."""
        self.epoch_loss = torch.zeros((), device=components.device)
        """Sum over the batches of this epoch, on the device."""
        self.finished = False
        """Set by a hook that wants the training to end after this epoch."""
        self.stopping = False
        """Set by a hook that was asked to stop: the training ends between two steps, after the other hooks."""
        self._pending = False
        self._network = components.compiled if components.compiled is not None else components.model
        self._joint_step = JointStep(components.optimizers, components.scaler, components.clip_norm)
        # Most hooks care for one event: calling the others on each batch costs more than the check here.
        self._on_batch = [hook.on_batch for hook in hooks if type(hook).on_batch is not Hook.on_batch]
        self._on_boundary = [hook.on_boundary for hook in hooks if type(hook).on_boundary is not Hook.on_boundary]

    def run(self, batches: Iterator[Batch]) -> None:
        """Train on `batches` until the plan is fulfilled or they end. They are on the device, within the bound of the plan, and go on
        behind `progress`."""
        self.components.model.train()
        for hook in self.hooks:
            hook.on_begin(self)
        self.clock.lap("hooks")
        while not self.finished and self.progress.epoch < self.plan.num_epochs:
            batch = next(batches, None)
            self.clock.lap("load")
            if batch is None:
                self._end_epoch()
                break
            if not self._goes_on_with(batch):
                break
            self._train_on(batch)
            if self.plan.ends_epoch(batch.epoch, batch.index):
                self._end_epoch()
            if not self._pending:
                for call in self._on_boundary:
                    call(self)
                if self.stopping:
                    raise _stopped()
                self.clock.lap("hooks")

    def _goes_on_with(self, batch: Batch) -> bool:
        """Whether this batch is still trained on. First it ends those epochs and steps whose last batch did not come because it held
        nothing: samples may be deleted after the selection."""
        while batch.epoch > self.progress.epoch and not self.finished:
            self._end_epoch()
        if self._pending and self.plan.steps_between(self.progress.batches_in_epoch - 1, batch.index):
            self._step()
        return not self.finished

    def _train_on(self, batch: Batch) -> None:
        num_samples = len(batch)
        try:
            loss = self._forward(batch)
            self.clock.lap("forward")
            group_size = 1 if self.components.criterion.sums else self.plan.group_size(batch.epoch, batch.index)
            self.components.scaler.scale(loss / group_size if group_size > 1 else loss).backward()  # type: ignore[no-untyped-call]
            self.clock.lap("backward")
        except ModynError:
            raise
        except Exception as error:
            raise _explained(error, batch, self.components.model) from error
        self.loss = loss.detach()
        self.epoch_loss += self.loss
        self._pending = True
        self.progress.batches += 1
        self.progress.batches_in_epoch = batch.index + 1
        self.progress.samples += num_samples
        if self.plan.steps_after(batch.epoch, batch.index):
            self._step()
        for call in self._on_batch:
            call(self)
        self.clock.lap("hooks")

    def _forward(self, batch: Batch) -> Tensor:
        components = self.components
        if components.downsampling is not None:
            batch = components.downsampling.select(components.model, batch)
        if components.amp_dtype is None:
            return components.criterion(forward(self._network, batch.data), batch.labels, batch.weights)
        with torch.autocast(components.device.type, components.amp_dtype):
            return components.criterion(forward(self._network, batch.data), batch.labels, batch.weights)

    def _step(self) -> None:
        components = self.components
        self._joint_step.run()
        self._pending = False
        self.progress.steps += 1
        if components.step_every == "batch":
            for scheduler in components.schedulers:
                scheduler.step()
        self.clock.lap("step")

    def _end_epoch(self) -> None:
        if self._pending:
            self._step()
        if self.progress.batches_in_epoch:
            for scheduler in self.components.schedulers if self.components.step_every == "epoch" else ():
                scheduler.step(*([self.mean_epoch_loss()] if isinstance(scheduler, ReduceLROnPlateau) else []))
            for hook in self.hooks:
                hook.on_epoch(self)
        self.progress.epoch += 1
        self.progress.batches_in_epoch = 0
        self.epoch_loss = torch.zeros((), device=self.components.device)

    def mean_epoch_loss(self) -> float:
        """Mean over the batches of the epoch that ends now. Waits for the device: once an epoch."""
        return float(self.epoch_loss) / max(1, self.progress.batches_in_epoch)


class Losses(Hook):
    """Keeps the mean loss of each epoch, and the loss of every n-th batch (0: of none). Losses stay on the device until they are read."""

    name = "losses"

    def __init__(self, every: int) -> None:
        self.every = every
        self.epochs: list[float] = []
        """Mean loss of each epoch."""
        self._batches: list[int] = []
        self._losses: list[Tensor | float] = []

    def on_batch(self, training: Training) -> None:
        """Keep the loss if it is the turn of this batch; halve the log once it holds MAX_LOSSES entries."""
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

    def read(self) -> list[list[float]]:
        """[number of the batch from 1, its loss], in order. Waits for the device."""
        self._losses = [float(loss) for loss in self._losses]
        return [[batch, float(loss)] for batch, loss in zip(self._batches, self._losses, strict=True)]

    def state(self) -> dict[str, Any]:
        """The log and its distance `every`. Waits for the device."""
        return {"every": self.every, "epochs": self.epochs, "entries": self.read()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.every, self.epochs = state["every"], list(state["epochs"])
        self._batches = [int(batch) for batch, _ in state["entries"]]
        self._losses = [loss for _, loss in state["entries"]]


class EarlyStopping(Hook):
    """Ends the training when the mean loss of an epoch has not improved for `patience` epochs."""

    name = "early_stopping"

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self._config = config
        self._best: float | None = None
        self._waited = 0

    def on_epoch(self, training: Training) -> None:
        """Compare the epoch's mean loss with the best one; mark the training as finished when the patience is used up."""
        loss = training.mean_epoch_loss()
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
                raise _stopped()
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
            }
        )


def _stopped() -> CancelledError:
    return CancelledError("the training was stopped on request")


def _explained(error: Exception, batch: Batch, model: nn.Module) -> ModynError:
    """The error of a batch, with its place in the training and the cause if it can be found."""
    where = f"batch {batch.index} of epoch {batch.epoch} (sample keys {_shortened(batch.keys.tolist())})"
    try:
        found = _wrong_label(where, error, batch, model)
    except Exception:  # noqa: BLE001  (after an error on a GPU nothing can be read from it any more)
        found = None
    if found is not None:
        return found
    shapes = map_tensors(batch.data, lambda tensor: f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}")
    kind = str(batch.labels.dtype).removeprefix("torch.")
    return TrainingError(
        f"{where}: {type(error).__name__}: {error}; the model was given {shapes} and labels {kind}{list(batch.labels.shape)}: "
        "see that data, model and training.optimization_criterion fit together"
    )


def _wrong_label(where: str, error: Exception, batch: Batch, model: nn.Module) -> DataError | None:
    """The error of a label that is no class of the model, if there is one."""
    labels = batch.labels.cpu()
    if labels.dtype.is_floating_point or labels.dim() != 1 or not len(labels):
        return None
    negative = labels < 0
    if bool(negative.any()) and "ignore" not in str(error):
        i = int(negative.nonzero()[0])
        return DataError(
            f"{where}: sample key {int(batch.keys[i])} has the label {int(labels[i])}; classes count from 0. {error}"
        )
    num_classes = _num_outputs(model, batch)
    if num_classes == 1:
        return DataError(
            f"{where}: {type(error).__name__}: {error}; the model gives one value a sample, as shape (n, 1), and labels are whole numbers of "
            "shape (n,). A loss such as BCEWithLogitsLoss needs labels like the output: return labels.float().unsqueeze(1) from "
            "data.label_transformer_function; or set model.config.num_classes to 2 and use CrossEntropyLoss"
        )
    if num_classes is None or int(labels.max()) < num_classes:
        return None
    i = int(labels.argmax())
    return DataError(
        f"{where}: sample key {int(batch.keys[i])} has the label {int(labels[i])}, but the model has {num_classes} classes "
        f"(0 to {num_classes - 1}): set model.config.num_classes, or map labels with data.label_transformer_function"
    )


def _num_outputs(model: nn.Module, batch: Batch) -> int | None:
    """Columns of the model's output; None: it gives none, as after an error on a GPU."""
    training = model.training
    try:
        with torch.no_grad():
            one = map_tensors(batch.data, lambda tensor: tensor[:1].to(next(model.parameters()).device))
            output = forward(model.eval(), one)
        return int(output.shape[1]) if output.dim() == 2 else None
    except Exception:  # noqa: BLE001  (the first error is the one to raise)
        return None
    finally:
        model.train(training)


def _shortened(keys: list[int]) -> str:
    return ", ".join(map(str, keys)) if len(keys) <= 6 else f"{', '.join(map(str, keys[:3]))}, … {keys[-1]}"
