"""One piece of work for a worker, and the messages between a worker process and its service."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from modyn.errors import CancelledError, ModynError
from modyn.records import JobState

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What is asked of a worker process: the function `task`, `package.module:function`, with `request`, picklable.

    name: of the job in messages, e.g. `training of run a-0001`. log_path: what the worker prints meanwhile is appended to it. session: jobs
    with the same key may be done by one process; None: a process for this one alone. device: cpu, cuda:N, or cuda for any GPU; the task
    finds its own at its connection.
    """

    task: str
    request: object
    name: str
    log_path: Path
    session: str | None = None
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Command:
    """To a worker: do this, after what was asked before. is_only: the session ends with it.

    request: pickled, so that it is read where errors belong to the command.
    """

    task: str
    request: bytes
    name: str
    log_path: Path
    device: str
    is_only: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """To a worker: end the command that runs."""


@dataclass(frozen=True, slots=True)
class Begun:
    """From a worker: it works on the newest command. One that ends before it says so has done nothing of it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """From a worker: a message of the function that runs."""

    message: Any


@dataclass(frozen=True, slots=True)
class Result:
    """From a worker: what the function returned. goes_on: whether the process takes further commands. device_bytes: held of its GPU."""

    value: Any
    goes_on: bool = False
    device_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """From a worker, which ends: the error of the function, by the reason of its class; empty: of a class that is not ours."""

    reason: str
    message: str


class Job:
    """One piece of work, from the queue to its end. Made by `WorkerPool.submit`; safe to use from any thread.

    Args: leave_queue: takes the job out of the queue; False: it is not there. on_message, on_done: see `WorkerPool.submit`.
    """

    def __init__(
        self,
        spec: JobSpec,
        leave_queue: Callable[[Job], bool],
        on_message: Callable[[Any], None] | None,
        on_done: Callable[[Job], None] | None,
    ) -> None:
        self.spec = spec
        self._on_message = on_message
        self._on_done = on_done
        self.name = spec.name
        self.log_path = spec.log_path
        self.state = JobState.QUEUED
        self.error: ModynError | None = None
        self.worker_pid: int | None = None
        self.stop_at: float | None = None
        """When a worker that still works is ended, on the monotonic clock; None: `stop` was not called."""
        self._result: Any = None
        self._leave_queue = leave_queue
        # Set only after state, result and error are written, under `_wake_lock`: a waiter that it wakes finds the final ones.
        self._done = threading.Event()
        # Between `stop`, which writes to the pipe, and the end of the job, which closes it. The pipe wakes the thread that watches the worker.
        self._wake_lock = threading.Lock()
        self.wakes: Connection[Any, Any]
        """Readable after `stop`; for the thread that watches the worker."""
        self.wakes, self._wake_writer = get_context("forkserver").Pipe(duplex=False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the job; False if `timeout_s` passed first."""
        return self._done.wait(timeout_s)

    def result(self, timeout_s: float | None = None) -> Any:
        """Return what the function returned. Raises its error, CancelledError if it was stopped, TimeoutError if it still runs."""
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"{self.name} still runs after {timeout_s} s")
        if self.error is not None:
            raise self.error
        return self._result

    def stop(self, grace_s: float = 10.0) -> None:
        """Ask the job to stop. A worker that has not ended after `grace_s` is terminated, and at last killed. Returns at once."""
        stop_at = time.monotonic() + grace_s
        with self._wake_lock:
            if self._done.is_set() or (self.stop_at is not None and stop_at >= self.stop_at):
                return
            self.stop_at = stop_at
            self._wake_writer.send(None)
        if self._leave_queue(self):
            self.finish(JobState.STOPPED, error=CancelledError(f"{self.name} was stopped before it began"))

    @property
    def stop_requested(self) -> bool:
        """Whether `stop` was called before the job had ended."""
        return self.stop_at is not None

    def deliver(self, message: object) -> None:
        """Pass on a message of the worker."""
        if self._on_message is not None:
            self._on_message(message)

    def finish(self, state: JobState, result: object = None, error: ModynError | None = None) -> None:
        """Enter the end of the job: its final state, and its result or error. Wakes the threads that wait for it."""
        with self._wake_lock:
            self.state, self._result, self.error = state, result, error
            self._done.set()
            self.wakes.close()
            self._wake_writer.close()
        if self._on_done is not None:
            try:
                self._on_done(self)
            except Exception:  # the thread must go on to the next job
                _logger.exception("the callback after the end of %s failed", self.name)
