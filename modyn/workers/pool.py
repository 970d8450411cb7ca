"""The service's side: a bounded number of workers, a queue of jobs for them, and one thread that watches each worker."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from modyn.errors import BY_REASON, CancelledError, ConflictError, ModynError, TrainingError, UnavailableError
from modyn.records import JobState
from modyn.workers.limits import WorkerLimits
from modyn.workers.process import run_worker

ENVIRONMENT: Final = {
    # OpenBLAS (PyTorch brings its own linear algebra) and Arrow's allocator start threads when they are imported.
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # With one arena for each thread that receives payloads, no thread can use what another frees: twice as much memory, no more speed.
    "MALLOC_ARENA_MAX": "2",
}
"""Environment variables of workers, where the service was not started with other values."""

_logger = logging.getLogger(__name__)
# Protects the standard library's table of children, which is not made for several threads: `start` polls every child, and an exit status
# can be read once only. One lock for all pools of the process, over `start` and `join`.
_process_table = threading.Lock()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a worker runs, see `WorkerPool.submit`."""

    task: str
    request: object
    name: str
    log_path: Path
    on_message: Callable[[Any], None] | None = None
    on_done: Callable[[Job], None] | None = None


class Job:
    """One piece of work, from the queue to its end. Made by `WorkerPool.submit`; safe to use from any thread."""

    def __init__(self, spec: JobSpec, leave_queue: Callable[[Job], bool]) -> None:
        self.spec = spec
        self.name = spec.name
        self.log_path = spec.log_path
        self.state = JobState.QUEUED
        self.error: ModynError | None = None
        self.worker_pid: int | None = None
        self._result: Any = None
        self._leave_queue = leave_queue
        self._done = threading.Event()
        self._stop_at: float | None = None
        # Between `stop`, which writes to the pipe, and the end of the job, which closes it. The pipe wakes the thread that watches the worker.
        self._wake_lock = threading.Lock()
        self._wake_reader, self._wake_writer = get_context("forkserver").Pipe(duplex=False)

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
            if self._done.is_set() or (self._stop_at is not None and stop_at >= self._stop_at):
                return
            self._stop_at = stop_at
            self._wake_writer.send(None)
        if self._leave_queue(self):
            self._finish(JobState.STOPPED, error=CancelledError(f"{self.name} was stopped before it began"))

    @property
    def stop_requested(self) -> bool:
        """Whether `stop` was called before the job had ended."""
        return self._stop_at is not None

    def _finish(self, state: JobState, result: object = None, error: ModynError | None = None) -> None:
        with self._wake_lock:
            self.state, self._result, self.error = state, result, error
            self._done.set()
            self._wake_reader.close()
            self._wake_writer.close()
        if self.spec.on_done is not None:
            try:
                self.spec.on_done(self)
            except Exception:  # the thread must go on to the next job
                _logger.exception("the callback after the end of %s failed", self.name)


class WorkerPool:
    """Runs at most `max_workers` jobs at once; the others wait in the order in which they were submitted.

    Args:
        num_threads: threads of PyTorch in each worker.
        preload: modules that the fork server imports; they must not start threads, which a fork does not carry along. There is one fork
            server in a process: the first pool that warms up determines what is preloaded.
        failure: class of the error of a job that raised an error of a class other than ours. limits: of each worker.
        kill_after_s: seconds between SIGTERM and SIGKILL, for a worker that did not stop on request.
    """

    def __init__(
        self,
        max_workers: int,
        *,
        num_threads: int = 1,
        preload: Sequence[str] = ("torch",),
        failure: type[ModynError] = TrainingError,
        limits: WorkerLimits | None = None,
        kill_after_s: float = 3.0,
    ) -> None:
        self._limits = limits
        self._kill_after_s = kill_after_s
        self._max_workers = max_workers
        self._num_threads = num_threads
        self._preload = list(preload)
        self._failure = failure
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()  # protects the fields below; notified when a job is queued and when the pool closes
        self._slots: list[threading.Thread] = []
        self._running: set[Job] = set()
        self._idle = 0
        self._closed = False
        # Workers may have children, so they are not daemons, and the interpreter would wait for them at exit.
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
        """Queue a job.

        Args:
            task: `package.module:function`. request: its argument, picklable. name: of the job in messages, e.g. `training of run a-0001`.
            on_message, on_done: called by the thread that watches the worker: messages in order, then `on_done` once.
        Raises: UnavailableError, with no callback called: there is no file descriptor or no thread left. ConflictError: the pool is closed.
        """
        try:
            job = Job(JobSpec(task, request, name, log_path, on_message, on_done), self._leave_queue)
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
        """Start one more thread that runs jobs. If the system has none left, those that there are go on alone; without any, `job` is refused."""
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
        # All are asked before the first wait, so that they end side by side.
        for job in jobs:
            job.wait(grace_s + self._kill_after_s + 5)

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
                # Until a job is queued or the pool closes: `submit` and `close` notify.
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
        process = context.Process(
            target=run_worker, args=(job.spec.task, job.spec.request, theirs), kwargs=arguments, name=job.name
        )
        with ours:
            try:
                job.log_path.parent.mkdir(parents=True, exist_ok=True)
                with _process_table:
                    self._warm_up()
                    process.start()
            except Exception as error:  # of any class: the job must end
                _logger.exception("cannot start a worker for %s", job.name)
                job._finish(JobState.FAILED, error=self._failure(f"{job.name}: no worker can be started: {error!r}"))
                return
            finally:
                theirs.close()
            job.worker_pid = process.pid
            job.state = JobState.RUNNING
            try:
                end = _watch(job, process, ours, self._kill_after_s)
            except BaseException:
                _signal(process, signal.SIGKILL)
                raise
            finally:
                with _process_table:  # the process has ended, or was killed just now: the join does not hold the lock for long
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
        """The limit that a worker may have met that ended without an answer."""
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


def _watch(job: Job, process: ForkServerProcess, connection: Connection[Any, Any], kill_after_s: float) -> tuple[Any, ...] | None:
    """Deliver the worker's messages until its process has ended. Returns its answer, or None if it ended without one."""
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
                next_signal_at = now + kill_after_s
        timeout = max(0.0, next_signal_at - now) if signals and next_signal_at is not None else None
        # Until a message, the end of the process, a call of `stop`, or the time of the next signal.
        ready = wait([*([connection] if open_ else []), process.sentinel, job._wake_reader], timeout)
        if job._wake_reader in ready:
            job._wake_reader.recv()
        left = process.sentinel in ready
        # The two are not looked at in one moment: the answer may arrive after the look at the connection and before that at the process.
        if connection in ready or (left and open_ and connection.poll()):
            try:
                message = connection.recv()
            except (EOFError, OSError):
                open_ = False
                continue
            if message[0] == "message":
                if job.spec.on_message is not None:
                    job.spec.on_message(message[1])
            else:
                end = message
        elif left:  # all that it sent has been read
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
