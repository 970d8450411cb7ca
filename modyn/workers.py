"""Warm worker processes: forked in about 20 ms from a server process that has imported PyTorch already.

A job is `package.module:function` with one picklable request; it runs in a process of its own as `function(request, report)`. It pushes
progress messages, ends with a result or an error, can be asked to stop, writes its output to a log file, and dies with its service.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from multiprocessing import forkserver, get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from modyn.errors import BY_REASON, CancelledError, ConflictError, ModynError, TrainingError
from modyn.registry import load_object

TERMINATE_TO_KILL_S: Final = 3.0
"""Between SIGTERM and SIGKILL, for a worker that did not stop when it was asked to."""
_PR_SET_PDEATHSIG: Final = 1
_ORPHANED: Final = 86

_logger = logging.getLogger(__name__)
# The standard library's bookkeeping of children is not made for several threads: `start` polls every child, and an exit status can be
# read once only. One lock over both, for all pools of the process.
_process_table = threading.Lock()


class JobState(StrEnum):
    """Where a job stands. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def final(self) -> bool:
        return self in (JobState.FINISHED, JobState.FAILED, JobState.STOPPED)


class Report:
    """A job's line to its service."""

    def __init__(self, connection: Connection[Any, Any], name: str, log_path: Path, num_threads: int) -> None:
        self.name = name
        self.log_path = log_path
        self.num_threads = num_threads
        self._connection = connection
        self._stopping = threading.Event()

    def send(self, message: object) -> None:
        """Push one picklable progress message. A few a second, not one a batch: each costs a system call."""
        self._connection.send(("message", message))

    @property
    def stopping(self) -> bool:
        """Whether the job was asked to stop. Costs nothing: look at it once a batch and raise CancelledError."""
        return self._stopping.is_set()

    def check(self) -> None:
        """Raise CancelledError if the job was asked to stop."""
        if self.stopping:
            raise CancelledError(f"{self.name} was stopped on request")

    def _listen(self, sentinel: int) -> None:
        while True:
            ready = wait([self._connection, sentinel])
            try:
                if sentinel in ready or self._connection.recv() is None:
                    os._exit(_ORPHANED)
            except (EOFError, OSError):
                os._exit(_ORPHANED)
            self._stopping.set()


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
            self._on_done(self)


class WorkerPool:
    """Runs at most `max_workers` jobs at once, the others wait in the order in which they came.

    `preload`: modules that the fork server imports beforehand. They must not start threads, which a fork does not carry along.
    `num_threads`: threads of PyTorch in each worker. `failure`: class of an error that is not one of ours.
    The fork server belongs to the process, not to the pool: the first pool that warms up says what is preloaded.
    """

    def __init__(
        self,
        max_workers: int,
        *,
        num_threads: int = 1,
        preload: Sequence[str] = ("torch",),
        failure: type[ModynError] = TrainingError,
    ) -> None:
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
        # OpenBLAS (PyTorch brings its own linear algebra) and Arrow's allocator start threads when they are imported.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
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
        trigger 3`. The callbacks are called by the thread that watches the worker: messages in order, then `on_done` once."""
        job = Job(
            task,
            request,
            name=name,
            log_path=log_path,
            on_message=on_message,
            on_done=on_done,
            leave_queue=self._leave_queue,
        )
        with self._changed:
            if self._closed:
                raise ConflictError(f"{name} cannot start: the service is shutting down")
            self._queue.append(job)
            if len(self._slots) < self._max_workers and self._idle < len(self._queue):
                slot = threading.Thread(target=self._serve, name=f"worker-slot-{len(self._slots)}", daemon=True)
                self._slots.append(slot)
                slot.start()
            self._changed.notify()
        return job

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
        arguments = {"name": job.name, "log_path": str(job.log_path), "num_threads": self._num_threads}
        process = context.Process(target=_worker, args=(job.task, job.request, theirs), kwargs=arguments, name=job.name)
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
        failed = self._failure(f"{where}: the process ended by {_exit_text(exit_code)} ({log})")
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
        if connection in ready:
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
        elif process.sentinel in ready:  # only once everything that it sent has been read
            return end


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


def die_with_parent() -> None:
    """Make this process of the fork server end when the process that asked for it ends, however that happens. For worker processes
    that start further ones: the parent in the kernel's sense is the fork server, which lives on."""
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_exit_after, args=(parent.sentinel,), name="die-with-parent", daemon=True).start()


def _exit_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(_ORPHANED)


def _worker(task: str, request: object, connection: Connection[Any, Any], *, name: str, log_path: str, num_threads: int) -> None:
    """Main function of a worker process."""
    _redirect_output(log_path)
    # Ctrl-C reaches the whole group; the service decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_fork_server()
    parent = parent_process()
    assert parent is not None
    report = Report(connection, name, Path(log_path), num_threads)
    threading.Thread(target=report._listen, args=(parent.sentinel,), name="listener", daemon=True).start()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(num_threads)
    end: tuple[Any, ...]
    try:
        function: Any = load_object(task)
        end = ("result", function(request, report))
    except ModynError as error:
        traceback.print_exc()
        end = ("error", error.reason, error.message)
    except Exception as error:  # noqa: BLE001  (whatever it is, the service hears of it)
        traceback.print_exc()
        end = ("error", "", f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        connection.send(end)
    except OSError:
        os._exit(_ORPHANED)
    except Exception as error:  # noqa: BLE001  (a result that cannot be pickled)
        traceback.print_exc()
        connection.send(("error", "", f"the result of {task} cannot be sent: {error!r}"))


def _redirect_output(log_path: str) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _die_with_fork_server() -> None:
    """The fork server lives while somebody holds the writing end of its pipe. The standard library gives that end to each worker too,
    so that workers would keep it, and themselves, alive after the service was killed. Put something else in its place."""
    alive = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if alive is not None:
        nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nothing, alive, inheritable=False)
        os.close(nothing)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
