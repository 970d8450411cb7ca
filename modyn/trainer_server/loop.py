"""The training loop, and what its hooks are.

The loop reads nothing but the iterator of batches, waits for no device and no queue, and calls hooks at each event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from modyn.dataset.batch import Batch
from modyn.dataset.order.plan import BatchPosition
from modyn.errors import CancelledError, ModynError
from modyn.models.calls import forward, unchanged
from modyn.preprocessing import StatisticsSnapshot
from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.batch_errors import explained
from modyn.trainer_server.components import TrainingComponents
from modyn.trainer_server.criterion import Criterion
from modyn.trainer_server.downsampling.scoring import ScoringModel
from modyn.trainer_server.joint_step import JointStep
from modyn.trainer_server.schedules import advance
from modyn.trainer_server.training_plan import TrainingPlan
from modyn.trainer_server.training_progress import TrainingProgress

_SETTLED_STEPS: Final = 100
"""Steps after which what only the device knows of them is read."""


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
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


class Hook:
    """Called around the training, in the order of the hooks. Those that keep state name it: checkpoints hold it."""

    name = ""

    def on_begin(self, training: Training) -> None:
        """Before the first batch of this process, after a checkpoint was loaded."""

    def on_next(self, training: Training, batch: Batch) -> None:
        """Before a batch is prepared and trained on, where the training could go on from its state as it is: nothing of the batch has touched it."""

    def on_output(self, training: Training, batch: Batch, output: Any) -> None:
        """After the model was called with a batch that is trained on, before the step. Must not wait for the device."""

    def on_batch(self, training: Training) -> None:
        """After each batch. Must not wait for the device."""

    def on_epoch(self, training: Training) -> None:
        """After the last batch of an epoch that had any."""

    def on_boundary(self, training: Training) -> None:
        """Called after a whole step: a training can continue from the state as it is now."""

    def on_selection(self, training: Training) -> None:
        """Called between two epochs, before a pass that scores all samples by the model as it is now, which takes as long as an epoch."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this hook; plain values and tensors only."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned in an earlier process."""


class BatchPreprocessing(Protocol):
    """What makes the inputs of the model of columns, by statistics that it keeps."""

    def prepared(self, batch: Batch) -> Batch:
        """The batch as it is trained on, which may update the statistics before."""
        ...

    def transformed(self, batch: Batch) -> Batch:
        """The batch by the statistics as they are."""
        ...

    def transformed_rows(self, batch: Batch, snapshot: StatisticsSnapshot | None) -> tuple[Batch, Tensor]:
        """As `transformed`, by the statistics of a snapshot or as they are, the samples whose values can be features; and their rows, int64 (k,)."""
        ...

    def look(self, batch: Batch) -> None:
        """Count the new samples of a batch that is only tested as inputs."""
        ...

    def has_extremes(self, batch: Batch) -> bool:
        """Whether a number is far outside of all before."""
        ...

    def accept_extremes(self, batch: Batch) -> None:
        """Let what is extreme in a batch count as usual from now on."""
        ...

    def snapshot(self) -> StatisticsSnapshot:
        """The statistics as they are: a copy."""
        ...

    def go_back(self, snapshot: StatisticsSnapshot) -> None:
        """Bring the statistics back to what `snapshot` returned."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        ...


class Training:
    """One training as it goes on."""

    def __init__(
        self,
        components: TrainingComponents,
        plan: TrainingPlan,
        hooks: Sequence[Hook],
        clock: Clock | None = None,
        validate: Callable[[Training], float | None] | None = None,
        preprocessing: BatchPreprocessing | None = None,
        *,
        tests_only: bool = False,
    ) -> None:
        """Args: validate: the mean loss of samples that are held out, at the end of each epoch; None: there are none. preprocessing: makes the
        inputs of the model of columns; None: batches hold them. tests_only: make no step."""
        self.components = components
        self.plan = plan
        self.hooks = hooks
        self.clock = clock or Clock()
        self.preprocessing = preprocessing
        self.progress = TrainingProgress()
        self.untransformed: Batch | None = None
        """The newest batch that is trained on, before preprocessing."""
        self.loss: Tensor | None = None
        """Loss of the newest batch, on the device: reading it waits for the device."""
        self.epoch_loss = torch.zeros((), device=components.device)
        """Sum over the batches of this epoch, on the device."""
        self.validation_loss: float | None = None
        """Mean loss of the samples that are held out, at the end of the newest epoch of this process."""
        self._validate = validate
        self.finished = False
        """Set by a hook that wants the training to end after this epoch."""
        self.order_state: Callable[[BatchPosition], dict[str, Any]] | None = None
        """What a checkpoint keeps of the order of samples behind a position; None: nothing, for the seed decides it."""
        self.rank_samples: Callable[[Int64Array, Float32Array], None] | None = None
        """Takes keys and losses of samples that were trained on, (n,) each; None: the order does not depend on them."""
        self.split: Callable[[Batch], Sequence[Batch]] | None = None
        """Cuts a batch into several that are trained on one after the other, without a boundary in between; None: each is one."""
        self.stopping = False
        """Set by a hook that was asked to stop: the training ends between two steps, after the other hooks."""
        self.tests_only = tests_only
        """Whether batches are only shown to the model, which stays as it is. A hook may set it from a batch on."""
        self._pending = False
        self._network = components.compiled if components.compiled is not None else components.model
        self._joint_step = JointStep(components.optimizers, components.scaler, components.clip_norm)
        # Most hooks care for one event: calling the others on each batch costs more than the check here.
        self._on_next = [hook.on_next for hook in hooks if type(hook).on_next is not Hook.on_next]
        self._on_output = [hook.on_output for hook in hooks if type(hook).on_output is not Hook.on_output]
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
                if not self.finished:
                    self._end_epoch()
                break
            if not self._goes_on_with(batch):
                break
            self._take(batch)
            if self.plan.ends_epoch(batch.epoch, batch.index):
                self._end_epoch()
            if not self._pending:
                for call in self._on_boundary:
                    call(self)
                if self.stopping:
                    raise stopped()
                self.clock.lap("hooks")

    def _goes_on_with(self, batch: Batch) -> bool:
        """Whether this batch is still trained on. First it ends those epochs and steps whose last batch did not come because it held
        nothing: samples may be deleted after the selection."""
        self.end_epochs_before(batch.epoch)
        if self._pending and self.plan.steps_between(self.progress.batches_in_epoch - 1, batch.index):
            self._step()
        return not self.finished

    def end_epochs_before(self, epoch: int) -> None:
        """End each epoch before this one that has not ended yet, unless the training has finished."""
        while epoch > self.progress.epoch and not self.finished:
            self._end_epoch()

    def scoring_model(self) -> ScoringModel:
        """The model as it is now, to score samples with."""
        return ScoringModel(self.components.model, self.components.criterion, self.components.amp_dtype)

    def _take(self, batch: Batch) -> None:
        """Test on a batch, or train on it."""
        if not (self.tests_only or self._pending):
            for call in self._on_next:
                call(self, batch)
        if self.tests_only:  # Perhaps by one of these calls.
            self._test_on(batch)
        else:
            for part in (parts := (batch,) if self.split is None else self.split(batch)):
                self._train_on(self._prepared(part), 1 / len(parts))

    def _prepared(self, batch: Batch) -> Batch:
        """The batch as the model takes it. The one place where a training updates statistics, in the order of its batches."""
        self.untransformed = batch
        if self.preprocessing is not None:
            batch = self.preprocessing.prepared(batch)
            self.clock.lap("transform")
        return batch

    def _test_on(self, batch: Batch) -> None:
        """Show the model a batch, in evaluation mode, and leave it as it is."""
        if self.preprocessing is not None:
            self.preprocessing.look(batch)
        with torch.no_grad(), unchanged(self.components.model):
            self.loss = self.loss_of(batch, self._on_output)
        self.clock.lap("forward")
        self.progress.count(batch)
        for call in self._on_batch:
            call(self)
        self.clock.lap("hooks")

    def _train_on(self, batch: Batch, share: float) -> None:
        """Args: share: of the mean loss of the batch that this one is a part of."""
        with Explaining(batch, self.components.model):
            loss = self.loss_of(batch, self._on_output)
            self.clock.lap("forward")
            group_size = 1 if self.components.criterion.sums else self.plan.group_size(batch.epoch, batch.index)
            self.components.scaler.scale(loss / group_size if group_size > 1 else loss).backward()  # type: ignore[no-untyped-call]
            self.clock.lap("backward")
        self.loss = loss.detach()
        self.epoch_loss += self.loss if share == 1 else self.loss * share
        self._pending = True
        self.progress.count(batch)
        if self.plan.steps_after(batch.epoch, batch.index):
            self._step()
        for call in self._on_batch:
            call(self)
        self.clock.lap("hooks")

    def loss_of(
        self,
        batch: Batch,
        observers: Sequence[Callable[[Training, Batch, Any], None]] = (),
        criterion: Criterion | None = None,
    ) -> Tensor:
        """The loss of a batch, a scalar, under the model as it is now, in the mode and with the gradients that the caller has set.

        Args: observers: are given the batch and the model's output. criterion: None: that of the training.
        """
        components, amp = self.components, self.components.amp_dtype
        if batch.columns is not None and self.preprocessing is not None:  # a batch that is not trained on
            batch = self.preprocessing.transformed(batch)
        autocast = nullcontext() if amp is None else torch.autocast(components.device.type, amp)
        with Explaining(batch, components.model), autocast:
            output = forward(self._network, batch.data)
            for observe in observers:
                observe(self, batch, output)
            return (criterion or components.criterion)(output, batch.labels, batch.weights)

    def _step(self) -> None:
        components, progress = self.components, self.progress
        progress.skipped_steps += not self._joint_step.run()
        self._pending = False
        progress.steps += 1
        if progress.steps % _SETTLED_STEPS == 0:
            self.settle_steps()
        if components.step_every == "batch" and progress.advances_schedule():
            advance(components.schedulers)
        self.clock.lap("step")

    def settle_steps(self) -> None:
        """Bring the counts of steps up to date. Waits for the device where only that knows which steps were skipped."""
        self.progress.skipped_steps += self._joint_step.take_skipped()
        self.progress.has_gradient |= self._joint_step.has_gradient

    def _end_epoch(self) -> None:
        if self._pending:
            self._step()
        self.settle_steps()
        if self.progress.batches_in_epoch:
            if self._validate is not None:
                self.clock.lap("hooks")
                try:
                    self.validation_loss = self._validate(self)
                except CancelledError:
                    # The state is that before the pass: a training that goes on from it makes the pass anew.
                    for call in self._on_boundary:
                        call(self)
                    raise
                self.clock.lap("validate")
            if self.components.step_every == "epoch" and self.progress.made_steps > self.progress.made_before_epoch:
                advance(self.components.schedulers, self.watched_loss)
            for hook in self.hooks:
                hook.on_epoch(self)
        self.progress.end_epoch()
        self.epoch_loss = torch.zeros((), device=self.components.device)

    def mean_epoch_loss(self) -> float:
        """Mean over the batches of the epoch that ends now. Waits for the device: once an epoch."""
        return float(self.epoch_loss) / max(1, self.progress.batches_in_epoch)

    def watched_loss(self) -> float:
        """What early stopping and ReduceLROnPlateau look at: the mean loss of what is held out, and without that of the epoch that ends now."""
        return self.mean_epoch_loss() if self.validation_loss is None else self.validation_loss


def stopped() -> CancelledError:
    """Return the error of a training that ends on request."""
    return CancelledError("the training was stopped on request")


class Explaining:
    """Raise what calls of the model or the criterion raise over a batch as `explained` says. Our own errors pass.

    Args: of: what the batch is of, for messages; empty: its epoch.
    """

    __slots__ = ("_batch", "_model", "_of")

    def __init__(self, batch: Batch, model: nn.Module, of: str = "") -> None:
        self._batch, self._model, self._of = batch, model, of

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ModynError):
            raise explained(error, self._batch, self._model, self._of or f"epoch {self._batch.epoch}") from error
