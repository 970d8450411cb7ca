"""What is asked of a training and what comes of it: records of the service, of its client and of its workers. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modyn.config.system import SystemConfig
from modyn.errors import BY_REASON, ModynError, TrainingError
from modyn.records import JobState, RunId

TrainingState = JobState
"""State of a training."""


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """Train trigger `trigger_id` of `run_id` on its trigger set."""

    run_id: RunId
    trigger_id: int
    pipeline: Mapping[str, Any]
    """The whole pipeline; the sections model, training, data, model_storage and selection_strategy are read."""
    parent_model_id: int | None = None
    """Start from the weights of this model version; None: from initial ones."""
    num_samples_to_pass: int | None = None
    """None: what `training.num_samples_to_pass` says of this trigger, and else `epochs_per_trigger`."""
    seed: int | None = None
    """None: `training.seed`, and without one the training is not repeatable."""


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """A training as it is now. Counts start at 0 with each trigger and include what a resumed training did before."""

    run_id: RunId
    trigger_id: int
    state: TrainingState
    samples_seen: int = 0
    samples_total: int | None = None
    """None: not known yet."""
    batches_seen: int = 0
    loss: float | None = None
    """Loss of the newest batch that was reported, and once finished the mean of the last epoch; None: there is none yet."""
    samples_per_s: float = 0.0
    model_id: int | None = None
    """Set once finished, as are `weights_sha256` and `result`."""
    error: str = ""
    """Once failed: what, where, what to do."""
    error_reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    """As stored with the model: num_samples, num_batches, num_epochs, loss, losses, seconds by stage."""
    weights_sha256: str = ""

    def to_error(self) -> ModynError:
        """The error that ended a failed or stopped training, in its own class."""
        kind = BY_REASON.get(self.error_reason, TrainingError)
        return kind(self.error or f"training of run {self.run_id}, trigger {self.trigger_id} ended as {self.state.name.lower()}")


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What a worker receives: a request, and the configuration of the services that it reaches."""

    request: TrainingRequest
    config: SystemConfig


@dataclass(frozen=True, slots=True)
class Trained:
    """What a worker returns. `result` is stored with the model."""

    model_id: int
    weights_sha256: str
    result: Mapping[str, Any]
