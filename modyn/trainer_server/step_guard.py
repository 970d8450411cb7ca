"""Snapshots within a stretch of steps, and the way back to one when the error jumps. Imports torch: for workers only.

The rule is that of `RollbackConfig`. All that it decides by is kept in checkpoints, so a training that was killed decides the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from copy import deepcopy
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
from modyn.trainer_server.faded_mean import FadedMean
from modyn.trainer_server.hooks import DivergedError, check_weights
from modyn.trainer_server.loop import Hook, Training
from modyn.trainer_server.prequential import Prequential
from modyn.trainer_server.step_snapshot import (
    Snapshot,
    restore_statistics,
    statistics_of_tensor,
    statistics_snapshot,
    statistics_tensor,
)
from modyn.trainer_server.stream_preprocessing import bytes_tensor
from modyn.trainer_server.tensor_ranges import TensorRanges

STEP_GUARD: Final = "step_guard"
"""In the result of a training of steps: as `StepGuard.result`."""
COMPARED_ROWS: Final = 32
"""New samples that a snapshot is compared on: the newest so many, with the rest of their batches."""
EXTREME: Final = 100.0
"""Times the faded mean of the steps before, above which the loss of a sample by the snapshot is extreme."""
MOST_EXTREME: Final = 0.25
"""Share of the compared samples, up to which extreme ones are outliers; more of them are another level of the error."""
_MOST_ROLLBACKS: Final = 2
"""Of steps that were checked together; the last of them leaves the stretch out."""
_HELD: Final = ("keys", "data", "labels", "weights")
"""Of a batch in a checkpoint."""


class Jump(Enum):
    """What made the error jump."""

    OF_DATA = "data"
    """The snapshot errs as much on the newest samples."""
    OF_OUTLIERS = "outliers"
    """A few samples are extreme by the snapshot too, and on the others nothing has jumped."""
    OF_STEPS = "steps"


class StepGuard(Hook):
    """Checks steps every so many, and keeps or undoes them."""

    name = STEP_GUARD

    def __init__(self, config: RollbackConfig, prequential: Prequential, before: Mapping[str, Any], steps_before: int) -> None:
        """Args: prequential: stands before this hook. before: as `guard_result` of the version that the steps go on from.
        steps_before: of this training since the last that was not of steps, for messages."""
        self._config, self._prequential, self._steps_before = config, prequential, steps_before
        self._running = FadedMean(config.window, before.get("running"))
        self._snapshot: Snapshot | None = None
        """Of the newest step that counts as good; None until the first batch."""
        self._begin: Mapping[str, Any] = {}
        """The weights of the version before, in the memory of the host."""
        self._begin_statistics: StatisticsSnapshot | None = None
        self._held: deque[tuple[Batch, Int64Array]] = deque()
        """The newest batches since the snapshot before preprocessing, for they are compared by statistics of then and of now, and which of
        their rows are new."""
        self._num_held = 0
        self._extreme: Batch | None = None
        """That of the step that is made now, if it is risky; None at each boundary."""
        self._ranges = TensorRanges(before.get("ranges"))
        """Of samples that are tensors."""
        self._num_snapshots = 0
        self._num_data_jumps = 0
        self._rollbacks: list[dict[str, Any]] = []
        self._left_out = False
        self._seen: dict[str, float] = {}
        """Mean losses at the newest jump."""

    def on_begin(self, training: Training) -> None:
        """Copy the training where it begins, or go on from a checkpoint."""
        training.tests_only = self._left_out
        self._held = deque((batch.to(training.components.device), rows) for batch, rows in self._held)
        if not self._begin:
            self._snapshot = Snapshot.of(training, 0)
            self._begin = {name: value.detach().cpu().clone() for name, value in training.components.model.state_dict().items()}
            self._begin_statistics = statistics_snapshot(training)

    def on_output(self, training: Training, batch: Batch, output: Any) -> None:
        """Hold the batch, if some of it is new."""
        rows = self._prequential.rows
        if self._left_out or not len(rows):
            return
        self._held.append((batch if training.untransformed is None else training.untransformed, rows))
        self._num_held += len(rows)
        while self._num_held - len(self._held[0][1]) >= COMPARED_ROWS:
            self._num_held -= len(self._held.popleft()[1])

    def on_next(self, training: Training, batch: Batch) -> None:
        """Before a risky step, check those before it: so a snapshot is taken that nothing of the batch has touched."""
        if not self._left_out and (training.preprocessing or self._ranges).has_extremes(batch):
            self._check(training)
            self._extreme = None if self._left_out else batch

    def on_boundary(self, training: Training) -> None:
        """Check the steps since the snapshot, if there are `every`, or if the last one was risky."""
        is_due = self._snapshot is not None and training.progress.steps - self._snapshot.step >= self._config.every
        extreme, self._extreme = self._extreme, None
        if not (is_due or extreme is not None):
            return
        is_kept = self._check(training, alone=extreme is not None)
        if extreme is not None and is_kept:  # What is no stranger needs no check of its own.
            (training.preprocessing or self._ranges).accept_extremes(extreme)

    def on_epoch(self, training: Training) -> None:
        """Check the last steps, before a version comes of them."""
        self._check(training)
        if self._rollbacks and self._snapshot is not None and not self._snapshot.weights_of:
            self._leave_out(training)  # No step is left of which a version could come.

    def _check(self, training: Training, *, alone: bool = False) -> bool:
        """Look at the steps since the snapshot: keep them, or undo them. Args: alone: it is one, because it was risky. Returns: whether they are
        kept."""
        snapshot = self._snapshot
        if snapshot is None or training.progress.steps == snapshot.step:
            return True
        numbers, sums = self._prequential.losses_from(snapshot.tested)
        tested, known = snapshot.tested + len(numbers), [at for at in zip(numbers, sums, strict=True) if math.isfinite(at[1])]
        running = self._running
        if not running.is_known and known:
            running = FadedMean(self._config.window)
            running.add(*known[0])  # Of the version before, if nothing was no number until then.
        jump = self._jump(training, snapshot, running, sum(sums) / sum(numbers) if numbers else 0.0)
        if jump is Jump.OF_STEPS:
            self._roll_back(training, snapshot, running, tested, alone)
            return False
        self._num_data_jumps += jump is not None
        if jump is Jump.OF_DATA:
            self._running = FadedMean(self._config.window)  # The error has another level from here on.
        if jump is not Jump.OF_OUTLIERS:  # Their loss is no level that later steps could be compared with.
            for num, total in known:
                self._running.add(num, total)
        self._num_snapshots += 1
        self._go_on_from(Snapshot.of(training, tested))
        return True

    def _go_on_from(self, snapshot: Snapshot | None) -> None:
        self._snapshot = snapshot
        self._held.clear()
        self._num_held = 0

    def _jump(self, training: Training, snapshot: Snapshot, running: FadedMean, loss: float) -> Jump | None:
        """What made the error jump since the snapshot; None: it did not. Args: running: what it is compared with. loss: mean of the new samples."""
        is_sound = weights_are_sound(training)
        newest = float(self._losses(training, [self._held[-1]]).mean()) if self._held else 0.0
        is_finite = math.isfinite(loss) and math.isfinite(newest)
        if is_sound and is_finite and not (running.is_known and running.is_jump(max(loss, newest), self._config.factor)):
            return None
        now, before, num_outliers = self._compared(training, snapshot, running) if self._held else (math.nan, math.nan, 0)
        level = min(now, (now + running.value) / 2) if running.is_known else now
        self._seen = {"loss": loss, "newest_loss": newest, "compared_loss": now, "snapshot_loss": before}
        if not is_sound:
            return Jump.OF_STEPS
        if num_outliers and math.isfinite(now) and not running.is_jump(now, self._config.factor):
            return Jump.OF_OUTLIERS
        return Jump.OF_DATA if math.isnan(before) or before >= level else Jump.OF_STEPS

    def _compared(self, training: Training, snapshot: Snapshot, running: FadedMean) -> tuple[float, float, int]:
        """The mean losses of the held samples now and by the snapshot, each with its own statistics, over those that the snapshot has a finite
        one for and that are no outliers, and the number of outliers. NaN where none is left."""
        model = training.components.model
        now, current = self._losses(training, self._held), deepcopy(dict(model.state_dict()))
        model.load_state_dict(dict(snapshot.model))
        before = self._losses(training, self._held, snapshot.statistics)
        model.load_state_dict(current)
        known = before.isfinite()
        extreme = known & (before > EXTREME * running.value) if running.is_known else torch.zeros_like(known)
        num_outliers = int(extreme.sum()) if extreme.sum() <= MOST_EXTREME * len(before) else 0
        chosen = known & ~extreme if num_outliers else known
        return (
            (float(now[chosen].mean()), float(before[chosen].mean()), num_outliers) if chosen.any() else (math.nan, math.nan, 0)
        )

    def _losses(
        self, training: Training, held: Iterable[tuple[Batch, Int64Array]], statistics: StatisticsSnapshot | None = None
    ) -> Tensor:
        """The losses of the new samples of batches, in evaluation mode: float32 (n,), on the host; NaN where a value is no feature.

        Args: statistics: of preprocessing, of a snapshot; None: as they are.
        """
        return torch.cat([_losses_of(training, batch, statistics).cpu()[torch.from_numpy(rows)] for batch, rows in held])

    def _roll_back(self, training: Training, snapshot: Snapshot, running: FadedMean, tested: int, alone: bool) -> None:
        level = running.value if running.is_known else 0.0
        steps = {"step": self._steps_before + training.progress.steps, "to_step": self._steps_before + snapshot.weights_of}
        self._rollbacks.append({**steps, "alone": alone, "running": level, **self._seen})
        get_logger("training").warning("rolled_back", **self._rollbacks[-1])
        self._go_on_from(snapshot.gone_back_to(training, tested, level))
        # One extreme sample says nothing of the steps around it, however many come: each costs its own step.
        if sum(not each.get("alone") for each in self._rollbacks) >= _MOST_ROLLBACKS:
            self._leave_out(training)

    def _leave_out(self, training: Training) -> None:
        """Go back to the version before, which is asked about the rest and makes no step."""
        self._left_out = training.tests_only = True
        training.components.model.load_state_dict(dict(self._begin))
        restore_statistics(training, self._begin_statistics)
        self._go_on_from(None)

    def result(self) -> dict[str, Any]:
        """What the result of the training says: `snapshots` that were taken; `data_jumps`, of the error, that the snapshot would have made too, or
        that are of outliers; `rollbacks`, each with the `step` of the stream behind which the error had jumped, the step whose weights came back as
        `to_step`, whether it was a risky step `alone`, the `running` mean, and the mean `loss` of the new samples since the snapshot; whether the
        stretch was `left_out`; and `running`, and the `ranges` of tensors, which the next stretch goes on from."""
        return {
            "snapshots": self._num_snapshots,
            "data_jumps": self._num_data_jumps,
            "rollbacks": self._rollbacks,
            "left_out": self._left_out,
            "running": self._running.state() if self._running.is_known else None,
            "ranges": self._ranges.state(),
        }

    def state(self) -> dict[str, Any]:
        """All that decides."""
        held = [
            {
                "rows": torch.from_numpy(rows),
                "columns": _column_bytes(batch),
                **{name: getattr(batch, name) for name in _HELD},
            }
            for batch, rows in self._held
        ]
        return {
            **self.result(),
            "snapshot": None if self._snapshot is None else self._snapshot.state(),
            "begin": dict(self._begin),
            "begin_statistics": statistics_tensor(self._begin_statistics),
            "held": held,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._num_snapshots, self._num_data_jumps = state["snapshots"], state["data_jumps"]
        self._rollbacks, self._left_out = [dict(each) for each in state["rollbacks"]], state["left_out"]
        self._running, self._ranges = FadedMean(self._config.window, state["running"]), TensorRanges(state["ranges"])
        self._snapshot = None if state["snapshot"] is None else Snapshot.from_state(state["snapshot"])
        self._begin, self._begin_statistics = state["begin"], statistics_of_tensor(state["begin_statistics"])
        self._held = deque((_batch_of(held), held["rows"].numpy()) for held in state["held"])
        self._num_held = sum(len(rows) for _, rows in self._held)


def _losses_of(training: Training, batch: Batch, statistics: StatisticsSnapshot | None) -> Tensor:
    """The losses of a batch as it was before preprocessing; NaN where a value is no feature by these statistics."""
    if batch.columns is None or training.preprocessing is None:
        return training.scoring_model().losses(batch)
    usable, rows = training.preprocessing.transformed_rows(batch, statistics)
    losses = torch.full((len(batch),), math.nan)
    if len(rows):  # One value of one sample says nothing of the others.
        losses[rows] = training.scoring_model().losses(usable).cpu()
    return losses


def _column_bytes(batch: Batch) -> Tensor | None:
    """The columns of a batch as a stream of Arrow, uint8 (n,); None: it has none."""
    if batch.columns is None:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.columns.schema) as stream:
        stream.write_batch(batch.columns)
    return bytes_tensor(sink.getvalue())


def _batch_of(held: Mapping[str, Any]) -> Batch:
    """A held batch, of what a checkpoint has of it."""
    columns = None
    if held["columns"] is not None:
        (columns,) = pa.ipc.open_stream(held["columns"].numpy().tobytes())
    return Batch(**{name: held[name] for name in _HELD}, columns=columns)


def weights_are_sound(training: Training) -> bool:
    """Whether a model could be stored. Reads one number from the device."""
    try:
        check_weights(training.components.model)
    except DivergedError:
        return False
    return True


def guard_result(training_result: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a stretch goes on from: as of `StepGuard.result`, empty if the version was not made of guarded steps. Args: training_result: of it."""
    return training_result.get(STEP_GUARD) or {}


def left_out_reason(guard: StepGuard) -> str:
    """Why a stretch made no model."""
    jumps = [
        f"behind step {each['step']}, loss {each['loss']:.4g} against {each['running']:.4g} before"
        for each in guard.result()["rollbacks"]
    ]
    return f"the error jumped {' and '.join(jumps)}, and no snapshot has come through: its steps are left out"
