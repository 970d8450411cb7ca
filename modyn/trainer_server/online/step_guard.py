"""Take snapshots during an online training, and return to a snapshot when the error jumps. Imports torch: for workers only.

`RollbackConfig` defines the rule. Checkpoints keep all inputs of the rule, so that a killed training makes the same decisions when it resumes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict
from enum import Enum
from typing import Any, Final

import pyarrow as pa
import torch
from torch import Tensor

from modyn.config.online import RollbackConfig
from modyn.dataset.batch import Batch
from modyn.preprocessing import StatisticsSnapshot
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger
from modyn.trainer_server.loop.hooks import DivergedError, check_weights
from modyn.trainer_server.loop.loop import Hook, Training
from modyn.trainer_server.online.prequential import Prequential
from modyn.trainer_server.online.step_snapshot import (
    Snapshot,
    restore_statistics,
    statistics_of_tensor,
    statistics_snapshot,
    statistics_tensor,
)
from modyn.trainer_server.online.stream_preprocessing import bytes_tensor
from modyn.trainer_server.online.tensor_ranges import TensorRanges
from modyn.trainer_server.result import GuardResult, Rollback

COMPARED_ROWS: Final = 32
"""The guard compares the model with a snapshot on the newest batches with at least this number of new samples together."""
EXTREME: Final = 100.0
"""A sample is extreme if its loss under the snapshot exceeds this number times the faded mean of earlier steps."""
MOST_EXTREME: Final = 0.25
"""Largest share of extreme samples that count as outliers; a larger share means that the error has a new level."""
_MOST_ROLLBACKS: Final = 2
"""Number of rollbacks after which all steps of the training are undone. Rollbacks of single risky steps do not count."""
_HELD: Final = ("keys", "data", "labels", "weights")
"""Fields of a batch that a checkpoint keeps."""


class Jump(Enum):
    """The cause of a jump of the error."""

    OF_DATA = "data"
    """The snapshot's error on the newest samples has also jumped. The steps are therefore not the cause."""
    OF_OUTLIERS = "outliers"
    """A few samples are extreme under the snapshot, too. Without these samples, the error has not jumped."""
    OF_STEPS = "steps"
    """The steps since the snapshot have made the model worse."""


class StepGuard(Hook):
    """Checks the steps of a training every `RollbackConfig.every` steps, and keeps or undoes these steps."""

    name = "step_guard"

    def __init__(self, config: RollbackConfig, prequential: Prequential, before: GuardResult | None, steps_before: int) -> None:
        """Args: prequential: a hook that the training calls before this hook. before: result of the guard of the parent version; None if no guarded
        steps made the parent. steps_before: number of steps between the last retraining and this training, for messages."""
        self._config, self._prequential, self._steps_before = config, prequential, steps_before
        self._running = FadedMean(config.window, None if before is None else before.running)
        self._snapshot: Snapshot | None = None
        """Copy of the training after the newest step that passed a check; None until the first batch."""
        self._begin: Mapping[str, Any] = {}
        """The weights of the parent version, in the host's memory."""
        self._begin_statistics: StatisticsSnapshot | None = None
        self._held: deque[tuple[Batch, Int64Array]] = deque()
        """The newest batches since the snapshot, with their new rows. The guard keeps batches without preprocessing, because a comparison uses the
        old and the current statistics.
        """
        self._num_held = 0
        self._extreme: Batch | None = None
        """The batch of the current step, if the step is risky; None at each boundary."""
        self._ranges = TensorRanges(None if before is None else before.ranges)
        """Ranges of the model's inputs, used if the training has no preprocessing."""
        self._num_snapshots = 0
        self._num_data_jumps = 0
        self._rollbacks: list[Rollback] = []
        self._left_out = False
        self._seen: dict[str, float] = {}
        """Mean losses at the newest jump, by the name of the field in `Rollback`."""

    def on_begin(self, training: Training) -> None:
        """Copy the initial state of the training, or resume from a checkpoint."""
        training.tests_only = self._left_out
        self._held = deque((batch.to(training.components.device), rows) for batch, rows in self._held)
        # A resumed training has these copies from its checkpoint.
        if not self._begin:
            self._snapshot = Snapshot.of(training, 0)
            self._begin = {name: value.detach().cpu().clone() for name, value in training.components.model.state_dict().items()}
            self._begin_statistics = statistics_snapshot(training)

    def on_output(self, training: Training, batch: Batch, output: Any) -> None:
        """Store the batch, if some of its samples are new."""
        rows = self._prequential.rows
        if self._left_out or not len(rows):
            return
        self._held.append((batch if training.untransformed is None else training.untransformed, rows))
        self._num_held += len(rows)
        while self._num_held - len(self._held[0][1]) >= COMPARED_ROWS:
            self._num_held -= len(self._held.popleft()[1])

    def on_next(self, training: Training, batch: Batch) -> None:
        """Before a risky step, check the earlier steps, so that the snapshot does not depend on the batch of this step."""
        if not self._left_out and (training.preprocessing or self._ranges).has_extremes(batch):
            self._check(training)
            self._extreme = None if self._left_out else batch

    def on_boundary(self, training: Training) -> None:
        """Check the steps since the snapshot if there are `every` steps, or if the last step was risky."""
        is_due = self._snapshot is not None and training.progress.steps - self._snapshot.step >= self._config.every
        extreme, self._extreme = self._extreme, None
        if not (is_due or extreme is not None):
            return
        is_kept = self._check(training, alone=extreme is not None)
        if extreme is not None and is_kept:  # Later samples with similar values need no check.
            (training.preprocessing or self._ranges).accept_extremes(extreme)

    def on_epoch(self, training: Training) -> None:
        """Check the last steps before the training makes a version."""
        self._check(training)
        if self._rollbacks and self._snapshot is not None and not self._snapshot.weights_of:
            self._leave_out(training)  # All steps were undone, so that there is no new version.

    def _check(self, training: Training, *, alone: bool = False) -> bool:
        """Check the steps since the snapshot, and keep or undo them. Args: alone: whether a single risky step is checked. Returns: whether the steps
        are kept."""
        snapshot = self._snapshot
        if snapshot is None or training.progress.steps == snapshot.step:
            return True
        numbers, sums = self._prequential.losses_from(snapshot.tested)
        tested, known = snapshot.tested + len(numbers), [at for at in zip(numbers, sums, strict=True) if math.isfinite(at[1])]
        running = self._running
        if not running.is_known and known:
            running = FadedMean(self._config.window)
            running.add(*known[0])  # The first finite loss estimates the mean of the parent version.
        jump = self._jump(training, snapshot, running, sum(sums) / sum(numbers) if numbers else 0.0)
        if jump is Jump.OF_STEPS:
            self._roll_back(training, snapshot, running, tested, alone)
            return False
        self._num_data_jumps += jump is not None
        if jump is Jump.OF_DATA:
            self._running = FadedMean(self._config.window)  # The error has a new level.
        if jump is not Jump.OF_OUTLIERS:  # The mean for later steps excludes the loss of outliers.
            for num, total in known:
                self._running.add(num, total)
        self._num_snapshots += 1
        self._restart_from(Snapshot.of(training, tested))
        return True

    def _restart_from(self, snapshot: Snapshot | None) -> None:
        self._snapshot = snapshot
        self._held.clear()
        self._num_held = 0

    def _jump(self, training: Training, snapshot: Snapshot, running: FadedMean, loss: float) -> Jump | None:
        """Find the cause of a jump since the snapshot; None if there is no jump. Args: running: the mean to compare with. loss: mean loss of the new
        samples.
        """
        is_sound = weights_are_sound(training)
        newest = float(self._losses(training, [self._held[-1]]).mean()) if self._held else 0.0
        is_finite = math.isfinite(loss) and math.isfinite(newest)
        if is_sound and is_finite and not (running.is_known and running.is_jump(max(loss, newest), self._config.factor)):
            return None
        now, before, num_outliers = self._compared(training, snapshot, running) if self._held else (math.nan, math.nan, 0)
        # The level is halfway between the usual loss and the current loss. If the snapshot's loss is also above this level, the data have changed,
        # and a rollback would not help.
        level = min(now, (now + running.value) / 2) if running.is_known else now
        self._seen = {"loss": loss, "newest_loss": newest, "compared_loss": now, "snapshot_loss": before}
        if not is_sound:
            return Jump.OF_STEPS
        if num_outliers and math.isfinite(now) and not running.is_jump(now, self._config.factor):
            return Jump.OF_OUTLIERS
        return Jump.OF_DATA if math.isnan(before) or before >= level else Jump.OF_STEPS

    def _compared(self, training: Training, snapshot: Snapshot, running: FadedMean) -> tuple[float, float, int]:
        """Return the mean loss of the held samples under the current model, their mean loss under the snapshot, and the number of outliers. Each
        model uses its own statistics. Outliers and samples without a finite loss under the snapshot are left out; a mean is NaN without samples."""
        model = training.components.model
        now, current = self._losses(training, self._held), deepcopy(dict(model.state_dict()))
        # A snapshot has weights, but no model. The model gets the snapshot's weights for this comparison, and then its current weights again.
        model.load_state_dict(dict(snapshot.model))
        before = self._losses(training, self._held, snapshot.statistics)
        model.load_state_dict(current)
        known = before.isfinite()
        extreme = known & (before > EXTREME * running.value) if running.is_known else torch.zeros_like(known)
        # If many samples are extreme, the data have changed, and these samples are not outliers.
        num_outliers = int(extreme.sum()) if extreme.sum() <= MOST_EXTREME * len(before) else 0
        chosen = known & ~extreme if num_outliers else known
        return (
            (float(now[chosen].mean()), float(before[chosen].mean()), num_outliers) if chosen.any() else (math.nan, math.nan, 0)
        )

    def _losses(
        self, training: Training, held: Iterable[tuple[Batch, Int64Array]], statistics: StatisticsSnapshot | None = None
    ) -> Tensor:
        """Return the losses of the new samples of batches in evaluation mode: float32 (n,), on the host; NaN if a value is not a feature.

        Args: statistics: statistics of a snapshot's preprocessing; None for the current statistics.
        """
        return torch.cat([_losses_of(training, batch, statistics).cpu()[torch.from_numpy(rows)] for batch, rows in held])

    def _roll_back(self, training: Training, snapshot: Snapshot, running: FadedMean, tested: int, alone: bool) -> None:
        level = running.value if running.is_known else 0.0
        step, to_step = (self._steps_before + number for number in (training.progress.steps, snapshot.weights_of))
        self._rollbacks.append(Rollback(step, to_step, level, alone=alone, **self._seen))
        get_logger("training").warning("rolled_back", **asdict(self._rollbacks[-1]))
        self._restart_from(snapshot.gone_back_to(training, tested, level))
        # Rollbacks of single risky steps are not counted here, because an extreme sample says nothing about other steps.
        if sum(not each.alone for each in self._rollbacks) >= _MOST_ROLLBACKS:
            self._leave_out(training)

    def _leave_out(self, training: Training) -> None:
        """Return to the parent version. The remaining samples only test this version."""
        self._left_out = training.tests_only = True
        training.components.model.load_state_dict(dict(self._begin))
        restore_statistics(training, self._begin_statistics)
        self._restart_from(None)

    def result(self) -> GuardResult:
        """Return the actions so far, and the state from which the guard of the next steps resumes."""
        return GuardResult(
            self._num_snapshots,
            self._num_data_jumps,
            tuple(self._rollbacks),
            left_out=self._left_out,
            running=self._running.state() if self._running.is_known else None,
            ranges=self._ranges.state(),
        )

    def state(self) -> dict[str, Any]:
        """Return all inputs of the guard's decisions."""
        held = [
            {
                "rows": torch.from_numpy(rows),
                "columns": _column_bytes(batch),
                **{name: getattr(batch, name) for name in _HELD},
            }
            for batch, rows in self._held
        ]
        return {
            **asdict(self.result()),
            "snapshot": None if self._snapshot is None else self._snapshot.state(),
            "begin": dict(self._begin),
            "begin_statistics": statistics_tensor(self._begin_statistics),
            "held": held,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state`."""
        self._num_snapshots, self._num_data_jumps = state["snapshots"], state["data_jumps"]
        self._rollbacks, self._left_out = [Rollback(**each) for each in state["rollbacks"]], state["left_out"]
        self._running, self._ranges = FadedMean(self._config.window, state["running"]), TensorRanges(state["ranges"])
        self._snapshot = None if state["snapshot"] is None else Snapshot.from_state(state["snapshot"])
        self._begin, self._begin_statistics = state["begin"], statistics_of_tensor(state["begin_statistics"])
        self._held = deque((_batch_of(held), held["rows"].numpy()) for held in state["held"])
        self._num_held = sum(len(rows) for _, rows in self._held)


def _losses_of(training: Training, batch: Batch, statistics: StatisticsSnapshot | None) -> Tensor:
    """Return the losses of a batch without preprocessing; NaN if a value cannot be a feature with these statistics."""
    if batch.columns is None or training.preprocessing is None:
        return training.scoring_model().losses(batch)
    usable, rows = training.preprocessing.transformed_rows(batch, statistics)
    losses = torch.full((len(batch),), math.nan)
    if len(rows):  # A bad value in one sample does not affect the other samples.
        losses[rows] = training.scoring_model().losses(usable).cpu()
    return losses


def _column_bytes(batch: Batch) -> Tensor | None:
    """Return the columns of a batch as an Arrow stream, uint8 (n,), or None if the batch has no columns."""
    if batch.columns is None:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.columns.schema) as stream:
        stream.write_batch(batch.columns)
    return bytes_tensor(sink.getvalue())


def _batch_of(held: Mapping[str, Any]) -> Batch:
    """Restore a held batch from a checkpoint."""
    columns = None
    if held["columns"] is not None:
        (columns,) = pa.ipc.open_stream(held["columns"].numpy().tobytes())
    return Batch(**{name: held[name] for name in _HELD}, columns=columns)


def weights_are_sound(training: Training) -> bool:
    """Return whether the weights are fit for storage. Reads one number from the device."""
    try:
        check_weights(training.components.model)
    except DivergedError:
        return False
    return True


def left_out_reason(guard: StepGuard) -> str:
    """Return the reason why the steps made no model."""
    jumps = [
        f"after step {each.step}, loss {each.loss:.4g} against {each.running:.4g} before" for each in guard.result().rollbacks
    ]
    return f"the error jumped {' and '.join(jumps)}, and no snapshot has come through: its steps are left out"


class FadedMean:
    """The mean of a series of sums. A sample with k later samples has weight (1 - 1 / window)^k.

    >>> mean = FadedMean(window=100)
    >>> mean.add(num=10, total=5.0)
    >>> round(mean.value, 2), mean.is_jump(1.2, factor=2.0), mean.is_jump(0.9, factor=2.0)
    (0.5, True, False)
    """

    def __init__(self, window: int, state: Mapping[str, Any] | None = None) -> None:
        """Args: state: state of an earlier mean, which this mean continues; None to begin without samples."""
        self._kept = 1 - 1 / window
        self._total, self._weight = (0.0, 0.0) if state is None else (float(state["total"]), float(state["weight"]))

    @property
    def is_known(self) -> bool:
        """Whether the mean has a sample."""
        return self._weight > 0

    @property
    def value(self) -> float:
        """The mean. Requires at least one sample."""
        return self._total / self._weight

    def add(self, num: int, total: float) -> None:
        """Add the sum of `num` samples. The samples of one sum have the same weight."""
        kept = self._kept**num
        self._total, self._weight = self._total * kept + total, self._weight * kept + num

    def is_jump(self, loss: float, factor: float) -> bool:
        """Return whether a mean loss exceeds `factor` times this mean. For a negative mean m, the limit is m + (factor - 1) |m|."""
        return loss > self.value + (factor - 1) * abs(self.value)

    def state(self) -> dict[str, float]:
        """Return the state from which another mean continues."""
        return {"total": self._total, "weight": self._weight}
