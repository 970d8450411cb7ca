"""Copies of a training within a stretch of steps, to go back to. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from modyn.preprocessing import StatisticsSnapshot
from modyn.trainer_server.loop import Training
from modyn.trainer_server.optimizer_states import load_but_options
from modyn.trainer_server.stream_preprocessing import bytes_tensor, snapshot_of_tensor


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The training where its steps were checked. step: how many it has made, undone ones too. weights_of: the step whose weights it has; 0: those
    of the version before. tested: steps whose new samples were tested by then. batches: of the epoch."""

    step: int
    weights_of: int
    tested: int
    batches: int
    epoch_loss: Tensor
    model: Mapping[str, Any]
    optimizers: Mapping[str, Any]
    scaler: Mapping[str, Any]
    statistics: StatisticsSnapshot | None
    """Of preprocessing, which belong to the weights; None: there are none."""

    @classmethod
    def of(cls, training: Training, tested: int) -> Snapshot:
        """Copy the training as it is now."""
        parts, steps, loss = training.components, training.progress.steps, training.epoch_loss.clone()
        optimizers = {name: deepcopy(optimizer.state_dict()) for name, optimizer in parts.optimizers.items()}
        model, scaler = deepcopy(dict(parts.model.state_dict())), deepcopy(parts.scaler.state_dict())
        batches, statistics = training.progress.batches_in_epoch, statistics_snapshot(training)
        return cls(steps, steps, tested, batches, loss, model, optimizers, scaler, statistics)

    def gone_back_to(self, training: Training, tested: int, undone_loss: float) -> Snapshot:
        """Bring weights and optimizers back, and return the snapshot of where the training goes on.

        Learning rates and other options of the optimizers stay: they go by the step. Args: tested: as of the class. undone_loss: what each batch
        since the snapshot counts in the mean loss of the epoch.
        """
        self.restore(training)
        batches = training.progress.batches_in_epoch
        training.epoch_loss = self.epoch_loss.to(training.components.device) + (batches - self.batches) * undone_loss
        steps, loss = training.progress.steps, training.epoch_loss.clone()
        return replace(self, step=steps, tested=tested, batches=batches, epoch_loss=loss)

    def restore(self, training: Training) -> None:
        """Bring weights and optimizers back, but for the options of these."""
        parts = training.components
        parts.model.load_state_dict(dict(self.model))
        for name, optimizer in parts.optimizers.items():
            load_but_options(optimizer, deepcopy(self.optimizers[name]))
        parts.scaler.load_state_dict(dict(self.scaler))
        restore_statistics(training, self.statistics)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {name: getattr(self, name) for name in self.__slots__} | {"statistics": statistics_tensor(self.statistics)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Snapshot:
        """What `state` returned."""
        return cls(**{**state, "statistics": statistics_of_tensor(state["statistics"])})


def statistics_snapshot(training: Training) -> StatisticsSnapshot | None:
    """The statistics of the preprocessing of a training; None: it has none."""
    return None if training.preprocessing is None else training.preprocessing.snapshot()


def restore_statistics(training: Training, statistics: StatisticsSnapshot | None) -> None:
    """Bring back what `statistics_snapshot` returned."""
    if training.preprocessing is not None and statistics is not None:
        training.preprocessing.go_back(statistics)


def statistics_tensor(statistics: StatisticsSnapshot | None) -> Tensor | None:
    """What a checkpoint keeps of `statistics_snapshot`: uint8 (n,)."""
    return None if statistics is None else bytes_tensor(statistics.to_bytes())


def statistics_of_tensor(content: Tensor | None) -> StatisticsSnapshot | None:
    """What `statistics_tensor` was given. Raises: CorruptStateError."""
    return None if content is None else snapshot_of_tensor(content)
