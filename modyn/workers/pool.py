"""The service's side: a bounded number of workers, a queue of jobs for them, one thread that watches each worker, a table of statuses."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from modyn.errors import BY_REASON, CancelledError, ConflictError, ModynError, TrainingError, UnavailableError
from modyn.records import JobState
from modyn.rpc.retry import JobStatus
from modyn.workers.limits import WorkerLimits
from modyn.workers.process import Job, JobSpec, run_worker, watch_worker

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=JobStatus)

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
# can be read once only. One lock for all pools of the process, over `start` and `join`; `start` takes it again to warm up.
_process_table = threading.RLock()


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
            spec = JobSpec(task, request, name, log_path, self._num_threads, self._limits)
            job = Job(spec, self._leave_queue, on_message, on_done)
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
                    job.finish(JobState.FAILED, error=self._failure(f"{job.name}: its worker cannot be watched: {error!r}"))
            finally:
                with self._changed:
                    self._running.discard(job)

    def _run(self, job: Job) -> None:
        context = get_context("forkserver")
        ours, theirs = context.Pipe()
        process = context.Process(target=run_worker, args=(job.spec, theirs), name=job.name)
        with ours:
            try:
                job.log_path.parent.mkdir(parents=True, exist_ok=True)
                with _process_table:
                    self.warm_up()
                    process.start()
            except Exception as error:  # of any class: the job must end
                _logger.exception("cannot start a worker for %s", job.name)
                job.finish(JobState.FAILED, error=self._failure(f"{job.name}: no worker can be started: {error!r}"))
                return
            finally:
                theirs.close()
            job.worker_pid = process.pid
            job.state = JobState.RUNNING
            try:
                end = watch_worker(job, process, ours, self._kill_after_s)
            except BaseException:
                process.kill()
                raise
            finally:
                with _process_table:  # the process has ended, or was killed just now: the join does not hold the lock for long
                    process.join()
                    exit_code = process.exitcode or 0
        self._conclude(job, end, exit_code)

    def _conclude(self, job: Job, end: tuple[Any, ...] | None, exit_code: int) -> None:
        where = f"{job.name}, worker {job.worker_pid}"
        log = f"log: {job.log_path}"
        match end:
            case ("result", result):
                job.finish(JobState.FINISHED, result=result)
            case ("error", CancelledError.reason, _) if job.stop_requested:
                job.finish(JobState.STOPPED, error=CancelledError(f"{where}: stopped on request"))
            case ("error", reason, message):
                kind = BY_REASON.get(reason, self._failure)
                job.finish(JobState.FAILED, error=kind(f"{where}: {message} ({log})"))
            case _ if job.stop_requested:
                job.finish(JobState.STOPPED, error=CancelledError(f"{where}: stopped by {_exit_text(exit_code)}"))
            case _:
                ended = f"the process ended by {_exit_text(exit_code)}{self._suspicion(exit_code)}"
                job.finish(JobState.FAILED, error=self._failure(f"{where}: {ended} ({log})"))

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


def _cannot_start(name: str, error: Exception, limit: str) -> str:
    return f"{name} cannot start: {error}; try again when the service has less to do, or raise its limit of {limit}"


def _exit_text(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ", which is what the kernel sends when memory runs out" if exit_code == -signal.SIGKILL else ""
    return f"{name}{hint}"


class JobTable(Generic[K, S]):
    """Statuses of live jobs and of the newest ended ones. Safe to use from any thread.

    Args:
        absent: the status of a job that is not in the table, e.g. from a database; raises NotFoundError if there is none.
        num_ended: ended jobs that stay in the table; the oldest leave first.
    """

    def __init__(self, absent: Callable[[K], S], num_ended: int) -> None:
        self._absent = absent
        self._num_ended = num_ended
        # One start at a time, and no look at `absent` during one: a job must not begin between the look and the entry in the table.
        self._starting = threading.Lock()
        self.changed = threading.Condition()
        """Protects the table, and what a service keeps beside it. Notified at every change. May be taken again by the same thread."""
        self._statuses: dict[K, S] = {}
        self._jobs: dict[K, Job] = {}

    def __len__(self) -> int:
        return len(self._statuses)

    def start(self, key: K, find_ended: Callable[[], S | None], begin: Callable[[], S]) -> S:
        """The status of a job that is live; else of one that has ended well, by `find_ended`; else `begin` starts it.

        `begin` sets the first status. Both calls are made without `changed`, one start at a time.
        """
        with self._starting:
            live = self.get(key)
            if live is not None and not live.state.is_final:
                return live
            return find_ended() or begin()

    def get(self, key: K) -> S | None:
        """The status in the table."""
        with self.changed:
            return self._statuses.get(key)

    def status(self, key: K) -> S:
        """The status in the table, else what `absent` returns."""
        found = self.get(key)
        if found is None:
            with self._starting:
                found = self.get(key) or self._absent(key)
        return found

    def set(self, key: K, status: S) -> S:
        """Enter or replace a status and wake the watchers."""
        with self.changed:
            self._statuses.pop(key, None)
            self._statuses[key] = status
            ended = [k for k, s in self._statuses.items() if s.state.is_final] if status.state.is_final else []
            for old in ended[: max(0, len(ended) - self._num_ended)]:
                del self._statuses[old]
            self.changed.notify_all()
        return status

    def update(self, key: K, change: Callable[[S], S]) -> None:
        """Replace the status of a live job by `change(status)`; does nothing if it has ended or is unknown."""
        with self.changed:
            status = self._statuses.get(key)
            if status is not None and not status.state.is_final:
                self.set(key, change(status))

    def attach(self, key: K, submit: Callable[[], Job]) -> None:
        """Submit the worker's job of `key`. Under the lock: a job that ends at once finds its entry."""
        with self.changed:
            self._jobs[key] = submit()

    def settle(self, key: K, end: Callable[[S], S]) -> None:
        """Replace the status by the final one, `end(status)`, wake the watchers and forget the worker's job."""
        with self.changed:
            self._jobs.pop(key, None)
            self.set(key, end(self._statuses[key]))

    def stop(self, key: K) -> None:
        """Ask the worker of a live job to stop. Raises NotFoundError by `absent`."""
        with self.changed:
            job = self._jobs.get(key)
        if job is None:
            self.status(key)
        else:
            job.stop()

    def watch(self, key: K, active: Callable[[], bool] = lambda: True) -> Iterator[S]:
        """The status now and on every change, up to a final one, or until `active` returns False (call `wake` when that has changed).

        Raises NotFoundError by `absent`.
        """
        last: S | None = None
        while active() and (last is None or not last.state.is_final):
            with self.changed:
                # Until the status changes or the job leaves the table (`set`), or `wake` reports that `active` has changed.
                while (status := self._statuses.get(key)) is not None and status == last and active():
                    self.changed.wait()
            if not active():
                return
            last = status or self.status(key)
            yield last

    def wake(self) -> None:
        """Make all watchers ask `active` again."""
        with self.changed:
            self.changed.notify_all()
