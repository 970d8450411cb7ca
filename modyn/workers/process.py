"""The worker's side: a process of the fork server that runs one job, reports to its service, and ends with it."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import traceback
from multiprocessing import forkserver, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from modyn.errors import CancelledError, ModynError, UserCodeError
from modyn.log_files import LogLimits, write_output_to
from modyn.registry import load_object
from modyn.workers.limits import WorkerLimits, impose

_PR_SET_PDEATHSIG: Final = 1
_ORPHANED: Final = 86


class Report:
    """The connection of a job to its service. Safe to use from several threads."""

    def __init__(self, connection: Connection[Any, Any], name: str, log_path: Path, num_threads: int) -> None:
        self.name = name
        self.log_path = log_path
        self.num_threads = num_threads
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


def run_worker(
    task: str,
    request: object,
    connection: Connection[Any, Any],
    *,
    name: str,
    log_path: str,
    num_threads: int,
    limits: WorkerLimits | None = None,
) -> None:
    """Main function of a worker process."""
    write_output_to(Path(log_path), limits.logs if limits else LogLimits())
    # Ctrl-C reaches the whole process group; the service decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_fork_server()
    parent = parent_process()
    assert parent is not None
    report = Report(connection, name, Path(log_path), num_threads)
    threading.Thread(target=report._listen, args=(parent.sentinel,), name="listener", daemon=True).start()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(num_threads)
    if limits is not None:
        impose(limits, report.give_up)
    end: tuple[Any, ...]
    try:
        function: Any = load_object(task)
        end = ("result", function(request, report))
    except Exception as error:  # noqa: BLE001  (the service gets every error)
        traceback.print_exc()
        reason, message = (
            (error.reason, error.message) if isinstance(error, ModynError) else ("", f"{type(error).__name__}: {error}")
        )
        end = ("error", reason, message + (limits.out_of_memory(error) if limits else ""))
    sys.stdout.flush()
    sys.stderr.flush()
    report._sending.acquire()  # never released: this is the last message
    try:
        connection.send(end)
    except OSError:
        os._exit(_ORPHANED)
    except Exception as error:  # noqa: BLE001  (a result that cannot be pickled)
        traceback.print_exc()
        sys.stderr.flush()
        connection.send(("error", "", f"the result of {task} cannot be sent: {error!r}"))
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
    """In place of `ensure_running`: the fork server of this process runs."""
