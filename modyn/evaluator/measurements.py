"""Passes of a model over samples for a waiting caller: a worker makes scores or rows as in an evaluation; they are not kept as results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from shutil import rmtree
from typing import Final

from modyn.errors import UnavailableError
from modyn.evaluator.config import load_dataset
from modyn.evaluator.evaluations import MakeJob, session_key
from modyn.evaluator.outputs import read_rows
from modyn.evaluator.records import MeasureRequest, Rows, Score, checked_source
from modyn.evaluator.versions import DataVersion, decoding_digest
from modyn.run_ids import check_run_id
from modyn.storage.client import StorageClient
from modyn.workers import JobSpec, WorkerPool

MAX_WAITING: Final = 8
"""Passes that are made or wait at once: each holds a thread of the server."""


class Measurements:
    """Makes passes. Thread-safe. Args: make_job: makes what a worker gets, as for evaluations."""

    def __init__(self, pool: WorkerPool, make_job: MakeJob, storage: StorageClient) -> None:
        self._pool = pool
        self._make_job = make_job
        self._storage = storage
        # Bounds the passes. Never waited for: without a permit, `measure` refuses at once.
        self._permits = threading.BoundedSemaphore(MAX_WAITING)

    def measure(self, request: MeasureRequest, on_stop: Callable[[Callable[[], None]], object]) -> Iterator[Score | Rows]:
        """Pass the samples through the model and yield the scores, or the rows in any order.

        Args: on_stop: is given a function that ends the pass, to be called once the caller is gone.
        Raises: ConfigError, InvalidArgumentError: the request is wrong. UnavailableError: too many passes are being made. What the pass raised.
        """
        section = load_dataset(request.dataset)
        check_run_id(request.run_id)
        source = checked_source(request.source)
        if not self._permits.acquire(blocking=False):
            raise UnavailableError(f"{MAX_WAITING} passes are being made or wait at the evaluator; try again later")
        try:
            identity = self._storage.dataset(section.dataset_id).identity
            work = self._make_job(request, source, DataVersion(identity, decoding_digest(request.dataset)))
            try:
                spec = JobSpec(
                    "modyn.evaluator.evaluate:run",
                    work,
                    name=str(request),
                    log_path=work.config.log_dir / "runs" / request.run_id / f"measure-{request.model_id}.log",
                    session=session_key(request),
                    device=request.device,
                )
                job = self._pool.submit(spec)
                on_stop(job.stop)
                for found in job.result():
                    yield found if isinstance(found, Score) else read_rows(found)
            finally:
                rmtree(work.scratch, ignore_errors=True)
        finally:
            self._permits.release()
