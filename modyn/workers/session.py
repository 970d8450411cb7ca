"""Jobs of a service from the queue to their end, and the worker process that runs the jobs of a session one after the other."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from modyn.errors import CancelledError, ModynError
from modyn.records import JobState
from modyn.workers.fork_server import PROCESS_TABLE
from modyn.workers.messages import Begun, Command, Failure, Progress, Result, Stop
from modyn.workers.placement import Occupant
from modyn.workers.worker_process import SessionRules, run_worker

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job for a worker process: call the function `task`, given as `package.module:function`, with the picklable `request`.

    name: name of the job in messages, e.g. `training of run a-0001`. log_path: file that the worker's output is appended to. session: jobs with the
    same key may share a process; None: the job gets a process of its own. device: cpu, cuda:N, or cuda for any GPU; the task finds the chosen device
    in its connection.
    """

    task: str
    request: object
    name: str
    log_path: Path
    session: str | None = None
    device: str = "cpu"


class Job:
    """A job from the queue to its end, made by `WorkerPool.submit`. Thread-safe.

    Args: leave_queue: removes the job from the queue; returns False if the job is not in the queue. on_message, on_done: see `WorkerPool.submit`.
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
        """Time at which a working worker is terminated, on the monotonic clock; None: `stop` was not called."""
        self._result: Any = None
        self._leave_queue = leave_queue
        # Wakes waiting threads. The event is set under `_wake_lock` after state, result and error, so that a waiting thread reads the final values.
        self._done = threading.Event()
        # Protects the pipe: `stop` writes to the pipe, and `finish` closes it.
        self._wake_lock = threading.Lock()
        self.wakes: Connection[Any, Any]
        """Pipe that wakes the thread that watches the worker. The pipe is readable after `stop`."""
        self.wakes, self._wake_writer = get_context("forkserver").Pipe(duplex=False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the job. Returns False if `timeout_s` passed first."""
        return self._done.wait(timeout_s)

    def result(self, timeout_s: float | None = None) -> Any:
        """Return the function's result. Raises: the error of the function. CancelledError: the job was stopped. TimeoutError: the job still runs."""
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"{self.name} still runs after {timeout_s} s")
        if self.error is not None:
            raise self.error
        return self._result

    def stop(self, grace_s: float = 10.0) -> None:
        """Ask the job to stop, without waiting for its end. After `grace_s` seconds, the worker of the job is terminated, and later killed."""
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
        """Whether `stop` was called before the job ended."""
        return self.stop_at is not None

    def deliver(self, message: object) -> None:
        """Call `on_message` with a message of the worker."""
        if self._on_message is not None:
            self._on_message(message)

    def finish(self, state: JobState, result: object = None, error: ModynError | None = None) -> None:
        """Set the final state of the job, and its result or error. Wakes the waiting threads."""
        with self._wake_lock:
            self.state, self._result, self.error = state, result, error
            self._done.set()
            self.wakes.close()
            self._wake_writer.close()
        if self._on_done is not None:
            try:
                self._on_done(self)
            except Exception:  # the thread must continue with the next job
                _logger.exception("the callback after the end of %s failed", self.name)


class Session:
    """A worker process for the jobs of one key. One thread at a time may use the object.

    Args: key: key of the session; None: the session has a single job. device: cpu or cuda:N.
    """

    def __init__(self, key: str | None, device: str) -> None:
        self.key = key
        self.device = device
        self.busy = True
        self.used = 0
        """Number of the last placement that used this session."""
        self.num_jobs = 0
        self._device_bytes = 0
        self._process: ForkServerProcess | None = None
        self._connection: Connection[Any, Any] | None = None

    @property
    def occupant(self) -> Occupant:
        """The session's record for the placement."""
        return Occupant(self.key, self.device, self.busy, self._device_bytes, self.used)

    @property
    def has_ended(self) -> bool:
        """Whether the process of the session has ended."""
        return self._process is not None and bool(wait([self._process.sentinel], 0))

    def start(self, rules: SessionRules, name: str, start: Callable[[ForkServerProcess], None]) -> None:
        """Make the process object, and start the process with `start`."""
        context = get_context("forkserver")
        self._connection, theirs = context.Pipe()
        process = context.Process(target=run_worker, args=(rules, theirs), name=name)
        with theirs:
            start(process)
        self._process = process

    def run(self, job: Job, kill_after_s: float) -> tuple[bool, Result | Failure | None]:
        """Run `job` in the worker, deliver its messages, and end the worker if the job is asked to stop.

        Args: kill_after_s: seconds between SIGTERM and SIGKILL.
        Returns: whether the job began, and its answer, which is None if the worker ended without an answer. The worker stays alive only if
        `answer.continues`.
        """
        assert self._process is not None
        assert self._connection is not None
        spec = job.spec
        command = Command(
            spec.task, pickle.dumps(spec.request), spec.name, spec.log_path, self.device, is_only=spec.session is None
        )
        self.num_jobs += 1
        job.worker_pid = self._process.pid
        job.state = JobState.RUNNING
        with suppress(OSError):  # the worker has just ended; `_watch` reports this
            self._connection.send(command)
        begun, answer = self._watch(job, self._process, self._connection, kill_after_s)
        if isinstance(answer, Result):
            self._device_bytes = answer.device_bytes
        return begun, answer

    def _watch(
        self, job: Job, process: ForkServerProcess, connection: Connection[Any, Any], kill_after_s: float
    ) -> tuple[bool, Result | Failure | None]:
        begun, answer, open_ = False, None, True
        ending: _Ending | None = None
        while True:
            timeout = None
            if job.stop_at is not None:
                if ending is None:
                    ending = _Ending(process, kill_after_s)
                    with suppress(OSError):  # the worker has just ended
                        connection.send(Stop())
                timeout = ending.advance(job.stop_at, time.monotonic())
            # A message, the end of the process, a call of `stop`, or the time of the next signal ends this wait.
            ready = wait([*([connection] if open_ else []), process.sentinel, job.wakes], timeout)
            if job.wakes in ready:
                job.wakes.recv()
            left = process.sentinel in ready
            # The answer may have arrived after the check of the connection and before the check of the process.
            if connection in ready or (left and open_ and connection.poll()):
                message = _receive(connection)
                if message is None:
                    open_ = False
                elif isinstance(message, Progress):
                    job.deliver(message.message)
                elif isinstance(message, Begun):
                    begun = True
                else:
                    answer = message
                    if isinstance(answer, Result) and answer.continues:
                        return begun, answer
            elif left:  # all messages of the worker are read
                return begun, answer

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()

    def end(self, kill_after_s: float) -> int:
        """Close the pipe, which ends the process, and wait for its end. Returns the exit code."""
        if self._connection is not None:
            self._connection.close()
        if self._process is None or self._process.pid is None:
            return 0
        # An idle worker ends when its pipe is closed; a working worker was asked to stop. The end of the worker ends this wait. After `kill_after_s`
        # seconds, the worker is killed.
        if not wait([self._process.sentinel], kill_after_s):
            self._process.kill()
        with PROCESS_TABLE:  # the process has ended or was killed, so the join holds the lock only briefly
            self._process.join()
            return self._process.exitcode or 0


class _Ending:
    """Signals to a worker that continues after a request to stop: SIGTERM, and SIGKILL `kill_after_s` seconds later."""

    def __init__(self, process: ForkServerProcess, kill_after_s: float) -> None:
        self._process = process
        self._kill_after_s = kill_after_s
        self._kill_at: float | None = None
        """Time of SIGKILL; None: SIGTERM has not been sent."""
        self._killed = False

    def advance(self, stop_at: float, now: float) -> float | None:
        """Send the signal that is due. Returns the seconds until the next signal; None: there is no further signal.

        Args: stop_at: time of SIGTERM; a later call may give an earlier time. now: current time on the same clock.
        """
        if self._kill_at is None and now >= stop_at:
            self._process.terminate()
            self._kill_at = now + self._kill_after_s
        elif self._kill_at is not None and not self._killed and now >= self._kill_at:
            self._process.kill()
            self._killed = True
        if self._killed:
            return None
        return max(0.0, (stop_at if self._kill_at is None else self._kill_at) - now)


def _receive(connection: Connection[Any, Any]) -> Begun | Progress | Result | Failure | None:
    """Receive a message; None: the worker has closed its end."""
    try:
        message: Begun | Progress | Result | Failure = connection.recv()
    except (EOFError, OSError):
        return None
    return message
