"""Evaluations from request to result: those that share model and dataset become one job, and a bounded number of jobs runs at once."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final, Protocol

from prometheus_client import Counter

from modyn.config.system import SystemConfig
from modyn.dataset.connections import PayloadSource
from modyn.errors import CancelledError, ConflictError, InvalidArgumentError, ModynError, NotFoundError, UnavailableError
from modyn.evaluator.config import load_dataset
from modyn.evaluator.job import EvaluationJob, Score
from modyn.evaluator.outputs import OutputCache
from modyn.evaluator.request import EvaluationRequest, EvaluationState, EvaluationStatus
from modyn.evaluator.store import EvaluationStore, ScoreKey, dataset_digest, labelled
from modyn.records import Interval
from modyn.rpc.logs import get_logger
from modyn.workers import Job, WorkerPool
from modyn.workers.job_table import JobTable

JOBS = Counter("modyn_evaluation_jobs", "Evaluation jobs that ended", ["outcome"])
SCORES = Counter("modyn_evaluation_scores", "Values of metrics that were computed")

COALESCE_S: Final = 0.03
"""Seconds that a request waits for others with the same model and dataset, so that handlers share one pass over the samples."""
MAX_WAITING: Final = 10_000
"""Live evaluations; further ones are refused until some have ended."""

_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,199}")

OnProgress = Callable[[int, int], None]
"""Called with the samples seen and in all."""
OnDone = Callable[[list[Score] | ModynError], None]


class RunningJob(Protocol):
    """A job that a worker runs."""

    def stop(self) -> None:
        """Ask the job to stop; returns at once."""


StartJob = Callable[[EvaluationRequest, Sequence[Interval], str, OnProgress, OnDone], RunningJob]
"""Starts the evaluation of distinct intervals, for a request that names model, dataset and device, under a name for messages. The last
argument is called once, from any thread."""


@dataclass(eq=False)
class _Group:
    """Evaluations that differ in handler and intervals only."""

    created: float
    samples: str
    """The pass over samples: one model and one way of decoding a dataset."""
    requests: dict[str, EvaluationRequest] = field(default_factory=dict)
    job: RunningJob | None = None


class Evaluations:
    """All evaluations of the service. Thread-safe.

    count_samples(dataset_id, interval): as storage counts them; known scores are used again only while that number has not changed.
    """

    def __init__(
        self,
        store: EvaluationStore,
        start_job: StartJob,
        count_samples: Callable[[str, Interval], int],
        max_jobs: int,
        coalesce_s: float = COALESCE_S,
    ) -> None:
        self._store = store
        self._start_job = start_job
        self._count_samples = count_samples
        self._max_jobs = max_jobs
        self._coalesce_s = coalesce_s
        self._logger = get_logger("evaluations")
        # Live evaluations only: the store holds those that have ended.
        self.table: JobTable[str, EvaluationStatus] = JobTable(self._stored, num_ended=0)
        self._changed = self.table.changed
        """Protects the groups below as well."""
        self._waiting: OrderedDict[str, _Group] = OrderedDict()
        self._running: dict[str, _Group] = {}
        self._closed = False
        if abandoned := store.abandon_unfinished():
            self._logger.warning("abandoned_evaluations", number=abandoned)
        self._dispatcher = threading.Thread(target=self._dispatch, name="evaluations", daemon=True)
        self._dispatcher.start()

    def close(self) -> None:
        """Start nothing more. The pool ends the running jobs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._dispatcher.join(5)

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        """Start an evaluation, or find the one that runs or has finished; one that failed or was stopped is started again.

        Raises ConfigError for a wrong dataset section, InvalidArgumentError for a wrong interval.
        """
        load_dataset(request.dataset)
        if not _RUN_ID.fullmatch(request.run_id):
            raise InvalidArgumentError(f"{request.run_id!r} is no run id: it must be usable as a file name")
        for interval in request.intervals:
            if interval.start > interval.end:
                raise InvalidArgumentError(f"the interval [{interval.start}, {interval.end}) ends before it starts")
        id_ = request.evaluation_id
        return self.table.start(id_, lambda: self._finished(id_), lambda: self._queue(id_, request))

    def _finished(self, evaluation_id: str) -> EvaluationStatus | None:
        stored = self._store.status(evaluation_id)
        return stored if stored is not None and stored.state is EvaluationState.FINISHED else None

    def _queue(self, id_: str, request: EvaluationRequest) -> EvaluationStatus:
        with self._changed:
            if self._closed:
                raise ConflictError("the evaluator is shutting down; start the evaluation again when it is back")
            if len(self.table) >= MAX_WAITING:
                raise UnavailableError(f"{len(self.table)} evaluations are queued at the evaluator; try again later")
        status = EvaluationStatus(id_, EvaluationState.QUEUED)
        self._store.put(request, status)
        with self._changed:
            samples = f"{request.model_id} {dataset_digest(request.dataset)}"
            key = f"{samples} {request.device} {labelled(request)}"
            self._waiting.setdefault(key, _Group(time.monotonic(), samples)).requests[id_] = request
            return self.table.set(id_, status)

    def _stored(self, evaluation_id: str) -> EvaluationStatus:
        """The status of an evaluation that is not live: it has ended, and its end is stored, unless the database was gone then."""
        status = self._store.status(evaluation_id)
        if status is None:
            raise NotFoundError(f"there is no evaluation '{evaluation_id}'; start it first")
        if not status.state.is_final:
            error = UnavailableError(f"the end of evaluation {evaluation_id} could not be stored; start it again")
            return replace(status, state=EvaluationState.STOPPED, error=error.message, error_reason=error.reason)
        return status

    def stop(self, evaluation_id: str) -> None:
        """Stop an evaluation; nothing happens if it has ended. Others that share its job go on."""
        with self._changed:
            known = self.table.get(evaluation_id) is not None
            groups = [g for g in (*self._waiting.values(), *self._running.values()) if evaluation_id in g.requests]
            request = groups[0].requests.pop(evaluation_id) if groups else None
            job = groups[0].job if groups and not groups[0].requests else None
        if request is not None:
            error = CancelledError(f"{_named(request)} was stopped on request")
            self._end(request, EvaluationState.STOPPED, error)
            if job is not None:
                job.stop()
        elif not known:
            self.table.status(evaluation_id)

    def _dispatch(self) -> None:
        while True:
            with self._changed:
                key = self._ready()
                # Until a group is old enough, a job ends or is queued, or `close` is called: the last three notify.
                while key is None and not self._closed:
                    self._changed.wait(self._next_ready_s())
                    key = self._ready()
                if self._closed or key is None:
                    return
                group = self._running[key] = self._waiting.pop(key)
                names = " and ".join(dict.fromkeys(map(_named, group.requests.values())))
            try:
                self._begin(key, group, names)
            except Exception as error:  # whatever fails here fails these evaluations, not the others
                self._logger.exception("cannot_begin_evaluation")
                self._concluded(key, group, {}, _as_error(error, f"{names} cannot begin"))

    def _ready(self) -> str | None:
        """The first group that may begin now. A job over the same samples must end first: its results or outputs may be all it needs."""
        if len(self._running) >= self._max_jobs:
            return None
        now = time.monotonic()
        return next((key for key, group in self._free() if group.created + self._coalesce_s <= now), None)

    def _free(self) -> list[tuple[str, _Group]]:
        """The groups over whose samples no job is under way."""
        busy = {group.samples for group in self._running.values()}
        return [(key, group) for key, group in self._waiting.items() if group.samples not in busy]

    def _next_ready_s(self) -> float | None:
        """Seconds until waiting alone makes a group ready; None: something else has to happen."""
        if len(self._running) >= self._max_jobs:
            return None
        ages = [group.created for _, group in self._free()]
        return max(0.0, min(ages) + self._coalesce_s - time.monotonic()) if ages else None

    def _begin(self, key: str, group: _Group, names: str) -> None:
        with self._changed:
            requests = list(group.requests.values())
        known, missing = self._known(requests) if requests else ({}, [])
        if not missing:
            self._concluded(key, group, known, [])
            return

        def progress(seen: int, total: int) -> None:
            self._set_all(group, EvaluationState.RUNNING, seen, total)

        def done(outcome: list[Score] | ModynError) -> None:
            self._concluded(key, group, known, outcome)

        self._set_all(group, EvaluationState.RUNNING)
        job = self._start_job(requests[0], missing, names, progress, done)
        with self._changed:
            group.job = job
            unwanted = not group.requests
        if unwanted:
            job.stop()

    def _known(self, requests: Sequence[EvaluationRequest]) -> tuple[dict[ScoreKey, Score], list[Interval]]:
        """Scores that need not be computed again, and the distinct intervals of which any is missing."""
        stored = self._store.known(requests[0].model_id, dataset_digest(requests[0].dataset))
        digests = [digest for _, digest in labelled(requests[0])]
        known: dict[ScoreKey, Score] = {}
        missing: list[Interval] = []
        for interval in dict.fromkeys(Interval(i.start, i.end) for request in requests for i in request.intervals):
            keys = [ScoreKey(interval, digest) for digest in digests]
            if all(key in stored for key in keys):
                num_listed = self._count_samples(str(requests[0].dataset["dataset_id"]), interval)
                if all(stored[key].num_listed == stored[key].num_samples == num_listed for key in keys):
                    known |= {key: stored[key] for key in keys}
                    continue
            missing.append(interval)
        return known, missing

    def _concluded(self, key: str, group: _Group, known: Mapping[ScoreKey, Score], outcome: list[Score] | ModynError) -> None:
        """The job has ended: store its scores for each evaluation that shares it, and let the next job begin."""
        with self._changed:
            requests = list(group.requests.values())
            group.requests.clear()
        try:
            for request in requests:
                if isinstance(outcome, ModynError):
                    state = EvaluationState.STOPPED if isinstance(outcome, CancelledError) else EvaluationState.FAILED
                    self._end(request, state, outcome)
                else:
                    self._finish(request, known, outcome)
        finally:
            with self._changed:
                self._running.pop(key, None)
                self._changed.notify_all()

    def _finish(self, request: EvaluationRequest, known: Mapping[ScoreKey, Score], scores: Sequence[Score]) -> None:
        status = replace(self._status_of(request), state=EvaluationState.FINISHED)
        try:
            digests = dict(labelled(request))
            found = {**known, **{ScoreKey(score.interval, digests[score.metric]): score for score in scores}}
            self._store.finish(request, status, found)
        except Exception as error:
            self._logger.exception("cannot_keep_results", evaluation_id=status.evaluation_id)
            self._end(request, EvaluationState.FAILED, _as_error(error, f"the results of {_named(request)} cannot be kept"))
        else:
            self.table.settle(status.evaluation_id, lambda _: status)

    def _end(self, request: EvaluationRequest, state: EvaluationState, error: ModynError) -> None:
        status = replace(self._status_of(request), state=state, error=error.message, error_reason=error.reason)
        self._logger.warning("evaluation_ended", evaluation_id=status.evaluation_id, state=state.value, error=error.message)
        try:
            self._store.put(request, status)
        except Exception:
            # Watchers get the end; the row stays queued until the next start of the service, which makes it stopped.
            self._logger.exception("cannot_store_end_of_evaluation", evaluation_id=status.evaluation_id)
        self.table.settle(status.evaluation_id, lambda _: status)

    def _status_of(self, request: EvaluationRequest) -> EvaluationStatus:
        return self.table.get(request.evaluation_id) or EvaluationStatus(request.evaluation_id, EvaluationState.QUEUED)

    def _set_all(self, group: _Group, state: EvaluationState, seen: int = 0, total: int = 0) -> None:
        with self._changed:
            for id_ in group.requests:
                self.table.set(id_, EvaluationStatus(id_, state, seen, total))


class JobStarter:
    """Starts jobs in worker processes."""

    def __init__(self, pool: WorkerPool, config: SystemConfig, scratch: Path, outputs: OutputCache | None) -> None:
        self._pool = pool
        self._outputs = outputs
        self._config = config
        self._scratch = scratch

    def start(
        self, request: EvaluationRequest, intervals: Sequence[Interval], name: str, progress: OnProgress, done: OnDone
    ) -> Job:
        """Submit an evaluation to the worker pool, with a scratch folder that is removed when the job ends.

        Args: name: name of the job in messages. done: called once, with the scores or the error.
        Raises: UnavailableError, ConflictError: see `WorkerPool.submit`; `done` is not called then.
        """
        scratch = Path(mkdtemp(dir=self._scratch, prefix=f"model-{request.model_id}-"))
        evaluation = EvaluationJob(
            model_id=request.model_id,
            dataset=request.dataset,
            intervals=tuple(intervals),
            device=request.device,
            payloads=PayloadSource.of(
                self._config, request.dataset["dataset_id"], streams=request.dataset.get("dataloader_workers", 1)
            ),
            model_storage=self._config.endpoint("model_storage"),
            scratch=scratch,
            decoding=dataset_digest(request.dataset),
            outputs=self._outputs,
        )

        def ended(job: Job) -> None:
            # Not in the worker, which may have been killed.
            rmtree(scratch, ignore_errors=True)
            JOBS.labels(job.state.value).inc()
            done(_outcome(job))

        log_path = self._config.log_dir / "runs" / request.run_id / f"evaluation-{request.trigger_id}.log"
        return self._pool.submit(
            "modyn.evaluator.evaluate:run",
            evaluation,
            name=name,
            log_path=log_path,
            on_message=lambda m: progress(*m),
            on_done=ended,
        )


def _outcome(job: Job) -> list[Score] | ModynError:
    if job.error is not None:
        return job.error
    scores: list[Score] = job.result()
    SCORES.inc(len(scores))
    return scores


def _named(request: EvaluationRequest) -> str:
    return (
        f"evaluation of run {request.run_id}, trigger {request.trigger_id}, model {request.model_id} "
        f"on dataset '{request.dataset['dataset_id']}'"
    )


def _as_error(error: Exception, what: str) -> ModynError:
    """A ModynError that begins with `what`, of the class of `error` if that is one."""
    if isinstance(error, ModynError):
        return type(error)(f"{what}: {error.message}")
    return ModynError(f"{what}: {type(error).__name__}: {error}")
