"""Typed client of the trainer server, and the records of trainings. Imports no torch."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modyn.config.base import Problem
from modyn.config.system import SystemConfig
from modyn.errors import BY_REASON, ModynError, TrainingError
from modyn.proto import common_pb2, trainer_server_pb2, trainer_server_pb2_grpc
from modyn.records import JobState, RunId
from modyn.rpc.client import SectionClient
from modyn.rpc.wire import from_message, to_message, to_struct

NOTHING_TRAINED = "nothing_trained"
"""In the result of a training: why it made no model, though it did not fail."""


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """Train trigger `trigger_id` of `run_id` on its trigger set."""

    run_id: RunId
    trigger_id: int
    pipeline: Mapping[str, Any]
    """The whole pipeline; the sections model, training, data, model_storage, selection_strategy and online are read."""
    parent_model_id: int | None = None
    """Start from the weights of this model version; None: from initial ones."""
    num_samples_to_pass: int | None = None
    """None: what `training.num_samples_to_pass` says of this trigger, and else `epochs_per_trigger`."""
    seed: int | None = None
    """None: `training.seed`, and without one the training is not repeatable."""
    downsampling_turn: int | None = None
    """Where `downsampling_thresholds` go by a score, the position in `downsampling_list` of the policy that serves the trigger, unless it is one of
    `warmup_triggers`. None: turns go by the number of the trigger, or there are none."""
    online: bool = False
    """Take the steps of proactive training that the section `online` asks for."""
    tests_only: bool = False
    """Of these, make none: the model is only asked about the new samples, which are all of the trigger set. No model comes of it."""


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """A training as it is now. Counts start at 0 with each trigger and include what a resumed training did before."""

    run_id: RunId
    trigger_id: int
    state: JobState
    samples_seen: int = 0
    samples_total: int | None = None
    """None: not known yet."""
    batches_seen: int = 0
    loss: float | None = None
    """Loss of the newest batch that was reported, and once finished the mean of the last epoch; None: there is none yet."""
    samples_per_s: float = 0.0
    model_id: int | None = None
    """Set once finished, as are `weights_sha256` and `result`; None then: nothing was trained, see `nothing_trained`."""
    error: str = ""
    """Once failed: what, where, what to do."""
    error_reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    """As stored with the model: num_samples, num_skipped (deleted after the selection, or bad; each epoch), bad_samples (key, place and reason
    of the first hundred, if there are any), num_batches, num_steps, of these skipped_steps, num_epochs, ignored_labels of num_labels and warnings
    (sentences) if there are any, loss, losses, validation_losses (by epoch, of samples that are held
    out), seconds by stage."""
    weights_sha256: str = ""
    samples_scored: int | None = None
    """Candidates that the selection under way has scored, of `samples_to_score`; None: none is under way."""
    samples_to_score: int | None = None
    stage: str = ""
    """What goes on before or between the epochs of the training itself, in words: an irreducible-loss model, whose own samples, batches and
    losses the status has then, or a selection. Empty: the training itself."""
    num_cached: Mapping[str, int] = field(default_factory=dict)
    """While it runs: samples that came from each tier of the cache, candidates included."""
    cache_work: Mapping[str, int] = field(default_factory=dict)
    """While it runs: the fields of `CacheWork`, what was done for the cache only."""
    samples_loaded: int = 0
    """While it runs: samples that were given to it, with the candidates that it did not choose within their batch."""

    def to_error(self) -> ModynError:
        """The error that ended a failed or stopped training, in its own class."""
        kind = BY_REASON.get(self.error_reason, TrainingError)
        return kind(self.error or f"training of run {self.run_id}, trigger {self.trigger_id} ended as {self.state.name.lower()}")

    @property
    def nothing_trained(self) -> str:
        """Why a finished training made no model; empty: it made one."""
        return str(self.result.get(NOTHING_TRAINED, ""))


@dataclass(frozen=True, slots=True)
class NothingTrained:
    """What a worker returns for a training that ended well and made no model."""

    reason: str
    result: Mapping[str, Any]
    """As of a training that made one, with the reason under NOTHING_TRAINED."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What a worker receives: a request, and the configuration of the services that it reaches."""

    request: TrainingRequest
    config: SystemConfig


class TrainerServerClient(SectionClient):
    """Calls of the trainer server, which acts on the sections model, training, data and selection_strategy.downsampling_config."""

    _Stub = trainer_server_pb2_grpc.TrainerServerStub

    def validate(self, pipeline: Mapping[str, Any], scores: Sequence[str] = ()) -> list[Problem]:
        """List the mistakes in the sections of a whole pipeline that the trainer server acts on.

        Args: scores: those that the selection asks trainings for, as `SelectorClient.asked_scores` returns them.
        """
        reply = self._stub.ValidateSection(common_pb2.SectionRequest(pipeline=to_struct(pipeline), scores=scores))
        return [from_message(problem, Problem) for problem in reply.problems]

    def start(self, request: TrainingRequest) -> TrainingStatus:
        """Start a training, or find it: idempotent by run and trigger.

        One that runs goes on, one whose model is stored is finished, a failed or stopped one is tried again.
        Raises: ConfigError: the pipeline is not valid.
        """
        return from_message(self._stub.Start(to_message(request, trainer_server_pb2.TrainingRequest)), TrainingStatus)

    def watch(self, run_id: str, trigger_id: int) -> Generator[TrainingStatus, None, None]:
        """Yield the status of the training of trigger `trigger_id` now, then on every change, at most a few a second, and the final one last.

        Raises: NotFoundError: the training was not started since the service was.
        """
        for status in self._stub.Watch(trainer_server_pb2.TrainingId(run_id=run_id, trigger_id=trigger_id)):
            yield from_message(status, TrainingStatus)

    def stop(self, run_id: str, trigger_id: int) -> None:
        """Ask the training of a trigger to stop, and return at once; it ends as STOPPED, with a checkpoint if it keeps any. Raises: NotFoundError."""
        self._stub.Stop(trainer_server_pb2.TrainingId(run_id=run_id, trigger_id=trigger_id))

    def delete_run(self, run_id: str) -> None:
        """End what is left of a run here, and remove its logs, checkpoints, finished trainings and states of optimizers. May be repeated.

        Raises: UnavailableError: a training does not end.
        """
        self._stub.DeleteRun(trainer_server_pb2.TrainedRun(run_id=run_id))
