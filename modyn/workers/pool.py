"""The service's side: a bounded number of workers, a queue before them, and one thread that watches each."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from modyn.errors import BY_REASON, CancelledError, ConflictError, ModynError, TrainingError, UnavailableError
from modyn.records import JobState
from modyn.workers.limits import WorkerLimits
from modyn.workers.process import run_worker

TERMINATE_TO_KILL_S: Final = 3.0
"""Between SIGTERM and SIGKILL, for a worker that did not stop when it was asked to."""
ENVIRONMENT: Final = {
    # OpenBLAS (PyTorch brings its own linear algebra) and Arrow's allocator start threads when they are imported.
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # With an arena for each thread that takes in payloads, what one frees is of no use to the others: twice as much memory, no more speed.
    "MALLOC_ARENA_MAX": "2",
}
"""Of workers, where the service was not started with another."""

_logger = logging.getLogger(__name__)
# The standard library's bookkeeping of children is not made for several threads: `start` polls every child, and an exit status can be
# read once only. One lock over both, for all pools of the process.
_process_table = threading.Lock()


class Job:
    """One piece of work, from the queue to its end. Made by `WorkerPool.submit`; safe to use from any thread."""

    def __init__(
        self,
        task: str,
        request: object,
        *,
        name: str,
        log_path: Path,
        on_message: Callable[[Any], None] | None,
        on_done: Callable[[Job], None] | None,
        leave_queue: Callable[[Job], bool],
    ) -> None:
        self.task = task
        self.request = request
        self.name = name
        self.log_path = log_path
        self.state = JobState.QUEUED
        self.error: ModynError | None = None
        self.worker_pid: int | None = None
        self._result: Any = None
        self._on_message = on_message
        self._on_done = on_done
        self._leave_queue = leave_queue
        self._done = threading.Event()
        self._stop_at: float | None = None
        self._wake_lock = threading.Lock()
        self._wake_reader, self._wake_writer = get_context("forkserver").Pipe(duplex=False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the job; False if `timeout_s` passed first."""
        return self._done.wait(timeout_s)

    def result(self, timeout_s: float | None = None) -> Any:
        """What the function returned. Raises its error, CancelledError if it was stopped, TimeoutError if it still runs."""
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"{self.name} still runs after {timeout_s} s")
        if self.error is not None:
            raise self.error
        return self._result

    def stop(self, grace_s: float = 10.0) -> None:
        """Ask the job to stop. A worker that has not ended after `grace_s` is terminated, and at last killed. Returns at once."""
        stop_at = time.monotonic() + grace_s
        with self._wake_lock:
            if self._done.is_set() or (self._stop_at is not None and stop_at >= self._stop_at):
                return
            self._stop_at = stop_at
            self._wake_writer.send(None)
        if self._leave_queue(self):
            self._finish(JobState.STOPPED, error=CancelledError(f"{self.name} was stopped before it began"))

    @property
    def stop_requested(self) -> bool:
        return self._stop_at is not None

    def _finish(self, state: JobState, result: object = None, error: ModynError | None = None) -> None:
        with self._wake_lock:
            self.state, self._result, self.error = state, result, error
            self._done.set()
            self._wake_reader.close()
            self._wake_writer.close()
        if self._on_done is not None:
            try:
                self._on_done(self)
            except Exception:  # the slot must outlive it
                _logger.exception("what follows the end of %s failed", self.name)


class WorkerPool:
    """Runs at most `max_workers` jobs at once, the others wait in the order in which they came.

    `preload`: modules that the fork server imports beforehand. They must not start threads, which a fork does not carry along.
    `num_threads`: threads of PyTorch in each worker. `failure`: class of an error that is not one of ours. `limits`: of each worker.
    The fork server belongs to the process, not to the pool: the first pool that warms up says what is preloaded.
    """

    def __init__(
        self,
        max_workers: int,
        *,
        num_threads: int = 1,
        preload: Sequence[str] = ("torch",),
        failure: type[ModynError] = TrainingError,
        limits: WorkerLimits | None = None,
    ) -> None:
        self._limits = limits
        self._max_workers = max_workers
        self._num_threads = num_threads
        self._preload = list(preload)
        self._failure = failure
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._slots: list[threading.Thread] = []
        self._running: set[Job] = set()
        self._idle = 0
        self._closed = False
        # Workers may have children of their own, so they are not daemons, and the interpreter would wait for them at exit.
        atexit.register(self.close, 0.0)

    def warm_up(self) -> None:
        """Start the fork server, which imports its modules in the background. Returns at once; repeated calls do nothing."""
        with _process_table:
            self._warm_up()

    def _warm_up(self) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        get_context("forkserver").set_forkserver_preload(self._preload)
        forkserver.ensure_running()

    def submit(
        self,
        task: str,
        request: object,
        *,
        name: str,
        log_path: Path,
        on_message: Callable[[Any], None] | None = None,
        on_done: Callable[[Job], None] | None = None,
    ) -> Job:
        """Queue `task` (`package.module:function`) with `request`. `name` says in messages what it is, e.g. `training of run a-0001,
        trigger 3`. The callbacks are called by the thread that watches the worker: messages in order, then `on_done` once. Raises
        UnavailableError, and calls nothing, if the system has no file descriptor or no thread left for the job."""
        try:
            job = Job(
                task,
                request,
                name=name,
                log_path=log_path,
                on_message=on_message,
                on_done=on_done,
                leave_queue=self._leave_queue,
            )
        except OSError as error:
            raise UnavailableError(_cannot_start(name, error, "open files")) from error
        with self._changed:
            if self._closed:
                raise ConflictError(f"{name} cannot start: the service is shutting down")
            self._queue.append(job)
            if len(self._slots) < self._max_workers and self._idle < len(self._queue):
                self._add_slot(job)
            self._changed.notify()
        return job

    def _add_slot(self, job: Job) -> None:
        """One more thread for the queue, which `job` has just joined. If there is none to have, the slots that there are must do."""
        slot = threading.Thread(target=self._serve, name=f"worker-slot-{len(self._slots)}", daemon=True)
        try:
            slot.start()
        except RuntimeError as error:
            if not self._slots:
                self._queue.remove(job)
                raise UnavailableError(_cannot_start(job.name, error, "threads")) from error
            _logger.warning("%s waits for one of %d workers: %s", job.name, len(self._slots), error)
        else:
            self._slots.append(slot)

    def close(self, grace_s: float = 5.0) -> None:
        """Stop all jobs and wait for the end of their workers. Idempotent."""
        atexit.unregister(self.close)
        with self._changed:
            self._closed = True
            jobs = [*self._queue, *self._running]
            self._changed.notify_all()
        for job in jobs:
            job.stop(grace_s)
        for job in jobs:
            job.wait(grace_s + TERMINATE_TO_KILL_S + 5)

    def _leave_queue(self, job: Job) -> bool:
        with self._changed:
            if job not in self._queue:
                return False
            self._queue.remove(job)
            return True

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._queue and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._queue:
                    return
                job = self._queue.popleft()
                self._running.add(job)
            try:
                self._run(job)
            except Exception as error:
                _logger.exception("the watcher of %s failed", job.name)
                if not job.wait(0):
                    job._finish(JobState.FAILED, error=self._failure(f"{job.name}: its worker cannot be watched: {error!r}"))
            finally:
                with self._changed:
                    self._running.discard(job)

    def _run(self, job: Job) -> None:
        context = get_context("forkserver")
        ours, theirs = context.Pipe()
        arguments = {"name": job.name, "log_path": str(job.log_path), "num_threads": self._num_threads, "limits": self._limits}
        process = context.Process(target=run_worker, args=(job.task, job.request, theirs), kwargs=arguments, name=job.name)
        with ours:
            try:
                job.log_path.parent.mkdir(parents=True, exist_ok=True)
                with _process_table:
                    self._warm_up()
                    process.start()
            except Exception as error:  # whatever the request or the system does here, the job must end
                _logger.exception("cannot start a worker for %s", job.name)
                job._finish(JobState.FAILED, error=self._failure(f"{job.name}: no worker can be started: {error!r}"))
                return
            finally:
                theirs.close()
            job.worker_pid = process.pid
            job.state = JobState.RUNNING
            try:
                end = _watch(job, process, ours)
            except BaseException:
                _signal(process, signal.SIGKILL)
                raise
            finally:
                with _process_table:
                    process.join()
                    exit_code = process.exitcode or 0
        self._conclude(job, end, exit_code)

    def _conclude(self, job: Job, end: tuple[Any, ...] | None, exit_code: int) -> None:
        where = f"{job.name}, worker {job.worker_pid}"
        log = f"log: {job.log_path}"
        failed = self._failure(f"{where}: the process ended by {_exit_text(exit_code)}{self._suspicion(exit_code)} ({log})")
        match end:
            case ("result", result):
                job._finish(JobState.FINISHED, result=result)
            case ("error", CancelledError.reason, _) if job.stop_requested:
                job._finish(JobState.STOPPED, error=CancelledError(f"{where}: stopped on request"))
            case ("error", str() as reason, str() as message) if reason in BY_REASON:
                job._finish(JobState.FAILED, error=BY_REASON[reason](f"{where}: {message} ({log})"))
            case ("error", _, message):
                job._finish(JobState.FAILED, error=self._failure(f"{where}: {message} ({log})"))
            case _ if job.stop_requested:
                job._finish(JobState.STOPPED, error=CancelledError(f"{where}: stopped by {_exit_text(exit_code)}"))
            case _:
                job._finish(JobState.FAILED, error=failed)

    def _suspicion(self, exit_code: int) -> str:
        """Which limit a worker that ended without a word may have met."""
        if self._limits is None:
            return ""
        if exit_code == -signal.SIGABRT and self._limits.memory_bytes is not None:
            return f", perhaps because {self._limits.memory_advice()}"
        if exit_code == 1:
            return (
                f", perhaps because a call of a function of the user took longer than {self._limits.service}.user_function_timeout_s, "
                f"{self._limits.user_function_timeout_s:g} s, and could not be interrupted"
            )
        return ""


def _watch(job: Job, process: ForkServerProcess, connection: Connection[Any, Any]) -> tuple[Any, ...] | None:
    """Deliver the worker's messages until it has ended. Returns its last word, or None if it died without one."""
    end: tuple[Any, ...] | None = None
    open_, asked, signals = True, False, deque([signal.SIGTERM, signal.SIGKILL])
    next_signal_at: float | None = None
    while True:
        now = time.monotonic()
        if job._stop_at is not None:
            if not asked:
                asked = True
                _send(connection, "stop")
            next_signal_at = job._stop_at if len(signals) == 2 else next_signal_at
            if signals and next_signal_at is not None and now >= next_signal_at:
                _signal(process, signals.popleft())
                next_signal_at = now + TERMINATE_TO_KILL_S
        timeout = max(0.0, next_signal_at - now) if signals and next_signal_at is not None else None
        ready = wait([*([connection] if open_ else []), process.sentinel, job._wake_reader], timeout)
        if job._wake_reader in ready:
            job._wake_reader.recv()
        left = process.sentinel in ready
        # A look at both is not one moment: the last word may have come after the look at the connection, and before that at the exit.
        if connection in ready or (left and open_ and connection.poll()):
            try:
                word = connection.recv()
            except (EOFError, OSError):
                open_ = False
                continue
            if word[0] == "message":
                if job._on_message is not None:
                    job._on_message(word[1])
            else:
                end = word
        elif left:  # only once everything that it sent has been read
            return end


def _cannot_start(name: str, error: Exception, limit: str) -> str:
    return f"{name} cannot start: {error}; try again when the service has less to do, or raise its limit of {limit}"


def _send(connection: Connection[Any, Any], word: str) -> None:
    try:
        connection.send(word)
    except OSError:
        _logger.debug("a worker ended before it could be asked to stop")


def _signal(process: ForkServerProcess, number: signal.Signals) -> None:
    if process.pid is not None:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            _logger.debug("worker %d ended before it could be signalled", process.pid)


def _exit_text(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ", which is what the kernel sends when memory runs out" if exit_code == -signal.SIGKILL else ""
    return f"{name}{hint}"
