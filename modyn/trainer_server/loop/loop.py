"""The training loop and the interface of its hooks.

The loop reads batches from an iterator, and calls hooks at each event. The loop rarely reads from the device, because such a read waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any, Final, Protocol, TypeVar

import torch
from torch import Tensor, nn

from modyn.dataset.batch import Batch
from modyn.dataset.order.batch_plan import BatchPosition
from modyn.errors import CancelledError, ModynError
from modyn.models.calls import forward, unchanged
from modyn.preprocessing import StatisticsSnapshot
from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel
from modyn.trainer_server.loop.batch_errors import explained
from modyn.trainer_server.loop.components import TrainingComponents
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.loop.joint_step import JointStep
from modyn.trainer_server.loop.schedules import advance
from modyn.trainer_server.loop.training_progress import TrainingProgress
from modyn.trainer_server.request.training_plan import TrainingPlan

_SETTLED_STEPS: Final = 100
"""Number of steps between two reads of the number of skipped steps from the device. Each read waits for the device."""


class Clock:
    """Seconds by stage: `lap` adds the time since the previous lap. With a `device`, each lap first waits for this device."""

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
    """Called at each event of the training, in the order of the hooks. A hook with state has a name, and checkpoints contain its state."""

    name = ""

    def on_begin(self, training: Training) -> None:
        """Called before the first batch of this process, after a checkpoint was loaded."""

    def on_next(self, training: Training, batch: Batch) -> None:
        """Called before a batch is prepared and trained on. A training can resume here, because the batch has not changed the state yet."""

    def on_output(self, training: Training, batch: Batch, output: Any) -> None:
        """Called between the model's output for a batch and the step. Must not wait for the device."""

    def on_batch(self, training: Training) -> None:
        """Called after each batch. Must not wait for the device."""

    def on_epoch(self, training: Training) -> None:
        """Called after the last batch of an epoch with at least one batch."""

    def on_boundary(self, training: Training) -> None:
        """Called after a whole step. A training can resume from this state."""

    def on_selection(self, training: Training) -> None:
        """Called between two epochs, before a pass that scores all samples with the current model. The pass takes as long as an epoch."""

    def state(self) -> dict[str, Any]:
        """Return the state of this hook for a checkpoint: only plain values and tensors."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state` from an earlier process."""


H = TypeVar("H", bound=Hook)


class BatchPreprocessing(Protocol):
    """Makes the model's inputs from columns, with statistics that the object keeps."""

    def prepared(self, batch: Batch) -> Batch:
        """Convert a batch for training to the model's inputs. May update the statistics first."""
        ...

    def transformed(self, batch: Batch) -> Batch:
        """Transform a batch with the current statistics."""
        ...

    def transformed_rows(self, batch: Batch, snapshot: StatisticsSnapshot | None) -> tuple[Batch, Tensor]:
        """Transform the samples whose values can be features, with the statistics of a snapshot or the current statistics. Also return the rows of
        these samples, int64 (k,).
        """
        ...

    def look(self, batch: Batch) -> None:
        """Count the new samples of a batch as inputs. Called for batches that only test the model."""
        ...

    def has_extremes(self, batch: Batch) -> bool:
        """Return whether a number is far outside of the range of all earlier numbers."""
        ...

    def accept_extremes(self, batch: Batch) -> None:
        """Count the extreme values of a batch as usual values from now on."""
        ...

    def snapshot(self) -> StatisticsSnapshot:
        """Return a copy of the current statistics."""
        ...

    def go_back(self, snapshot: StatisticsSnapshot) -> None:
        """Restore the statistics of a `snapshot`."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state`."""
        ...


class Training:
    """One training in progress."""

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
        """Args: validate: returns the mean loss of the validation set, at the end of each epoch; None if there is no validation set. preprocessing:
        makes the model's inputs from columns, or None if batches contain the inputs. tests_only: make no step."""
        self.components = components
        self.plan = plan
        self.hooks = hooks
        self.clock = clock or Clock()
        self.preprocessing = preprocessing
        self.progress = TrainingProgress()
        self.untransformed: Batch | None = None
        """The newest batch that is trained on, before preprocessing."""
        self.loss: Tensor | None = None
        """Loss of the newest batch, on the device. A read waits for the device."""
        self.epoch_loss = torch.zeros((), device=components.device)
        """Sum of the losses of this epoch's batches, on the device."""
        self.validation_loss: float | None = None
        """Mean loss of the validation set at the end of this process's newest epoch."""
        self._validate = validate
        self.finished = False
        """Set by a hook to end the training after this epoch."""
        self.order_state: Callable[[BatchPosition], dict[str, Any]] | None = None
        """Returns the state of the sample order after a position, for a checkpoint. None if the seed alone decides the order."""
        self.split: Callable[[Batch], Sequence[Batch]] | None = None
        """Splits a batch into several batches that are trained on one after the other, without a boundary in between. None: batches are not split."""
        self.stopping = False
        """Set by a hook on a request to stop: the training ends between two steps, after the other hooks."""
        self.tests_only = tests_only
        """Whether batches only test the model, which does not change. A hook may set this at any batch."""
        self._pending = False
        """Whether gradients have accumulated since the last step."""
        self._network = components.compiled if components.compiled is not None else components.model
        self._joint_step = JointStep(components.optimizers, components.scaler, components.clip_norm)
        # Most hooks handle one event. Calls of the other, empty methods for each batch would cost more than this check.
        self._on_next = [hook.on_next for hook in hooks if type(hook).on_next is not Hook.on_next]
        self._on_output = [hook.on_output for hook in hooks if type(hook).on_output is not Hook.on_output]
        self._on_batch = [hook.on_batch for hook in hooks if type(hook).on_batch is not Hook.on_batch]
        self._on_boundary = [hook.on_boundary for hook in hooks if type(hook).on_boundary is not Hook.on_boundary]

    def run(self, batches: Iterator[Batch]) -> None:
        """Train on `batches` until the plan is fulfilled or the batches end. The batches are on the device, within the plan's limit, and begin
        after `progress`."""
        self.components.model.train()
        for hook in self.hooks:
            hook.on_begin(self)
        self.clock.lap("hooks")
        while not self.finished and self.progress.epoch < self.plan.num_epochs:
            batch = next(batches, None)
            self.clock.lap("load")
            if batch is None:
                # The batches ended before the plan, for example because samples were deleted. The current epoch still ends.
                if not self.finished:
                    self._end_epoch()
                break
            if not self._continues_with(batch):
                break
            self._take(batch)
            if self.plan.ends_epoch(batch.epoch, batch.index):
                self._end_epoch()
            # No gradients are pending. Weights, optimizers and position are therefore consistent. A checkpoint or a stop is possible here.
            if not self._pending:
                for call in self._on_boundary:
                    call(self)
                if self.stopping:
                    raise stopped()
                self.clock.lap("hooks")

    def _continues_with(self, batch: Batch) -> bool:
        """End the earlier epochs and steps whose last batch is missing. Then return whether the training continues with this batch. A batch is
        missing if all of its samples were deleted after the selection.
        """
        self.end_epochs_before(batch.epoch)
        if self._pending and self.plan.steps_between(self.progress.batches_in_epoch - 1, batch.index):
            self._step()
        return not self.finished

    def end_epochs_before(self, epoch: int) -> None:
        """End each earlier epoch that is still open, unless the training has finished."""
        while epoch > self.progress.epoch and not self.finished:
            self._end_epoch()

    def hooks_of(self, kind: type[H]) -> list[H]:
        """Return the hooks of a class, in their order."""
        return [hook for hook in self.hooks if isinstance(hook, kind)]

    def with_features(self, batch: Batch) -> Batch:
        """Return a batch that is not trained on as inputs of the model, by the current statistics of the preprocessing, if there is any."""
        return batch if batch.columns is None or self.preprocessing is None else self.preprocessing.transformed(batch)

    def scoring_model(self) -> ScoringModel:
        """The current model, for scoring samples."""
        return ScoringModel(self.components.model, self.components.criterion, self.components.amp_dtype)

    def _take(self, batch: Batch) -> None:
        """Test the model on a batch, or train the model on the batch."""
        if not (self.tests_only or self._pending):
            for call in self._on_next:
                call(self, batch)
        if self.tests_only:  # A hook of the loop above may have set this flag.
            self._test_on(batch)
        else:
            for part in (parts := (batch,) if self.split is None else self.split(batch)):
                self._train_on(self._prepared(part), 1 / len(parts))

    def _prepared(self, batch: Batch) -> Batch:
        """Return the batch as inputs of the model. A training updates statistics only here, in the order of its batches."""
        self.untransformed = batch
        if self.preprocessing is not None:
            batch = self.preprocessing.prepared(batch)
            self.clock.lap("transform")
        return batch

    def _test_on(self, batch: Batch) -> None:
        """Run the model on a batch in evaluation mode, without a step."""
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
        """Train on a batch. Args: share: weight of this batch's loss in the mean loss of the batch from which it was split."""
        with Explaining(batch, self.components.model):
            loss = self.loss_of(batch, self._on_output)
            self.clock.lap("forward")
            # Gradients of the batches of one step add up. The division makes their loss a mean; a loss that is a sum stays a sum.
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
        """Return the loss of a batch, a scalar, under the current model, in the mode and with the gradients that the caller has set.

        Args: observers: called with the batch and the model's output. criterion: None for the criterion of the training.
        """
        components, amp = self.components, self.components.amp_dtype
        batch = self.with_features(batch)
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
        """Update the counts of steps. Waits for the device if only the device knows the skipped steps."""
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
                    # The checkpoint has the state before the validation pass, so that a resumed training repeats the pass.
                    for call in self._on_boundary:
                        call(self)
                    raise
                self.clock.lap("validate")
            # A scheduler must not advance before the first step of its optimizer, and an epoch of skipped steps has no step of an optimizer.
            if self.components.step_every == "epoch" and self.progress.made_steps > self.progress.made_before_epoch:
                advance(self.components.schedulers, self.watched_loss)
            for hook in self.hooks:
                hook.on_epoch(self)
        self.progress.end_epoch()
        self.epoch_loss = torch.zeros((), device=self.components.device)

    def mean_epoch_loss(self) -> float:
        """Return the mean loss over the batches of the ending epoch. Waits for the device."""
        return float(self.epoch_loss) / max(1, self.progress.batches_in_epoch)

    def watched_loss(self) -> float:
        """Return the loss for early stopping and ReduceLROnPlateau: the mean loss of the validation set, or of the ending epoch if there is no
        validation set.
        """
        return self.mean_epoch_loss() if self.validation_loss is None else self.validation_loss


def stopped() -> CancelledError:
    """Return the error of a training that ends on request."""
    return CancelledError("the training was stopped on request")


class Explaining:
    """Context manager that translates errors of the model or the criterion on a batch by `explained`. Modyn's own errors pass unchanged.

    Args: of: the source of the batch, for messages; if empty, the batch's epoch.
    """

    __slots__ = ("_batch", "_model", "_of")

    def __init__(self, batch: Batch, model: nn.Module, of: str = "") -> None:
        self._batch, self._model, self._of = batch, model, of

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ModynError):
            raise explained(error, self._batch, self._model, self._of or f"epoch {self._batch.epoch}") from error
