"""The trainings of this server: from a request to a worker, and from the worker's result to a status. Imports no gRPC and no torch."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

from prometheus_client import Counter, Gauge

from modyn.config.base import Problem
from modyn.config.downsampling_turns import load_turns
from modyn.config.system import SystemConfig
from modyn.dataset.cached.pipeline_cache import cache_problems, cache_redis_url
from modyn.errors import (
    ConfigError,
    DeadlineError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
    TrainingError,
    UnavailableError,
)
from modyn.json_codec import sanitize, to_json
from modyn.model_storage.client import StoredModelInfo
from modyn.records import JobState, RunId
from modyn.rpc.access import Role, for_workers
from modyn.rpc.logs import get_logger
from modyn.run_ids import check_run_id
from modyn.trainer_server.disk.files import clean_up, remove_run
from modyn.trainer_server.request.records import TrainingJob, TrainingRequest, TrainingStatus
from modyn.trainer_server.result import TrainingResult
from modyn.workers import Job, JobSpec, JobTable, WorkerPool

CHECK_S: Final = 50.0
"""Limit in seconds for a check, below the deadline of the call."""
ENDING_S: Final = 40.0
"""Seconds to wait for the trainings of a run that is removed; below the deadline of the call."""
_RUNS_REMEMBERED: Final = 256
"""Number of runs whose last stored trigger is remembered. For other runs, the trainer server asks model storage."""

TRAININGS = Counter("modyn_trainings", "Trainings that ended", ["state"])
RUNNING = Gauge("modyn_trainings_running", "Trainings that are queued or run")
SAMPLES = Counter("modyn_training_samples", "Samples that finished trainings have seen")
ROLLBACKS = Counter(
    "modyn_training_rollbacks", "Times that steps of proactive training went back to a snapshot because the error jumped"
)
LEFT_OUT = Counter("modyn_training_left_out_step_batches", "Step batches that made no version because the error jumped again")
TESTED = Counter("modyn_training_tested_samples", "New samples that were only tested, while steps paused or were left out")
CACHED = Counter("modyn_cache_samples", "Samples that finished trainings took from a tier of the cache", ["tier"])
SERVED = Counter(
    "modyn_cache_served_samples", "Samples that finished trainings with a cache received, from the cache or from storage"
)
DECODED = Counter(
    "modyn_cache_decoded_samples", "Samples that finished trainings with a cache decoded, for batches and for the cache only"
)
SAVED_SECONDS = Gauge(
    "modyn_cache_saved_seconds",
    "Seconds of preparing samples that a cache saved finished trainings, as estimated; below 0: it cost more",
)
STAGE_SECONDS = Counter("modyn_training_stage_seconds", "Seconds that finished trainings spent", ["stage"])

Key = tuple[str, int]

_logger = get_logger("trainings")


class Trainings:
    """Starts trainings. Callers watch and stop the trainings in `table`.

    Args: pool: runs trainings. checks: runs the checks of pipelines, so that running trainings do not delay a check.
        find_model: returns the model of a run's trigger from model storage.
        num_ended: number of ended trainings whose status is kept; the models of older trainings are in model storage.
    """

    task = "modyn.trainer_server.train:train"
    check_task = "modyn.trainer_server.check:check_task"

    def __init__(
        self,
        config: SystemConfig,
        pool: WorkerPool,
        checks: WorkerPool,
        find_model: Callable[[RunId, int], StoredModelInfo | None],
        num_ended: int = 1000,
    ) -> None:
        self._config = config
        self._pool = pool
        self._checks = checks
        self._find_model = find_model
        self._log_dir = config.log_dir / "runs"
        self.table: JobTable[Key, TrainingStatus] = JobTable(_not_found, num_ended)
        self._stored_here: OrderedDict[str, int] = OrderedDict()
        """The last trigger of each recent run whose model this process trained and stored. Guarded by the lock `table.changed`."""

    def validate(self, pipeline: Mapping[str, Any], scores: Sequence[str] = ()) -> list[Problem]:
        """List the errors that a worker finds in the trainer's sections. Args: scores: scores that the selection requests. Raises DeadlineError."""
        log_path = self._log_dir / "checks.log"
        log_path.unlink(missing_ok=True)
        job = self._checks.submit(
            JobSpec(self.check_task, (dict(pipeline), tuple(scores)), name="check of a pipeline", log_path=log_path)
        )
        try:
            problems: list[Problem] = job.result(CHECK_S)
        except TimeoutError as error:
            job.stop(0.0)
            raise DeadlineError(f"the check of a pipeline was not done after {CHECK_S:.0f} s; its log is {log_path}") from error
        problems += cache_problems(self._config, pipeline)
        return [replace(problem, path=sanitize(problem.path), message=sanitize(problem.message)) for problem in problems]

    def start(self, request: TrainingRequest) -> TrainingStatus:
        """Return the status of the training. Queue the training, unless it is running, or has ended and stored its model.

        Raises: InvalidArgumentError, ConfigError: the request is refused. UnavailableError, TrainingError: no worker can be started.
        """
        check_request(request)
        key = (str(request.run_id), request.trigger_id)
        return self.table.start(key, lambda: self._find_stored(key, request), lambda: self._begin(key, request))

    def delete_run(self, run_id: str) -> None:
        """End the trainings of a run and remove the run's files. Raises: InvalidArgumentError, UnavailableError: a training does not end."""
        check_run_id(run_id)
        if not self.table.end_all(lambda key: key[0] == run_id, ENDING_S):
            raise UnavailableError(f"a training of run {run_id} has not ended within {ENDING_S:.0f} s; remove the run again")
        with self.table.changed:
            self._stored_here.pop(run_id, None)
        remove_run(self._config.service_dir("trainer_server"), run_id)
        rmtree(self._log_dir / run_id, ignore_errors=True)

    def log_path(self, run_id: str, trigger_id: int) -> Path:
        """Return the path of the log file of this training's worker; the file may not exist."""
        return self._log_dir / run_id / f"training-{trigger_id}.log"

    def _find_stored(self, key: Key, request: TrainingRequest) -> TrainingStatus | None:
        # If the previous trigger was stored by this process, no other process has trained this trigger, and the request to model storage is not
        # needed. A training by this process would be in the table.
        if self._stored_here.get(key[0]) == key[1] - 1 and self.table.get(key) is None:
            return None
        stored = self._find_model(request.run_id, request.trigger_id)
        if stored is None:
            return None
        self._clean_up(request, stored=True)
        return self.table.set(key, _finished(TrainingStatus(request.run_id, request.trigger_id, JobState.FINISHED), stored))

    def _begin(self, key: Key, request: TrainingRequest) -> TrainingStatus:
        status = self.table.set(key, TrainingStatus(request.run_id, request.trigger_id, JobState.QUEUED))
        RUNNING.inc()
        try:
            self.table.attach(key, lambda: self._submit(key, request))
        except ModynError as error:
            RUNNING.dec()
            self.table.set(key, _with_error(status, JobState.FAILED, error))
            raise
        return status

    def _worker_config(self, request: TrainingRequest) -> SystemConfig:
        """Return the configuration for a training's worker. Only the worker of a training with a cache gets the URL of Redis."""
        redis_url = cache_redis_url(self._config, request.pipeline)
        return for_workers(self._config, Role.WORKER).model_copy(update={"redis_url": redis_url})

    def _submit(self, key: Key, request: TrainingRequest) -> Job:
        name = f"training of run {request.run_id}, trigger {request.trigger_id}"
        try:
            spec = JobSpec(
                self.task,
                TrainingJob(request, self._worker_config(request)),
                name=name,
                log_path=self.log_path(*key),
                session=session_key(request),
                device=str(request.pipeline["training"].get("device", "cpu")),
            )
            return self._pool.submit(
                spec,
                on_message=lambda message: self.table.update(key, lambda status: status.updated(message)),
                on_done=lambda job: self._handle_end(key, request, job),
            )
        except ModynError:
            raise
        except Exception as error:  # any class, because the status must become final
            _logger.exception("training_not_started", run_id=request.run_id, trigger_id=request.trigger_id)
            message = f"{name} cannot start: {type(error).__name__}: {error}; `modyn logs trainer_server` shows more"
            raise TrainingError(message) from error

    def _handle_end(self, key: Key, request: TrainingRequest, job: Job) -> None:
        """Handle the end of the worker. The status becomes final even after an error in this method, because watchers wait for a final status."""
        RUNNING.dec()
        TRAININGS.labels(job.state).inc()
        try:
            if job.state is JobState.FINISHED and isinstance(job.result(), StoredModelInfo):
                self._note_stored(key)  # The worker has also removed the files that it could resume from.
            self._clean_up(request, stored=False)
            self._report(key, job)
        except Exception:  # of any class
            _logger.exception("training_not_cleaned_up", run_id=key[0], trigger_id=key[1])
        try:
            self.table.settle(key, lambda status: _ended(status, job))
        except Exception as error:
            _logger.exception("training_not_concluded", run_id=key[0], trigger_id=key[1])
            failure = TrainingError(f"{job.name} has ended, but its answer cannot be read: {type(error).__name__}: {error}")
            self.table.settle(key, lambda status: _with_error(status, JobState.FAILED, failure))

    def _note_stored(self, key: Key) -> None:
        with self.table.changed:
            # This moves the run to the end, so that the runs without recent trainings are forgotten first.
            self._stored_here.pop(key[0], None)
            self._stored_here[key[0]] = key[1]
            if len(self._stored_here) > _RUNS_REMEMBERED:
                self._stored_here.popitem(last=False)

    def _clean_up(self, request: TrainingRequest, *, stored: bool) -> None:
        clean_up(self._config.service_dir("trainer_server"), request, stored=stored)

    def _report(self, key: Key, job: Job) -> None:
        if job.error is not None:
            _logger.warning("training_ended", run_id=key[0], trigger_id=key[1], state=job.state.name, error=job.error.message)
            return
        result = _result(job)
        ROLLBACKS.inc(len(result.rollbacks))
        LEFT_OUT.inc(result.step_guard is not None and result.step_guard.left_out)
        if result.nothing_trained:
            TESTED.inc(result.counts.num_tested or 0)
            # A training that only tests is expected to train nothing. All other cases are logged as a warning.
            log = _logger.info if result.counts.num_tested is not None and result.step_guard is None else _logger.warning
            log("nothing_trained", run_id=key[0], trigger_id=key[1], reason=result.nothing_trained)
            return
        SAMPLES.inc(result.counts.num_samples)
        if result.cache is not None and (counts := result.served_counts) is not None:
            for tier, num_samples in result.cache.num_cached.items():
                CACHED.labels(tier).inc(num_samples)
            SERVED.inc(counts.served)
            DECODED.inc(counts.decodings)
            SAVED_SECONDS.inc(result.cache.cache_saved_s or 0.0)
        for stage, seconds in result.seconds.items():
            STAGE_SECONDS.labels(stage).inc(seconds)


def _result(job: Job) -> TrainingResult:
    """Return the result of a training whose worker ended without an error."""
    ended: StoredModelInfo | TrainingResult = job.result()
    return ended if isinstance(ended, TrainingResult) else TrainingResult.from_mapping(ended.training_result)


def session_key(request: TrainingRequest) -> str:
    """Return the key of a session. One worker may run trainings with equal keys one after the other: they have the same run and pipeline, and either
    all or none have a seed, because a seed makes the whole process deterministic.
    """
    digest = hashlib.sha256(to_json([request.identifying_sections, request.seed is None], sort_keys=True).encode()).hexdigest()
    return f"{request.run_id} {digest}"


def _not_found(key: Key) -> TrainingStatus:
    raise NotFoundError(f"there is no training of run {key[0]}, trigger {key[1]} here; start it first")


def check_request(request: TrainingRequest) -> None:
    """Check a request. Raises: InvalidArgumentError: the request names no training, or names no downsampling policy although a score decides the
    policy. ConfigError: the pipeline lacks a section that a training needs, or the options that decide the policy are wrong."""
    check_run_id(request.run_id)
    if request.trigger_id < 0:
        raise InvalidArgumentError(
            f"'{request.run_id}' with trigger {request.trigger_id} names no training: triggers count from 0"
        )
    missing = [name for name in ("model", "training", "data") if not isinstance(request.pipeline.get(name), Mapping)]
    if missing:
        raise ConfigError(f"the pipeline has no section {' and no section '.join(missing)}, which a training needs")
    if isinstance(selection := request.pipeline.get("selection_strategy"), Mapping) and not request.online:
        load_turns(selection).turn(request.trigger_id, request.downsampling_turn)


def _ended(status: TrainingStatus, job: Job) -> TrainingStatus:
    """Return the final status of a training whose worker has ended."""
    if job.error is not None:
        return _with_error(status, job.state, job.error)
    ended: StoredModelInfo | TrainingResult = job.result()
    if isinstance(ended, TrainingResult):
        return replace(status, state=JobState.FINISHED, loss=None, result=ended)
    return _finished(status, ended)


def _finished(status: TrainingStatus, stored: StoredModelInfo) -> TrainingStatus:
    result = TrainingResult.from_mapping(stored.training_result)
    return replace(
        status,
        state=JobState.FINISHED,
        model_id=stored.version.model_id,
        weights_sha256=stored.version.weights_sha256,
        samples_seen=result.counts.num_samples,
        samples_total=result.counts.num_samples,
        batches_seen=result.counts.num_batches,
        loss=result.losses.loss,
        result=result,
    )


def _with_error(status: TrainingStatus, state: JobState, error: ModynError) -> TrainingStatus:
    return replace(status, state=state, error=sanitize(error.message), error_reason=error.reason)
