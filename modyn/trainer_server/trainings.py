"""The trainings of this server: which run, how far they are, and who watches. Knows no gRPC and no torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from prometheus_client import Counter, Gauge

from modyn.config.base import Problem
from modyn.errors import ConfigError, DeadlineError, InvalidArgumentError, ModynError, NotFoundError, TrainingError
from modyn.model_storage.client import StoredModelInfo
from modyn.records import JobState, RunId
from modyn.rpc.logs import get_logger
from modyn.sanitize import sanitize
from modyn.trainer_server.client import TrainingRequest, TrainingState, TrainingStatus
from modyn.workers import Job, WorkerPool

KEPT: Final = 1000
"""Finished trainings whose status is remembered; what older ones made is in model storage."""
CHECK_S: Final = 50.0
"""Below the deadline of the call."""

TRAININGS = Counter("modyn_trainings", "Trainings that ended", ["state"])
RUNNING = Gauge("modyn_trainings_running", "Trainings that are queued or run")
SAMPLES = Counter("modyn_training_samples", "Samples that finished trainings have seen")
STAGE_SECONDS = Counter("modyn_training_stage_seconds", "Seconds that finished trainings spent", ["stage"])

Key = tuple[str, int]
FindModel = Callable[[RunId, int], StoredModelInfo | None]
CleanUp = Callable[[TrainingRequest, bool], None]

_logger = get_logger("trainings")


class Trainings:
    """Starts, watches and stops trainings. `task` is what a worker runs; it gets `make_request(request)` and returns an object with
    `model_id` and `result`. `find_model` asks model storage. `clean_up` is called when no worker runs for a request any more, and told
    whether its model is stored."""

    def __init__(
        self,
        pool: WorkerPool,
        checks: WorkerPool,
        *,
        task: str,
        check_task: str,
        make_request: Callable[[TrainingRequest], object],
        find_model: FindModel,
        log_dir: Path,
        clean_up: CleanUp = lambda _request, _stored: None,
    ) -> None:
        self._pool = pool
        self._checks = checks
        self._task = task
        self._check_task = check_task
        self._make_request = make_request
        self._find_model = find_model
        self._log_dir = log_dir
        self._clean_up = clean_up
        self._starting = threading.Lock()
        self._changed = threading.Condition()
        self._statuses: dict[Key, TrainingStatus] = {}
        self._jobs: dict[Key, Job] = {}

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        """What is wrong in the sections of the trainer, found by a worker of its own, so that a running training does not delay it."""
        log_path = self._log_dir / "checks.log"
        log_path.unlink(missing_ok=True)
        job = self._checks.submit(self._check_task, dict(pipeline), name="check of a pipeline", log_path=log_path)
        try:
            problems: list[Problem] = job.result(CHECK_S)
        except TimeoutError as error:
            job.stop(0.0)
            raise DeadlineError(f"the check of a pipeline was not done after {CHECK_S:.0f} s; its log is {log_path}") from error
        return [Problem(sanitize(problem.path), sanitize(problem.message)) for problem in problems]

    def start(self, request: TrainingRequest) -> TrainingStatus:
        """The training as it runs already, as it has ended with a stored model, or newly queued. Raises InvalidArgumentError or
        ConfigError for a request that no worker need see; UnavailableError or TrainingError if none can be started."""
        _check_request(request)
        key = (str(request.run_id), request.trigger_id)
        # One start at a time: between the question to model storage and the job nobody else may start the same.
        with self._starting:
            with self._changed:
                known = self._statuses.get(key)
                if known is not None and not known.state.is_final:
                    return known
            stored = self._find_model(request.run_id, request.trigger_id)
            if stored is not None:
                self._clean_up(request, True)
                return self._set(key, _finished(stored))
            status = self._set(key, TrainingStatus(request.run_id, request.trigger_id, TrainingState.QUEUED))
            RUNNING.inc()
            try:
                with self._changed:
                    self._jobs[key] = self._submit(key, request)
            except ModynError as error:
                RUNNING.dec()
                self._set(key, _ended(status, TrainingState.FAILED, error))
                raise
            return status

    def watch(self, run_id: str, trigger_id: int, gone: threading.Event | None = None) -> Iterator[TrainingStatus]:
        """The status now, then each newer one, until a final one or until `gone` is set (call `wake` after setting it)."""
        key = (run_id, trigger_id)
        seen: TrainingStatus | None = None
        gone = gone or threading.Event()
        while True:
            with self._changed:
                while (status := self._status(key)) is seen and not gone.is_set():
                    self._changed.wait()
            if gone.is_set():
                return
            seen = status
            yield status
            if status.state.is_final:
                return

    def wake(self) -> None:
        """Let watchers look whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()

    def stop(self, run_id: str, trigger_id: int) -> None:
        """Ask a training to stop. A final one stays what it is."""
        with self._changed:
            final = self._status((run_id, trigger_id)).state.is_final
            job = self._jobs.get((run_id, trigger_id))
        if not final and job is not None:
            job.stop()

    def log_path(self, run_id: str, trigger_id: int) -> Path:
        return self._log_dir / run_id / f"training-{trigger_id}.log"

    def _submit(self, key: Key, request: TrainingRequest) -> Job:
        name = f"training of run {request.run_id}, trigger {request.trigger_id}"
        try:
            return self._pool.submit(
                self._task,
                self._make_request(request),
                name=name,
                log_path=self.log_path(*key),
                on_message=lambda message: self._progress(key, message),
                on_done=lambda job: self._done(key, request, job),
            )
        except ModynError:
            raise
        except Exception as error:  # whatever it is, who watches must hear of it
            _logger.exception("training_not_started", run_id=request.run_id, trigger_id=request.trigger_id)
            told = f"{name} cannot start: {type(error).__name__}: {error}; `modyn logs trainer_server` tells more"
            raise TrainingError(told) from error

    def _progress(self, key: Key, message: Mapping[str, Any]) -> None:
        with self._changed:
            self._set(key, replace(self._status(key), state=TrainingState.RUNNING, **message))

    def _done(self, key: Key, request: TrainingRequest, job: Job) -> None:
        try:
            self._clean_up(request, job.state is JobState.FINISHED)
        finally:  # or who watches waits for ever
            self._settle(key, job)

    def _settle(self, key: Key, job: Job) -> None:
        RUNNING.dec()
        TRAININGS.labels(job.state).inc()
        with self._changed:
            status = self._status(key)
            self._jobs.pop(key, None)
            if job.error is not None:
                _logger.warning("training_ended", run_id=key[0], trigger_id=key[1], state=job.state.name, error=job.error.message)
                self._set(key, _ended(status, job.state, job.error))
                return
            trained = job.result()
            self._set(key, _with_result(status, trained.model_id, trained.result))
        _count(trained.result)

    def _status(self, key: Key) -> TrainingStatus:
        if key not in self._statuses:
            raise NotFoundError(f"there is no training of run {key[0]}, trigger {key[1]} here; start it first")
        return self._statuses[key]

    def _set(self, key: Key, status: TrainingStatus) -> TrainingStatus:
        with self._changed:
            self._statuses.pop(key, None)
            self._statuses[key] = status
            if len(self._statuses) > KEPT:
                old = next((k for k, s in self._statuses.items() if s.state.is_final and k != key), None)
                if old is not None:
                    del self._statuses[old]
            self._changed.notify_all()
            return status


def _check_request(request: TrainingRequest) -> None:
    if not request.run_id or "/" in request.run_id or request.run_id.startswith(".") or request.trigger_id < 0:
        raise InvalidArgumentError(
            f"'{request.run_id}' with trigger {request.trigger_id} names no training: a run id is usable as a file name, triggers count from 0"
        )
    missing = [name for name in ("model", "training", "data") if not isinstance(request.pipeline.get(name), Mapping)]
    if missing:
        raise ConfigError(f"the pipeline has no section {' and no section '.join(missing)}, which a training needs")


def _finished(stored: StoredModelInfo) -> TrainingStatus:
    version = stored.version
    status = TrainingStatus(version.run_id, version.trigger_id, TrainingState.FINISHED)
    return _with_result(status, version.model_id, stored.training_result)


def _with_result(status: TrainingStatus, model_id: int, result: Mapping[str, Any]) -> TrainingStatus:
    samples = result.get("num_samples", status.samples_seen)
    return replace(
        status,
        state=TrainingState.FINISHED,
        model_id=model_id,
        samples_seen=samples,
        samples_total=samples,
        batches_seen=result.get("num_batches", status.batches_seen),
        loss=result.get("loss", status.loss),
        result=dict(result),
    )


def _ended(status: TrainingStatus, state: TrainingState, error: ModynError) -> TrainingStatus:
    return replace(status, state=state, error=sanitize(error.message), error_reason=error.reason)


def _count(result: Mapping[str, Any]) -> None:
    SAMPLES.inc(result.get("num_samples", 0))
    for stage, seconds in result.get("seconds", {}).items():
        STAGE_SECONDS.labels(stage).inc(seconds)
