"""Run evaluations, from the request to the stored result. Evaluations with the same model and dataset share one job. The number of concurrent jobs is
limited.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shutil import rmtree
from typing import Final

from prometheus_client import Counter

from modyn.dataset.code.code_versions import code_version
from modyn.errors import CancelledError, ConflictError, ModynError, NotFoundError, UnavailableError
from modyn.evaluator.client import EvaluationRequest, EvaluationStatus
from modyn.evaluator.config import load_dataset
from modyn.evaluator.metrics.metrics import METRICS, TRANSFORMER
from modyn.evaluator.outputs import EvaluationJob
from modyn.evaluator.records import DriftRequest, InIntervals, MeasureRequest, SampleSource, Score, check_intervals
from modyn.evaluator.store import EvaluationStore, ScoreKey
from modyn.evaluator.versions import DataVersion, decoding_digest, metric_digests
from modyn.full_disk import disk_full_error
from modyn.json_codec import json_digest, whole_numbers
from modyn.models import MODELS
from modyn.records import Interval, JobState, RunId
from modyn.rpc.logs import get_logger
from modyn.run_ids import check_run_id
from modyn.storage.client import StorageClient
from modyn.workers import Job, JobSpec, JobTable, WorkerPool

JOBS = Counter("modyn_evaluation_jobs", "Finished evaluation jobs", ["outcome"])
SCORES = Counter("modyn_evaluation_scores", "Computed values of metrics")

COALESCE_S: Final = 0.03
"""Seconds that a request waits for other requests with the same model and dataset, so that handlers share one pass over the samples."""
MAX_WAITING: Final = 10_000
"""Largest number of unfinished evaluations; further requests are refused until evaluations have ended."""

_NO_CODE: Final = ("batch_size", "dataloader_workers")
"""Options of a dataset that do not refer to user code. Evaluations that differ only in these options share a session."""

MakeJob = Callable[[EvaluationRequest | MeasureRequest, SampleSource, DataVersion], EvaluationJob]
"""Makes the job of a worker from a request, the source of the samples, and the version of the data. Intervals of the source are distinct."""


@dataclass(eq=False)
class _Group:
    """Evaluations that differ only in handler and intervals."""

    created: float
    samples: str
    """Name of the pass over samples. Passes of one model over the same decoded dataset have the same name."""
    data: DataVersion
    """Version of the data. The identity in this version is empty until the group starts."""
    digests: dict[str, str]
    """Digest of each metric, by the label of the metric."""
    requests: dict[str, EvaluationRequest] = field(default_factory=dict)
    known: dict[ScoreKey, Score] = field(default_factory=dict)
    """Stored scores that the group need not compute again."""
    names: str = ""
    """Names of the evaluations when the group starts, for messages."""
    job: Job | None = None


class Evaluations:
    """All evaluations of the service. Thread-safe.

    Stored scores are reused only for the same registration of the dataset and the same code. If the number of samples or of deleted samples in
    storage has changed, the scores are computed again.
    """

    def __init__(
        self,
        store: EvaluationStore,
        pool: WorkerPool,
        make_job: MakeJob,
        storage: StorageClient,
        max_jobs: int,
        coalesce_s: float = COALESCE_S,
    ) -> None:
        self._store = store
        self._pool = pool
        self._make_job = make_job
        self._storage = storage
        self._max_jobs = max_jobs
        self._coalesce_s = coalesce_s
        self._logger = get_logger("evaluations")
        # The table has only unfinished evaluations; the store holds the finished evaluations.
        self.table: JobTable[str, EvaluationStatus] = JobTable(self._stored, num_ended=0)
        self._changed = self.table.changed
        """Condition variable of the table of evaluations. The condition also protects the fields below, and wakes the dispatcher."""
        self._waiting: dict[str, _Group] = {}
        self._running: list[_Group] = []
        self._closed = False
        if abandoned := store.abandon_unfinished():
            self._logger.warning("abandoned_evaluations", number=abandoned)
        # The thread is a daemon: the interpreter does not wait for the thread if the service ends without `close`.
        self._dispatcher = threading.Thread(target=self._dispatch, name="evaluations", daemon=True)
        self._dispatcher.start()

    def close(self) -> None:
        """Start no further jobs. The pool stops the running jobs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        # The dispatcher submits jobs to the pool, and the pool is closed next. The wait is bounded, because a call to storage may block the
        # dispatcher.
        self._dispatcher.join(5)

    def warm_up(self) -> None:
        """Start the fork server of the workers, so that PyTorch is imported before the first evaluation."""
        self._pool.warm_up()

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        """Start an evaluation, or return the status if the evaluation is running or finished. An evaluation is started again if the evaluation failed
        or was stopped, or if the data or the code have changed.

        Raises: ConfigError: the section of the dataset is wrong. InvalidArgumentError: an interval is wrong. NotFoundError: the dataset of a finished
        evaluation was deleted. UnavailableError: storage is unavailable, or too many evaluations are queued.
        """
        load_dataset(request.dataset)
        check_run_id(request.run_id)
        check_intervals(request.intervals)
        id_ = request.evaluation_id
        # The lock of the table is not held during the calls to storage. If two callers arrive together, the second caller finds the evaluation
        # running, or finds all scores.
        finished = self._finished(request)
        return self.table.start(id_, lambda: finished, lambda: self._queue(id_, request))

    def _finished(self, request: EvaluationRequest) -> EvaluationStatus | None:
        """Return the status of a finished evaluation whose stored scores are still valid; otherwise None."""
        status = self._store.status(request.evaluation_id)
        if status is None or status.state is not JobState.FINISHED:
            return None
        data = self._data_version(request, decoding_digest(request.dataset))
        _, missing = self._find_known([request], data, metric_digests(request.dataset))
        return None if missing else status

    def _data_version(self, request: EvaluationRequest, decoding: str) -> DataVersion:
        name = str(request.dataset["dataset_id"])
        found = self._storage.dataset(name)
        identity = found.identity
        if request.dataset_identity not in ("", identity):
            raise NotFoundError(
                f"dataset '{name}' is not the one that run {request.run_id} is evaluated on: it was deleted and registered again, so its scores "
                "would mix with scores of other samples; register the samples under a name of their own, NAME, "
                f"and score them by `modyn evaluate {request.run_id} --dataset NAME`"
            )
        return DataVersion(identity, decoding, found.num_deleted)

    def _queue(self, id_: str, request: EvaluationRequest) -> EvaluationStatus:
        with self._changed:
            if self._closed:
                raise ConflictError("the evaluator is shutting down; start the evaluation again after its restart")
            if len(self.table) >= MAX_WAITING:
                raise UnavailableError(f"{len(self.table)} evaluations are queued at the evaluator; try again later")
        status = EvaluationStatus(id_, JobState.QUEUED)
        # The row must exist before a job can end the evaluation.
        self._store.put(request, status)
        decoding, digests = decoding_digest(request.dataset), metric_digests(request.dataset)
        samples = f"{request.model_id} {decoding}"
        with self._changed:
            group = _Group(time.monotonic(), samples, DataVersion("", decoding), digests)
            group = self._waiting.setdefault(f"{samples} {request.dataset_identity} {request.device} {digests}", group)
            group.requests[id_] = request
            return self.table.set(id_, status)

    def _stored(self, evaluation_id: str) -> EvaluationStatus:
        """Return the stored status of an ended evaluation. If the database was unavailable when the evaluation ended, the status is `stopped`."""
        status = self._store.status(evaluation_id)
        if status is None:
            raise NotFoundError(f"there is no evaluation '{evaluation_id}'; start it first")
        if not status.state.is_final:
            error = UnavailableError(f"the end of evaluation {evaluation_id} could not be stored; start it again")
            return replace(status, state=JobState.STOPPED, error=error.message, error_reason=error.reason)
        return status

    def stop(self, evaluation_id: str) -> None:
        """Stop an evaluation. A finished evaluation is not changed. Other evaluations of the same job continue."""
        with self._changed:
            known = self.table.get(evaluation_id) is not None
            groups = [g for g in (*self._waiting.values(), *self._running) if evaluation_id in g.requests]
            request = groups[0].requests.pop(evaluation_id) if groups else None
            # The job is stopped only if no other evaluation needs it.
            job = groups[0].job if groups and not groups[0].requests else None
        if request is not None:
            self._end(request, CancelledError(f"{request} was stopped on request"))
            if job is not None:
                job.stop()
        elif not known:
            # This raises NotFoundError for an id that does not exist.
            self.table.status(evaluation_id)

    def delete_run(self, run_id: RunId) -> None:
        """Stop the evaluations of a run, and delete these evaluations and their results."""
        for evaluation_id in self._store.evaluation_ids(run_id):
            self.stop(evaluation_id)
        self._store.delete_run(run_id)

    def _dispatch(self) -> None:
        while group := self._take():
            try:
                self._begin(group)
            except Exception as error:  # Only the evaluations of this group fail.
                self._logger.exception("cannot_begin_evaluation")
                self._conclude(group, _as_error(error, f"{group.names} cannot start"))

    def _take(self) -> _Group | None:
        """Wait for a group that may start, and count the group as running. Return None if the service is stopping."""
        with self._changed:
            while not self._closed:
                key, wait_s = self._ready()
                if key is not None:
                    group = self._waiting.pop(key)
                    group.names = " and ".join(dict.fromkeys(map(str, group.requests.values())))
                    self._running.append(group)
                    return group
                # The wait times out when a group is old enough. The end of a job, a new request and `close` notify.
                self._changed.wait(wait_s)
        return None

    def _ready(self) -> tuple[str | None, float | None]:
        """Return the first group that may start now, and the seconds until the next group may start. None as seconds: wait for a notification.

        A group waits for a running job over the same samples, because the group may need only the results or outputs of this job.
        """
        if len(self._running) >= self._max_jobs:
            return None, None
        busy, begun = {group.samples for group in self._running}, time.monotonic() - self._coalesce_s
        left_s = {key: group.created - begun for key, group in self._waiting.items() if group.samples not in busy}
        return next((key for key, seconds in left_s.items() if seconds <= 0), None), min(left_s.values(), default=None)

    def _begin(self, group: _Group) -> None:
        with self._changed:
            requests = list(group.requests.values())
        missing: list[Interval] = []
        if requests:
            group.data = self._data_version(requests[0], group.data.decoding)
            group.known, missing = self._find_known(requests, group.data, group.digests)
        if not missing:
            self._conclude(group, [])
            return
        self._set_all(group, JobState.RUNNING)
        evaluation = self._make_job(requests[0], InIntervals(missing), group.data)

        def conclude(job: Job) -> None:
            # The folder is removed here and not by the worker, because the worker may have been killed.
            outcome: list[Score] | ModynError
            try:
                rmtree(evaluation.scratch, ignore_errors=True)
                JOBS.labels(job.state.value).inc()
                outcome = job.error or job.result()
                if not isinstance(outcome, ModynError):
                    SCORES.inc(len(outcome))
            except Exception as error:  # Every class of exception is handled, because the evaluations must end.
                self._logger.exception("cannot_read_scores", job=job.name)
                outcome = _as_error(error, f"the answer of {job.name} cannot be read")
            self._conclude(group, outcome)

        spec = JobSpec(
            "modyn.evaluator.evaluate:run",
            evaluation,
            name=group.names,
            log_path=evaluation.config.log_dir / "runs" / requests[0].run_id / f"evaluation-{requests[0].trigger_id}.log",
            session=session_key(requests[0]),
            device=requests[0].device,
        )
        job = self._pool.submit(
            spec, on_message=lambda message: self._set_all(group, JobState.RUNNING, *message), on_done=conclude
        )
        with self._changed:
            group.job = job
            unwanted = not group.requests
        if unwanted:  # All evaluations of the group were stopped while the job was being submitted.
            job.stop()

    def _find_known(
        self, requests: Sequence[EvaluationRequest], data: DataVersion, digests: Mapping[str, str]
    ) -> tuple[dict[ScoreKey, Score], list[Interval]]:
        """Find stored scores for requests with one model and dataset. Return these scores, and the distinct intervals with missing scores."""
        dataset = str(requests[0].dataset["dataset_id"])
        stored = self._store.known(requests[0].model_id, data)
        known: dict[ScoreKey, Score] = {}
        missing: list[Interval] = []
        for interval in dict.fromkeys(Interval(i.start, i.end) for request in requests for i in request.intervals):
            found = {key: stored[key] for digest in digests.values() if (key := (interval, digest)) in stored}
            # Stored scores are valid only if the interval still has the same number of samples, and each score covers all these samples.
            if len(found) == len(set(digests.values())):
                num_listed = self._storage.count_samples(dataset, interval, identity=data.identity)
                if all(score.num_listed == score.num_samples == num_listed for score in found.values()):
                    known |= found
                    continue
            missing.append(interval)
        return known, missing

    def _conclude(self, group: _Group, outcome: list[Score] | ModynError) -> None:
        """Store the scores of the group's job for each evaluation, and allow the next job to start."""
        with self._changed:
            requests = list(group.requests.values())
            group.requests.clear()
        try:
            for request in requests:
                if isinstance(outcome, ModynError):
                    self._end(request, outcome)
                else:
                    self._finish(request, group, outcome)
        finally:
            # The group ends even after an error, because the next job would otherwise never start.
            with self._changed:
                self._running = [running for running in self._running if running is not group]
                self._changed.notify_all()

    def _finish(self, request: EvaluationRequest, group: _Group, scores: Sequence[Score]) -> None:
        status = replace(self._status_of(request), state=JobState.FINISHED)
        try:
            computed = {(score.interval, group.digests[score.metric]): score for score in scores}
            self._store.finish(request, status, group.known | computed, group.data, group.digests)
        except Exception as error:
            self._logger.exception("cannot_keep_results", evaluation_id=status.evaluation_id)
            self._end(request, _as_error(error, f"the results of {request} cannot be stored"))
        else:
            self.table.settle(status.evaluation_id, lambda _: status)

    def _end(self, request: EvaluationRequest, error: ModynError) -> None:
        state = JobState.STOPPED if isinstance(error, CancelledError) else JobState.FAILED
        status = replace(self._status_of(request), state=state, error=error.message, error_reason=error.reason)
        self._logger.warning("evaluation_ended", evaluation_id=status.evaluation_id, state=state.value, error=error.message)
        try:
            self._store.put(request, status)
        except Exception:
            # Watchers get the final status. In the database the evaluation stays queued, until the next start of the service marks it as stopped.
            self._logger.exception("cannot_store_end_of_evaluation", evaluation_id=status.evaluation_id)
        self.table.settle(status.evaluation_id, lambda _: status)

    def _status_of(self, request: EvaluationRequest) -> EvaluationStatus:
        return self.table.get(request.evaluation_id) or EvaluationStatus(request.evaluation_id, JobState.QUEUED)

    def _set_all(self, group: _Group, state: JobState, seen: int = 0, total: int = 0) -> None:
        with self._changed:
            for id_ in group.requests:
                self.table.set(id_, EvaluationStatus(id_, state, seen, total))


def session_key(request: EvaluationRequest | MeasureRequest | DriftRequest) -> str:
    """Return the key of the worker session for a request. Requests of one run whose datasets use the same code have the same key. Measurements of
    drift and of performance in a run therefore share a worker, which caches the embeddings.
    """
    section = {name: value for name, value in request.dataset.items() if name not in ("dataset_id", "metrics", *_NO_CODE)}
    section["metrics"] = sorted({text for metric in request.dataset.get("metrics", ()) if (text := metric.get(TRANSFORMER))})
    return f"{request.run_id} {json_digest([whole_numbers(section), code_version(section, MODELS, METRICS)])}"


def _as_error(error: Exception, what: str) -> ModynError:
    """Return a ModynError that begins with `what`. If `error` is a ModynError, the result has the class of `error`."""
    known = disk_full_error(error) or error
    if isinstance(known, ModynError):
        return type(known)(f"{what}: {known.message}")
    return ModynError(f"{what}: {type(error).__name__}: {error}")
