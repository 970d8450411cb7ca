"""Copies of the state of a training between two steps, for a later rollback. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from modyn.preprocessing import StatisticsSnapshot
from modyn.trainer_server.loop.loop import Training
from modyn.trainer_server.loop.optimizer_states import load_but_options
from modyn.trainer_server.online.stream_preprocessing import bytes_tensor, snapshot_of_tensor


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the training at a check of its steps. step: number of steps so far, including undone steps. weights_of: number of the step that
    made the weights; 0 for the weights of the parent version. tested: number of steps whose new samples were tested. batches: number of batches of
    the epoch so far."""

    step: int
    weights_of: int
    tested: int
    batches: int
    epoch_loss: Tensor
    model: Mapping[str, Any]
    optimizers: Mapping[str, Any]
    scaler: Mapping[str, Any]
    statistics: StatisticsSnapshot | None
    """Statistics of preprocessing that belong to the weights; None if the training has no such statistics."""

    @classmethod
    def of(cls, training: Training, tested: int) -> Snapshot:
        """Copy the current state of the training."""
        parts, steps, loss = training.components, training.progress.steps, training.epoch_loss.clone()
        optimizers = {name: deepcopy(optimizer.state_dict()) for name, optimizer in parts.optimizers.items()}
        model, scaler = deepcopy(dict(parts.model.state_dict())), deepcopy(parts.scaler.state_dict())
        batches, statistics = training.progress.batches_in_epoch, statistics_snapshot(training)
        return cls(steps, steps, tested, batches, loss, model, optimizers, scaler, statistics)

    def gone_back_to(self, training: Training, tested: int, undone_loss: float) -> Snapshot:
        """Restore weights and optimizers, and return the snapshot from which the training continues.

        The optimizers keep their learning rates and other options, which depend on the step. Args: tested: see the class. undone_loss: loss that
        counts for each undone batch in the mean loss of the epoch.
        """
        self.restore(training)
        batches = training.progress.batches_in_epoch
        training.epoch_loss = self.epoch_loss.to(training.components.device) + (batches - self.batches) * undone_loss
        steps, loss = training.progress.steps, training.epoch_loss.clone()
        return replace(self, step=steps, tested=tested, batches=batches, epoch_loss=loss)

    def restore(self, training: Training) -> None:
        """Restore weights and optimizers, except for the optimizers' options."""
        parts = training.components
        parts.model.load_state_dict(dict(self.model))
        for name, optimizer in parts.optimizers.items():
            load_but_options(optimizer, deepcopy(self.optimizers[name]))
        parts.scaler.load_state_dict(dict(self.scaler))
        restore_statistics(training, self.statistics)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {name: getattr(self, name) for name in self.__slots__} | {"statistics": statistics_tensor(self.statistics)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Snapshot:
        """Restore a snapshot from `state`."""
        return cls(**{**state, "statistics": statistics_of_tensor(state["statistics"])})


def statistics_snapshot(training: Training) -> StatisticsSnapshot | None:
    """Return the statistics of a training's preprocessing, or None if the training has no preprocessing."""
    return None if training.preprocessing is None else training.preprocessing.snapshot()


def restore_statistics(training: Training, statistics: StatisticsSnapshot | None) -> None:
    """Restore the statistics from `statistics_snapshot`."""
    if training.preprocessing is not None and statistics is not None:
        training.preprocessing.go_back(statistics)


def statistics_tensor(statistics: StatisticsSnapshot | None) -> Tensor | None:
    """Encode statistics for a checkpoint: uint8 (n,)."""
    return None if statistics is None else bytes_tensor(statistics.to_bytes())


def statistics_of_tensor(content: Tensor | None) -> StatisticsSnapshot | None:
    """Decode the statistics from `statistics_tensor`. Raises: CorruptStateError."""
    return None if content is None else snapshot_of_tensor(content)
