"""The trainings of this server: from a request to a worker, and from what it returns to a status. Knows no gRPC and no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from prometheus_client import Counter, Gauge

from modyn.config.base import Problem
from modyn.errors import ConfigError, DeadlineError, InvalidArgumentError, ModynError, NotFoundError, TrainingError
from modyn.json_codec import sanitize
from modyn.model_storage.client import StoredModelInfo
from modyn.records import JobState, RunId
from modyn.rpc.logs import get_logger
from modyn.trainer_server.request import TrainingRequest, TrainingState, TrainingStatus
from modyn.workers import Job, WorkerPool
from modyn.workers.job_table import JobTable

CHECK_S: Final = 50.0
"""Below the deadline of the call."""

TRAININGS = Counter("modyn_trainings", "Trainings that ended", ["state"])
RUNNING = Gauge("modyn_trainings_running", "Trainings that are queued or run")
SAMPLES = Counter("modyn_training_samples", "Samples that finished trainings have seen")
STAGE_SECONDS = Counter("modyn_training_stage_seconds", "Seconds that finished trainings spent", ["stage"])

Key = tuple[str, int]

_logger = get_logger("trainings")


@dataclass(frozen=True, slots=True)
class TrainingHooks:
    """What Trainings calls.

    Args:
        make_job: from a request to what the worker's `task` takes. find_model: asks model storage for the model of a run's trigger.
        clean_up: called with the request, and whether its model is stored, when no worker runs for it any more.
        task, check_task: run by workers, as `package.module:function`.
    """

    make_job: Callable[[TrainingRequest], object]
    find_model: Callable[[RunId, int], StoredModelInfo | None]
    clean_up: Callable[[TrainingRequest, bool], None] = lambda request, stored: None
    task: str = "modyn.trainer_server.train:train"
    check_task: str = "modyn.trainer_server.check:check"


class Trainings:
    """Starts trainings; their `table` watches and stops them.

    Args: pool: runs trainings. checks: runs the checks of pipelines, so that a running training does not delay one.
        num_ended: ended trainings whose status is kept; the models of older ones are in model storage.
    """

    def __init__(self, pool: WorkerPool, checks: WorkerPool, hooks: TrainingHooks, log_dir: Path, num_ended: int = 1000) -> None:
        self._pool = pool
        self._checks = checks
        self._hooks = hooks
        self._log_dir = log_dir
        self.table: JobTable[Key, TrainingStatus] = JobTable(_not_found, num_ended)

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        """What is wrong in the sections of the trainer, by a worker. Raises DeadlineError."""
        log_path = self._log_dir / "checks.log"
        log_path.unlink(missing_ok=True)
        job = self._checks.submit(self._hooks.check_task, dict(pipeline), name="check of a pipeline", log_path=log_path)
        try:
            problems: list[Problem] = job.result(CHECK_S)
        except TimeoutError as error:
            job.stop(0.0)
            raise DeadlineError(f"the check of a pipeline was not done after {CHECK_S:.0f} s; its log is {log_path}") from error
        return [Problem(sanitize(problem.path), sanitize(problem.message)) for problem in problems]

    def start(self, request: TrainingRequest) -> TrainingStatus:
        """The training as it runs already, as it has ended with a stored model, or newly queued.

        Raises: InvalidArgumentError, ConfigError: the request is refused. UnavailableError, TrainingError: no worker can be started.
        """
        _check_request(request)
        key = (str(request.run_id), request.trigger_id)
        return self.table.start(key, lambda: self._find_stored(key, request), lambda: self._begin(key, request))

    def log_path(self, run_id: str, trigger_id: int) -> Path:
        """The file that the worker of this training writes its log to."""
        return self._log_dir / run_id / f"training-{trigger_id}.log"

    def _find_stored(self, key: Key, request: TrainingRequest) -> TrainingStatus | None:
        stored = self._hooks.find_model(request.run_id, request.trigger_id)
        if stored is None:
            return None
        self._hooks.clean_up(request, True)
        version = stored.version
        status = TrainingStatus(version.run_id, version.trigger_id, TrainingState.FINISHED)
        return self.table.set(key, _with_result(status, version.model_id, version.weights_sha256, stored.training_result))

    def _begin(self, key: Key, request: TrainingRequest) -> TrainingStatus:
        status = self.table.set(key, TrainingStatus(request.run_id, request.trigger_id, TrainingState.QUEUED))
        RUNNING.inc()
        try:
            self.table.attach(key, lambda: self._submit(key, request))
        except ModynError as error:
            RUNNING.dec()
            self.table.set(key, _with_error(status, TrainingState.FAILED, error))
            raise
        return status

    def _submit(self, key: Key, request: TrainingRequest) -> Job:
        name = f"training of run {request.run_id}, trigger {request.trigger_id}"
        try:
            return self._pool.submit(
                self._hooks.task,
                self._hooks.make_job(request),
                name=name,
                log_path=self.log_path(*key),
                on_message=lambda message: self.table.update(key, lambda s: replace(s, state=TrainingState.RUNNING, **message)),
                on_done=lambda job: self._done(key, request, job),
            )
        except ModynError:
            raise
        except Exception as error:  # of any class: the status must become final
            _logger.exception("training_not_started", run_id=request.run_id, trigger_id=request.trigger_id)
            message = f"{name} cannot start: {type(error).__name__}: {error}; `modyn logs trainer_server` shows more"
            raise TrainingError(message) from error

    def _done(self, key: Key, request: TrainingRequest, job: Job) -> None:
        try:
            self._hooks.clean_up(request, job.state is JobState.FINISHED)
        finally:  # else watchers would wait for ever
            RUNNING.dec()
            TRAININGS.labels(job.state).inc()
            self._settle(key, job)

    def _settle(self, key: Key, job: Job) -> None:
        error = job.error
        if error is not None:
            _logger.warning("training_ended", run_id=key[0], trigger_id=key[1], state=job.state.name, error=error.message)
            self.table.settle(key, lambda status: _with_error(status, job.state, error))
            return
        trained = job.result()
        self.table.settle(key, lambda status: _with_result(status, trained.model_id, trained.weights_sha256, trained.result))
        SAMPLES.inc(trained.result.get("num_samples", 0))
        for stage, seconds in trained.result.get("seconds", {}).items():
            STAGE_SECONDS.labels(stage).inc(seconds)


def _not_found(key: Key) -> TrainingStatus:
    raise NotFoundError(f"there is no training of run {key[0]}, trigger {key[1]} here; start it first")


def _check_request(request: TrainingRequest) -> None:
    if not request.run_id or "/" in request.run_id or request.run_id.startswith(".") or request.trigger_id < 0:
        raise InvalidArgumentError(
            f"'{request.run_id}' with trigger {request.trigger_id} names no training: a run id is usable as a file name, triggers count from 0"
        )
    missing = [name for name in ("model", "training", "data") if not isinstance(request.pipeline.get(name), Mapping)]
    if missing:
        raise ConfigError(f"the pipeline has no section {' and no section '.join(missing)}, which a training needs")


def _with_result(status: TrainingStatus, model_id: int, weights_sha256: str, result: Mapping[str, Any]) -> TrainingStatus:
    samples = result.get("num_samples", status.samples_seen)
    return replace(
        status,
        state=TrainingState.FINISHED,
        model_id=model_id,
        weights_sha256=weights_sha256,
        samples_seen=samples,
        samples_total=samples,
        batches_seen=result.get("num_batches", status.batches_seen),
        loss=result.get("loss", status.loss),
        result=dict(result),
    )


def _with_error(status: TrainingStatus, state: TrainingState, error: ModynError) -> TrainingStatus:
    return replace(status, state=state, error=sanitize(error.message), error_reason=error.reason)
