"""One worker process of the fork server: the job that it runs, and both ends of the pipe between the process and its service."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver, get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from modyn.errors import CancelledError, ModynError, UserCodeError
from modyn.log_files import LogLimits, protect_output, write_output_to
from modyn.records import JobState
from modyn.registry import load_object
from modyn.workers.limits import WorkerLimits, impose

_PR_SET_PDEATHSIG: Final = 1
_ORPHANED: Final = 86

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a worker process runs: the function `task`, `package.module:function`, with `request`. Picklable.

    name: of the job in messages. num_threads: of PyTorch.
    """

    task: str
    request: object
    name: str
    log_path: Path
    num_threads: int
    limits: WorkerLimits | None


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
        self.on_message = on_message
        self._on_done = on_done
        self.name = spec.name
        self.log_path = spec.log_path
        self.state = JobState.QUEUED
        self.error: ModynError | None = None
        self.worker_pid: int | None = None
        self._result: Any = None
        self._leave_queue = leave_queue
        # Set only after state, result and error are written, under `_wake_lock`: a waiter that it wakes finds the final ones.
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
            self.finish(JobState.STOPPED, error=CancelledError(f"{self.name} was stopped before it began"))

    @property
    def stop_requested(self) -> bool:
        """Whether `stop` was called before the job had ended."""
        return self._stop_at is not None

    def finish(self, state: JobState, result: object = None, error: ModynError | None = None) -> None:
        """Enter the end of the job: its final state, and its result or error. Wakes who waits for it."""
        with self._wake_lock:
            self.state, self._result, self.error = state, result, error
            self._done.set()
            self._wake_reader.close()
            self._wake_writer.close()
        if self._on_done is not None:
            try:
                self._on_done(self)
            except Exception:  # the thread must go on to the next job
                _logger.exception("the callback after the end of %s failed", self.name)


def watch_worker(
    job: Job, process: ForkServerProcess, connection: Connection[Any, Any], kill_after_s: float
) -> tuple[Any, ...] | None:
    """Deliver the worker's messages until its process has ended, and end it if the job is to stop. Runs in the service.

    Args: connection: the service's end of the pipe. kill_after_s: seconds between SIGTERM and SIGKILL.
    Returns: the worker's answer; None: it ended without one.
    """
    end: tuple[Any, ...] | None = None
    open_, asked, signals = True, False, [process.terminate, process.kill]
    next_signal_at: float | None = None
    while True:
        now = time.monotonic()
        if job._stop_at is not None:
            if not asked:
                asked = True
                with suppress(OSError):  # it has just ended
                    connection.send("stop")
            next_signal_at = job._stop_at if len(signals) == 2 else next_signal_at
            if signals and next_signal_at is not None and now >= next_signal_at:
                signals.pop(0)()
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
                if job.on_message is not None:
                    job.on_message(message[1])
            else:
                end = message
        elif left:  # all that it sent has been read
            return end


class JobConnection:
    """The connection of a job to its service. Safe to use from several threads."""

    def __init__(self, connection: Connection[Any, Any], name: str) -> None:
        self.name = name
        self._connection = connection
        self._stopping = threading.Event()
        # One message at a time. Taken for good before the last one, so that no thread sends anything behind it.
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Push one picklable progress message. A few a second, not one a batch: each costs a system call."""
        with self._sending:
            self._connection.send(("message", message))

    @property
    def stopping(self) -> bool:
        """Whether the job was asked to stop. A cheap look, made once a batch; raise CancelledError then."""
        return self._stopping.is_set()

    def check(self) -> None:
        """Raise CancelledError if the job was asked to stop."""
        if self.stopping:
            raise CancelledError(f"{self.name} was stopped on request")

    def give_up(self, message: str) -> None:
        """End this process with a UserCodeError, from another thread than the one that works and cannot be interrupted."""
        faulthandler.dump_traceback()
        print(message, file=sys.stderr, flush=True)
        with self._sending:
            try:
                self._connection.send(("error", UserCodeError.reason, message))
            finally:
                os._exit(0)

    def _listen(self, sentinel: int) -> None:
        while True:
            # Until the service asks to stop, closes the pipe, or ends: a worker must not outlive its service, however that ends.
            ready = wait([self._connection, sentinel])
            try:
                if sentinel in ready or self._connection.recv() is None:
                    os._exit(_ORPHANED)
            except (EOFError, OSError):
                os._exit(_ORPHANED)
            self._stopping.set()


def die_with_parent() -> None:
    """Make this process of the fork server end when the process that asked for it ends, however that happens. For worker processes
    that start further ones: the parent in the kernel's sense is the fork server, which lives on."""
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_exit_after, args=(parent.sentinel,), name="die-with-parent", daemon=True).start()


def _exit_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(_ORPHANED)


def run_worker(spec: JobSpec, connection: Connection[Any, Any]) -> None:
    """Main function of a worker process. connection: the worker's end of the pipe."""
    limits = spec.limits
    protect_output()
    write_output_to(spec.log_path, limits.logs if limits else LogLimits())
    # Ctrl-C reaches the whole process group; the service decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_fork_server()
    parent = parent_process()
    assert parent is not None
    job_connection = JobConnection(connection, spec.name)
    threading.Thread(target=job_connection._listen, args=(parent.sentinel,), name="listener", daemon=True).start()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(spec.num_threads)
    if limits is not None:
        impose(limits, job_connection.give_up)
    end: tuple[Any, ...]
    try:
        function: Any = load_object(spec.task)
        end = ("result", function(spec.request, job_connection))
    except Exception as error:  # noqa: BLE001  (the service gets every error)
        traceback.print_exc()
        reason, message = (
            (error.reason, error.message) if isinstance(error, ModynError) else ("", f"{type(error).__name__}: {error}")
        )
        end = ("error", reason, message + (limits.out_of_memory(error) if limits else ""))
    sys.stdout.flush()
    sys.stderr.flush()
    job_connection._sending.acquire()  # never released: this is the last message
    try:
        connection.send(end)
    except OSError:
        os._exit(_ORPHANED)
    except Exception as error:  # noqa: BLE001  (a result that cannot be pickled)
        traceback.print_exc()
        sys.stderr.flush()
        connection.send(("error", "", f"the result of {spec.task} cannot be sent: {error!r}"))
    # To unload PyTorch in order takes a tenth of a second, for which the next training would wait.
    os._exit(0)


def _die_with_fork_server() -> None:
    """Let this process end with the fork server, and the fork server with the service, also if that is killed.

    The fork server lives while any process holds the writing end of its pipe. The standard library gives that end to each worker too,
    which would keep the fork server and itself alive: it is replaced by /dev/null. A worker that starts processes would start another
    fork server and wait for its imports: it uses the present one.
    """
    alive = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if alive is not None:
        nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nothing, alive, inheritable=False)
        os.close(nothing)
        forkserver._forkserver.ensure_running = _nothing_to_do  # type: ignore[method-assign]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _nothing_to_do() -> None:
    """Replace `ensure_running` in a worker: the fork server of this process runs."""
