"""Passes of a model over samples for a waiting caller. A worker computes scores, rows or distances; these values are not stored as results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from shutil import rmtree
from typing import Any, Final

from modyn.config.base import load_section
from modyn.errors import ConfigError, NotFoundError, UnavailableError
from modyn.evaluator.config import DriftDataConfig, load_dataset
from modyn.evaluator.evaluations import MakeJob, session_key
from modyn.evaluator.outputs import DriftJob, EvaluationJob, read_rows
from modyn.evaluator.records import DriftRequest, MeasuredDrift, MeasureRequest, Rows, Score, check_request, checked_source
from modyn.evaluator.trigger_section import check_metrics, check_projection
from modyn.evaluator.versions import DataVersion, decoding_digest
from modyn.run_ids import check_run_id
from modyn.storage.client import StorageClient
from modyn.workers import JobSpec, WorkerPool

MAX_WAITING: Final = 8
"""Largest number of passes that run or wait at the same time. Each pass occupies a thread of the server."""

OnStop = Callable[[Callable[[], None]], object]
"""Registers a function that ends a pass. The server calls this function when the caller has ended the call."""


class Measurements:
    """Runs passes of models over samples. The object is thread-safe. Args: make_job, make_drift_job: make the job of a worker."""

    def __init__(
        self,
        pool: WorkerPool,
        make_job: MakeJob,
        make_drift_job: Callable[[DriftRequest, DataVersion], DriftJob],
        storage: StorageClient,
    ) -> None:
        self._pool = pool
        self._make_job = make_job
        self._make_drift_job = make_drift_job
        self._storage = storage
        # The semaphore limits the number of passes. No thread waits for it.
        self._permits = threading.BoundedSemaphore(MAX_WAITING)

    def measure(self, request: MeasureRequest, on_stop: OnStop) -> Iterator[Score | Rows]:
        """Pass the samples through the model, and yield the scores, or the rows in any order.

        Raises: ConfigError, InvalidArgumentError: the request is wrong. NotFoundError: the dataset is not the expected registration.
        UnavailableError: too many passes are running. The errors of the pass are also raised.
        """
        load_dataset(request.dataset)
        check_run_id(request.run_id)
        source = checked_source(request.source)
        with self._permit():
            work = self._make_job(request, source, self._version(request.dataset, request.dataset_identity))
            with self._answer("modyn.evaluator.evaluate:run", work, f"measure-{request.model_id}.log", on_stop) as answer:
                for found in answer:
                    yield found if isinstance(found, Score) else read_rows(found)

    def measure_drifts(self, request: DriftRequest, on_stop: OnStop) -> list[MeasuredDrift]:
        """Measure the distance between the windows of each pair. Raises: see `measure`."""
        question = request.question
        load_section(DriftDataConfig, request.dataset, "data")
        check_run_id(request.run_id)
        check_request(request)
        if found := [*check_metrics(question.metrics, "metrics"), *check_projection(question.projection, "projection")]:
            raise ConfigError("\n".join(map(str, found)))
        with self._permit():
            work = self._make_drift_job(request, self._version(request.dataset))
            with self._answer("modyn.evaluator.measure_drift:run", work, "drift.log", on_stop) as answer:
                measured: list[MeasuredDrift] = answer
                return measured

    def _version(self, section: Mapping[str, Any], wanted: str = "") -> DataVersion:
        """Return the version of the data that is passed through the model. Args: wanted: the expected identity. Raises: NotFoundError: another
        dataset has the name."""
        name = section["dataset_id"]
        identity = self._storage.dataset(name).identity
        if wanted not in ("", identity):
            raise NotFoundError(
                f"dataset '{name}' was deleted and registered again since the request was prepared, so values of different samples would be "
                "compared: nothing was measured; ask again"
            )
        return DataVersion(identity, decoding_digest(section))

    @contextmanager
    def _permit(self) -> Iterator[None]:
        # A request over the limit is refused immediately, because each waiting request would occupy a thread of the server.
        if not self._permits.acquire(blocking=False):
            raise UnavailableError(f"{MAX_WAITING} passes are running or waiting at the evaluator; try again later")
        try:
            yield
        finally:
            self._permits.release()

    @contextmanager
    def _answer(self, task: str, work: EvaluationJob | DriftJob, log: str, on_stop: OnStop) -> Iterator[Any]:
        """Run a task on a worker and yield its result. Afterwards the files of the task are deleted."""
        request = work.request
        try:
            log_path = work.config.log_dir / "runs" / request.run_id / log
            job = self._pool.submit(
                JobSpec(task, work, str(request), log_path, session=session_key(request), device=request.device)
            )
            on_stop(job.stop)
            yield job.result()
        finally:
            rmtree(work.scratch, ignore_errors=True)
