"""The service's side: a bounded number of worker processes, a queue of jobs for them, and one thread for each job that runs."""

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

from modyn.errors import BY_REASON, CancelledError, ConflictError, ModynError, TrainingError, UnavailableError, WorkerDiedError
from modyn.records import JobState
from modyn.workers.devices import gpu_bytes
from modyn.workers.fork_server import LOST, SERVER_DIED, start_worker, warm_up
from modyn.workers.messages import Failure, Result
from modyn.workers.placement import place
from modyn.workers.process import SessionRules
from modyn.workers.session import Job, JobSpec, Session

_logger = logging.getLogger(__name__)


class WorkerPool:
    """Runs at most `max_workers` jobs at once; the others wait in the order in which they were submitted.

    Jobs with equal sessions are done by one process, one after the other, while it is not idle for too long and none of them fails. A
    process that is idle counts as one of `max_workers`, and ends when a job of another session needs its place.

    Args:
        rules: of each worker process.
        preload: modules that the fork server imports; they must not start threads, which a fork does not carry along. There is one fork
            server in a process: while it has workers, what it has imported stays, whatever others ask for.
        server_idle_s: seconds without a worker after which the fork server ends, and with it the memory of what it imported; the next
            worker waits for a new one. None: it ends with the service.
        failure: class of the error of a job that raised an error of a class other than ours.
        kill_after_s: seconds between SIGTERM and SIGKILL, for a worker that did not stop on request.
        gpus: the memory of each GPU in bytes; asked when a job wants one.
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
        # Protects the fields below, and is notified when a job is queued and when the pool closes. Not held while callbacks of jobs run: their
        # owners submit with locks of their own held.
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._slots: list[threading.Thread] = []
        self._running: set[Job] = set()
        self._sessions: list[Session] = []
        """Live ones, and those that start just now."""
        self._num_placed = 0
        self._idle = 0
        self._closed = False
        # Workers may have children, so they are not daemons, and the interpreter would wait for them at exit.
        atexit.register(self.close, 0.0)

    def warm_up(self) -> None:
        """Start the fork server, which imports its modules in the background. Returns at once; repeated calls do nothing."""
        warm_up(self._preload, self._server_idle_s)

    def submit(
        self,
        spec: JobSpec,
        *,
        on_message: Callable[[Any], None] | None = None,
        on_done: Callable[[Job], None] | None = None,
    ) -> Job:
        """Queue a job.

        Args: on_message, on_done: called by the thread that watches the worker: messages in order, then `on_done` once.
        Raises: UnavailableError, with no callback called: there is no file descriptor or no thread left. ConflictError: the pool is closed.
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
        """Stop all jobs, end all sessions, and wait for the end of the workers. Idempotent."""
        atexit.unregister(self.close)
        with self._changed:
            self._closed = True
            jobs = [*self._queue, *self._running]
            self._changed.notify_all()
        for job in jobs:
            job.stop(grace_s)
        # All are asked before the first wait, so that they end side by side. Bounded: SIGKILL has been sent by then.
        for job in jobs:
            job.wait(grace_s + self._kill_after_s + 5)
        # Idle sessions last: one that a job has just left is idle by now, or ends with its job.
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
        """Bring the job to its end, in the session that it is placed in."""
        while True:
            try:
                session = self._take_session(job)
            except ModynError as error:  # what GPUs there are is not known
                job.finish(JobState.FAILED, error=type(error)(f"{job.name}: {error.message}"))
                return
            try:
                with suppress(OSError):  # a job without a log is as good; if it fails, its error says why there is none
                    job.log_path.parent.mkdir(parents=True, exist_ok=True)
                if not session.num_jobs:
                    session.start(self._rules, job.name, self._start_process)
                begun, answer = session.run(job, self._kill_after_s)
            except Exception as error:  # of any class: the job must end
                _logger.exception("the watcher of %s failed", job.name)
                session.kill()
                self._drop(session)
                kind = WorkerDiedError if isinstance(error, SERVER_DIED) else self._failure
                job.finish(JobState.FAILED, error=kind(f"{job.name}: {_broken(job, error)}"))
                return
            goes_on = isinstance(answer, Result) and answer.goes_on and self._give_back(session)
            exit_code = 0 if goes_on else self._drop(session)
            if begun or answer is not None or job.stop_requested or session.num_jobs == 1:
                self._conclude(job, answer, exit_code)
                return
            # Its worker had ended while it was idle, or did so just now: nothing of this job was done.

    def _start_process(self, process: ForkServerProcess) -> None:
        start_worker(process, self._preload, self._server_idle_s)

    def _take_session(self, job: Job) -> Session:
        """Place the job: in an idle session of its key, or in a new one, for which others may have to end."""
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
        """Let the session wait for further jobs; False: the pool closes, it must end."""
        with self._changed:
            session.busy = self._closed
            return not self._closed

    def _drop(self, session: Session) -> int:
        """Wait for the end of the session's process and forget it; return the exit code."""
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
        """The limit that a worker which ended without an answer may have reached."""
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
    """Where a log is, or why there is none."""
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
