"""Records of trainings: the request to the trainer server, the status during a training, and its result. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from modyn.config.system import SystemConfig
from modyn.errors import BY_REASON, ModynError, TrainingError
from modyn.records import JobState, RunId
from modyn.trainer_server.result import NO_RESULT, TrainingResult


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """Train trigger `trigger_id` of `run_id` on its trigger set."""

    run_id: RunId
    trigger_id: int
    pipeline: Mapping[str, Any]
    """The whole pipeline; trainings read the sections model, training, data, model_storage, selection_strategy and online."""
    parent_model_id: int | None = None
    """Model version that the training starts from; None to start from initial weights."""
    num_samples_to_pass: int | None = None
    """Limit on the number of samples; None to use `training.num_samples_to_pass` of this trigger, or otherwise `epochs_per_trigger`."""
    seed: int | None = None
    """Seed; None to use `training.seed`. A training without any seed is not repeatable."""
    downsampling_turn: int | None = None
    """Index in `downsampling_list` of the policy for the trigger, if a score decides the policy (`downsampling_thresholds`). None if the trigger's
    number decides, if the trigger is one of `warmup_triggers`, or if the pipeline has no `downsampling_list`."""
    online: bool = False
    """Train an online trigger: make the steps of proactive training that the section `online` specifies."""
    tests_only: bool = False
    """Only test the model on the new samples, which are the whole trigger set. The training makes no step and no model."""

    @property
    def identifying_sections(self) -> dict[str, Any]:
        """The sections of the pipeline by which two trainings of a run differ."""
        return {name: self.pipeline.get(name) for name in ("model", "training", "data", "selection_strategy")}


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Message of a worker: the training enters a stage, or leaves it (an empty text). See `TrainingStatus.stage`."""

    stage: str = ""


@dataclass(frozen=True, slots=True)
class ScoringProgress:
    """Message of a worker: progress of a selection, or its end. See the fields of `TrainingStatus` with the same names."""

    samples_scored: int | None = None
    samples_to_score: int | None = None


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """Message of a worker: progress of the training. The defaults are those before the first batch. See the fields of `TrainingStatus`."""

    samples_seen: int = 0
    samples_total: int | None = None
    batches_seen: int = 0
    loss: float | None = None
    samples_per_s: float = 0.0
    num_cached: Mapping[str, int] = field(default_factory=dict)
    cache_work: Mapping[str, int] = field(default_factory=dict)
    samples_loaded: int = 0


WorkerProgress = StageProgress | ScoringProgress | BatchProgress


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """The current status of a training. Counts start at 0 with each trigger and include earlier attempts of a resumed training."""

    run_id: RunId
    trigger_id: int
    state: JobState
    samples_seen: int = 0
    samples_total: int | None = None
    """Number of samples in the whole training, or None if the number is not known yet."""
    batches_seen: int = 0
    loss: float | None = None
    """Loss of the newest reported batch; after the end, the mean loss of the last epoch; None if no loss is known yet."""
    samples_per_s: float = 0.0
    model_id: int | None = None
    """Set when the training has finished, like `weights_sha256` and `result`. A finished training with None has made no model; see
    `result.nothing_trained`.
    """
    error: str = ""
    """Message of a failed training: what failed, where, and what to do."""
    error_reason: str = ""
    result: TrainingResult = NO_RESULT
    weights_sha256: str = ""
    samples_scored: int | None = None
    """Number of scored candidates in the current selection, out of `samples_to_score`; None if no selection is running."""
    samples_to_score: int | None = None
    stage: str = ""
    """The current stage before or between the epochs, as text: a selection, or the training of an irreducible-loss model. During the training of such
    a model, samples, batches and losses of the status belong to that model. The text is empty during the training itself."""
    num_cached: Mapping[str, int] = field(default_factory=dict)
    """In a running training: number of samples from each tier of the cache, including candidates."""
    cache_work: Mapping[str, int] = field(default_factory=dict)
    """In a running training: the fields of `CacheWork`, which count work done only for the cache."""
    samples_loaded: int = 0
    """In a running training: number of loaded samples, including candidates that were not chosen within their batch."""

    def updated(self, progress: WorkerProgress) -> Self:
        """Return the status of the running training after a message of its worker."""
        return replace(self, state=JobState.RUNNING, **asdict(progress))

    def to_error(self) -> ModynError:
        """Return the error that ended a failed or stopped training, as an instance of its original class."""
        kind = BY_REASON.get(self.error_reason, TrainingError)
        return kind(self.error or f"training of run {self.run_id}, trigger {self.trigger_id} ended as {self.state.name.lower()}")


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The input of a worker: a request, and the configuration of the services that it calls."""

    request: TrainingRequest
    config: SystemConfig
