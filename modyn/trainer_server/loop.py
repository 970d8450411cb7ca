"""The training loop. It reads nothing but the iterator of batches, waits for no device and no queue, and calls hooks at each event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from modyn.dataset.batch import Batch, map_tensors
from modyn.errors import DataError, ModynError, TrainingError
from modyn.trainer_server.components import Loss
from modyn.trainer_server.downsampling import Downsampling
from modyn.trainer_server.plan import TrainingPlan


@dataclass(slots=True)
class TrainingProgress:
    """How far a training is: `batches` in all, of them `batches_in_epoch` in `epoch`; `steps` of the optimizers; `samples` seen."""

    epoch: int = 0
    batches_in_epoch: int = 0
    batches: int = 0
    samples: int = 0
    steps: int = 0


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

    def on_step(self, training: Training) -> None:
        """After each step of the optimizers."""

    def on_epoch(self, training: Training) -> None:
        """After the last batch of an epoch that had any."""

    def on_boundary(self, training: Training) -> None:
        """After all that belongs to a step: nothing is half done, the state as it is now can be gone on from."""

    def on_end(self, training: Training) -> None:
        """After the last batch."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this hook; plain values and tensors only."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned in an earlier process."""


@dataclass(frozen=True, slots=True)
class TrainingComponents:
    """A model and all that trains it."""

    model: nn.Module
    optimizers: Mapping[str, Optimizer]
    schedulers: Sequence[Any]
    scaler: torch.amp.GradScaler
    criterion: Loss
    downsampling: Downsampling
    device: torch.device
    amp: bool = False
    clip_norm: float | None = None
    compiled: nn.Module | None = None
    """What is called in place of the model, with the same parameters."""


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
        self._pending = False
        self._network = components.compiled if components.compiled is not None else components.model
        self._autocast_dtype = torch.float16 if components.device.type == "cuda" else torch.bfloat16
        # Most hooks care for one event: calling the others on each batch costs more than the check here.
        self._on_batch = [hook.on_batch for hook in hooks if type(hook).on_batch is not Hook.on_batch]
        self._on_step = [hook.on_step for hook in hooks if type(hook).on_step is not Hook.on_step]
        self._on_boundary = [hook.on_boundary for hook in hooks if type(hook).on_boundary is not Hook.on_boundary]

    def run(self, batches: Iterator[Batch]) -> None:
        """Train on `batches`, which are on the device and go on behind `progress`, until the plan is fulfilled or they end."""
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
                self._call(self._on_boundary)
                self.clock.lap("hooks")
        for hook in self.hooks:
            hook.on_end(self)
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
        batch = self._within_bound(batch)
        num_samples = len(batch)
        try:
            loss = self._forward(batch)
            self.clock.lap("forward")
            group_size = self.plan.group_size(batch.epoch, batch.index)
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
        self._call(self._on_batch)
        self.clock.lap("hooks")

    def _forward(self, batch: Batch) -> Tensor:
        components = self.components
        batch = components.downsampling.select(components.model, batch)
        if not components.amp:
            return components.criterion(self._network(batch.data), batch.labels, batch.weights)
        with torch.autocast(components.device.type, self._autocast_dtype):
            return components.criterion(self._network(batch.data), batch.labels, batch.weights)

    def _step(self) -> None:
        components = self.components
        if components.clip_norm is not None:
            for optimizer in components.optimizers.values():
                components.scaler.unscale_(optimizer)
            groups = (group["params"] for optimizer in components.optimizers.values() for group in optimizer.param_groups)
            nn.utils.clip_grad_norm_([parameter for group in groups for parameter in group], components.clip_norm)
        for optimizer in components.optimizers.values():
            components.scaler.step(optimizer)
        components.scaler.update()
        for optimizer in components.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        self._pending = False
        self.progress.steps += 1
        self._call(self._on_step)
        self.clock.lap("step")

    def _end_epoch(self) -> None:
        if self._pending:
            self._step()
        if self.progress.batches_in_epoch:
            for hook in self.hooks:
                hook.on_epoch(self)
        self.progress.epoch += 1
        self.progress.batches_in_epoch = 0
        self.epoch_loss = torch.zeros((), device=self.components.device)

    def mean_epoch_loss(self) -> float:
        """Mean over the batches of the epoch that ends now. Waits for the device: once an epoch."""
        return float(self.epoch_loss) / max(1, self.progress.batches_in_epoch)

    def _within_bound(self, batch: Batch) -> Batch:
        """The last batch of a training over a number of samples is cut to what is left."""
        left = self.plan.num_samples - self.progress.samples
        if len(batch) <= left:
            return batch
        data = map_tensors(batch.data, lambda tensor: tensor[:left])
        return replace(batch, keys=batch.keys[:left], data=data, labels=batch.labels[:left], weights=batch.weights[:left])

    def _call(self, listeners: Sequence[Any]) -> None:
        for listener in listeners:
            listener(self)


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
            output = model.eval()(map_tensors(batch.data, lambda tensor: tensor[:1].to(next(model.parameters()).device)))
        return int(output.shape[1]) if output.dim() == 2 else None
    except Exception:  # noqa: BLE001  (the first error is the one to raise)
        return None
    finally:
        model.train(training)


def _shortened(keys: list[int]) -> str:
    return ", ".join(map(str, keys)) if len(keys) <= 6 else f"{', '.join(map(str, keys[:3]))}, … {keys[-1]}"
