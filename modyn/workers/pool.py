"""Worker pool of a service: a bounded number of worker processes, a queue of jobs, and one thread for each running job."""

from __future__ import annotations

import atexit
import logging
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from modyn.errors import (
    BY_REASON,
    CancelledError,
    ConflictError,
    ModynError,
    TrainingError,
    UnavailableError,
    WorkerDiedError,
)
from modyn.full_disk import disk_full_error
from modyn.records import JobState
from modyn.workers.devices import gpu_bytes
from modyn.workers.fork_server import LOST, SERVER_DIED, start_worker, warm_up
from modyn.workers.messages import Failure, Result
from modyn.workers.placement import place
from modyn.workers.session import Job, JobSpec, Session
from modyn.workers.worker_process import SessionRules

_logger = logging.getLogger(__name__)


class WorkerPool:
    """Runs at most `max_workers` jobs at the same time.

    Other jobs wait in the order of their submission. One process runs the jobs of a session one after the other, until the process is idle for too
    long or a job fails. An idle process counts towards `max_workers`, and ends when a job of another session needs its place.

    Args:
        rules: rules of each worker process.
        preload: modules that the fork server imports. These modules must not start threads, because threads do not survive a fork. A service has one
        fork server, whose imports do not change while there are workers. server_idle_s: seconds without a worker after which the fork server ends and
        frees the memory of its imports. None: the fork server ends with the service. failure: class of the error for a job that raised an error that
        is not in `modyn.errors`. kill_after_s: seconds between SIGTERM and SIGKILL, for a worker that did not stop on request.
        gpus: returns the memory of each GPU in bytes; called when a job needs a GPU.
    """

    def __init__(
        self,
        max_workers: int,
        *,
        rules: SessionRules | None = None,
        preload: Sequence[str] = ("torch",),
        failure: type[ModynError] = TrainingError,
        kill_after_s: float = 3.0,
        server_idle_s: float | None = None,
        gpus: Callable[[], Sequence[int]] = gpu_bytes,
    ) -> None:
        self._rules = rules or SessionRules()
        self._limits = self._rules.limits
        self._kill_after_s = kill_after_s
        self._max_workers = max_workers
        self._preload = list(preload)
        self._server_idle_s = server_idle_s
        self._failure = failure
        self._gpus = gpus
        # Protects the fields below. Wakes the threads of `_slots` when a job is queued or the pool closes. The lock is not held during callbacks of
        # jobs, because the owners of jobs call `submit` while they hold their own locks.
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._slots: list[threading.Thread] = []
        self._running: set[Job] = set()
        self._sessions: list[Session] = []
        """Sessions that are alive or starting."""
        self._num_placed = 0
        self._idle = 0
        self._closed = False
        # Workers are not daemons, because workers may have children. Without this callback, the interpreter would wait for the workers at exit.
        atexit.register(self.close, 0.0)

    def warm_up(self) -> None:
        """Start the fork server unless it runs already. The method does not wait for the imports of the fork server."""
        warm_up(self._preload, self._server_idle_s)

    def submit(
        self,
        spec: JobSpec,
        *,
        on_message: Callable[[Any], None] | None = None,
        on_done: Callable[[Job], None] | None = None,
    ) -> Job:
        """Queue a job.

        Args: on_message, on_done: called by the thread that watches the worker, with each message in order and then once at the end.
        Raises, without a callback: UnavailableError: no file descriptor or no thread is left. ConflictError: the pool is closed.
        """
        try:
            job = Job(spec, self._leave_queue, on_message, on_done)
        except OSError as error:
            raise UnavailableError(_cannot_start(spec.name, error, "open files")) from error
        with self._changed:
            if self._closed:
                raise ConflictError(f"{spec.name} cannot start: the service is shutting down")
            self._queue.append(job)
            if len(self._slots) < self._max_workers and self._idle < len(self._queue):
                self._add_slot(job)
            self._changed.notify()
        return job

    def _add_slot(self, job: Job) -> None:
        """Start one more thread that runs jobs. If the system has no threads left, `job` waits for the existing threads; without threads, `job` is
        refused.
        """
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
        """Stop all jobs, end all sessions, and wait for the end of the workers. Idempotent."""
        atexit.unregister(self.close)
        with self._changed:
            self._closed = True
            jobs = [*self._queue, *self._running]
            self._changed.notify_all()
        for job in jobs:
            job.stop(grace_s)
        # All jobs are asked to stop before the first wait, so that they end concurrently. SIGKILL is sent before the timeout.
        for job in jobs:
            job.wait(grace_s + self._kill_after_s + 5)
        # Idle sessions end last, because the jobs that ended above may have left their sessions idle.
        with self._changed:
            idle = [session for session in self._sessions if not session.busy]
            self._sessions = [session for session in self._sessions if session.busy]
        for session in idle:
            session.end(self._kill_after_s)

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
                # `submit` and `close` notify.
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
        """Run a job to its end, in the session that `place` chooses."""
        while True:
            try:
                session = self._take_session(job)
            except ModynError as error:  # the GPUs cannot be counted
                job.finish(JobState.FAILED, error=type(error)(f"{job.name}: {error.message}"))
                return
            try:
                with suppress(OSError):  # a job may run without a log; its error then contains the reason
                    job.log_path.parent.mkdir(parents=True, exist_ok=True)
                if not session.num_jobs:
                    session.start(self._rules, job.name, self._start_process)
                begun, answer = session.run(job, self._kill_after_s)
            except Exception as error:  # any class, because the job must end
                _logger.exception("the watcher of %s failed", job.name)
                session.kill()
                self._drop(session)
                kind = WorkerDiedError if isinstance(error, SERVER_DIED) else self._failure
                full = disk_full_error(error)  # e.g. there is no room for the socket of the fork server
                job.finish(JobState.FAILED, error=full or kind(f"{job.name}: {_broken(job, error)}"))
                return
            continues = isinstance(answer, Result) and answer.continues and self._give_back(session)
            exit_code = 0 if continues else self._drop(session)
            if begun or answer is not None or job.stop_requested or session.num_jobs == 1:
                self._conclude(job, answer, exit_code)
                return
            # The idle worker had ended before this job began, so the job is repeated.

    def _start_process(self, process: ForkServerProcess) -> None:
        start_worker(process, self._preload, self._server_idle_s)

    def _take_session(self, job: Job) -> Session:
        """Place a job in an idle session of its key, or in a new session, and end the idle sessions that `place` chooses."""
        spec = job.spec
        gpus = self._gpus() if spec.device.startswith("cuda") else ()
        with self._changed:
            ended = [session for session in self._sessions if not session.busy and session.has_ended]
            live = [session for session in self._sessions if session not in ended]
            placement = place(spec.session, spec.device, [session.occupant for session in live], self._max_workers, gpus)
            ended += [live[i] for i in placement.end]
            session = Session(spec.session, placement.device) if placement.reuse is None else live[placement.reuse]
            self._num_placed += 1
            session.busy, session.used = True, self._num_placed
            self._sessions = [other for other in live if other not in ended and other is not session] + [session]
        for other in ended:
            other.end(self._kill_after_s)
        return session

    def _give_back(self, session: Session) -> bool:
        """Mark a session as idle. Returns False if the pool closes and the session must end."""
        with self._changed:
            session.busy = self._closed
            return not self._closed

    def _drop(self, session: Session) -> int:
        """Wait for the end of the session's process, and remove the session. Returns the exit code."""
        try:
            return session.end(self._kill_after_s)
        finally:
            with self._changed:
                self._sessions.remove(session)

    def _conclude(self, job: Job, answer: Result | Failure | None, exit_code: int) -> None:
        where = f"{job.name}, worker {job.worker_pid}"
        log = _place_of_log(job.log_path)
        match answer:
            case Result(value):
                job.finish(JobState.FINISHED, result=value)
            case Failure(CancelledError.reason) if job.stop_requested:
                job.finish(JobState.STOPPED, error=CancelledError(f"{where}: stopped on request"))
            case Failure(reason, message):
                kind = BY_REASON.get(reason, self._failure)
                job.finish(JobState.FAILED, error=kind(f"{where}: {message} ({log})"))
            case _ if job.stop_requested:
                job.finish(JobState.STOPPED, error=CancelledError(f"{where}: stopped by {_exit_text(exit_code)}"))
            case _:
                ended = f"the process ended by {_exit_text(exit_code)}{self._suspicion(exit_code)}"
                kind = WorkerDiedError if exit_code < 0 or exit_code == LOST else self._failure
                job.finish(JobState.FAILED, error=kind(f"{where}: {ended} ({log})"))

    def _suspicion(self, exit_code: int) -> str:
        """Return a text that names the limit that a worker without an answer may have reached."""
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


def _place_of_log(path: Path) -> str:
    """Return a text with the path of a log, or with the reason for which there is no log."""
    try:
        path.open("ab").close()
    except OSError as error:
        return f"its log {path} cannot be written: {error.strerror}"
    return f"log: {path}"


def _broken(job: Job, error: Exception) -> str:
    return f"no worker can be started: {error!r}" if job.worker_pid is None else f"its worker cannot be watched: {error!r}"


def _cannot_start(name: str, error: Exception, limit: str) -> str:
    return f"{name} cannot start: {error}; try again when the service has less to do, or raise its limit of {limit}"


def _exit_text(exit_code: int) -> str:
    if exit_code == LOST:
        return "the end of the process that it was forked from"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ", which is what the kernel sends when memory runs out" if exit_code == -signal.SIGKILL else ""
    return f"{name}{hint}"
