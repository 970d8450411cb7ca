"""Worker process of the fork server: it runs the commands that its service sends over a pipe, until its session ends."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import OrderedDict
from dataclasses import dataclass
from multiprocessing import forkserver, parent_process
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from typing import Any, Final

from modyn.errors import CancelledError, ModynError, UserCodeError
from modyn.full_disk import disk_full_error
from modyn.log_files import LogLimits, dropped_lines, protect_output, why_dropped, write_output_to
from modyn.registry import load_object
from modyn.workers.limits import WorkerLimits, impose
from modyn.workers.messages import Begun, Command, Failure, Progress, Result, Stop
from modyn.workers.process_state import ProcessState

_PR_SET_PDEATHSIG: Final = 1
_RESTS_S: Final = 1.0
"""Seconds without a command after which a worker returns freed memory to the system."""
ORPHANED: Final = 86
"""Exit code of a process whose service has ended."""
_CLOCK_STEP_NS: Final = 20_000_000
"""Largest number of nanoseconds by which the time of a file that was just written may lag behind the clock."""
_WRITTEN_SINCE: Final = (-1, -1)
"""Replacement for the time and size of a file that may differ from the imported module."""


@dataclass(frozen=True, slots=True)
class SessionRules:
    """Bounds of a worker process's session.

    num_threads: number of PyTorch threads. idle_s: seconds without a command after which the process ends; 0: the process ends after its first
    command. models_bytes: limit in bytes on the weights that the process keeps.
    """

    num_threads: int = 1
    limits: WorkerLimits | None = None
    idle_s: float = 0.0
    models_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether this process holds too much memory for a further command, even after it has returned free memory. The bound is half of
        `worker_memory_bytes`, or, without that limit, an eighth of the machine's memory."""
        if self._takes_too_much():
            give_back_freed()
            return self._takes_too_much()
        return False

    def _takes_too_much(self) -> bool:
        page = os.sysconf("SC_PAGE_SIZE")
        with open("/proc/self/statm", encoding="ascii") as file:
            size, resident = (page * int(pages) for pages in file.read().split()[:2])
        if self.limits is not None and self.limits.memory_bytes is not None:
            return 2 * size > self.limits.memory_bytes
        return 8 * resident > page * os.sysconf("SC_PHYS_PAGES")


class KeptModels:
    """Weights that a session keeps for its next commands. Not thread-safe.

    The most recently used safetensors files are kept by the hash of their weights. All kept files together have at most `limit` bytes.

    >>> kept = KeptModels(limit=6)
    >>> kept.put("a", b"123"); kept.put("b", b"456"); kept.get("a"); kept.put("c", b"789")
    b'123'
    >>> kept.get("a"), kept.get("b"), kept.get("c")
    (b'123', None, b'789')
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._num_bytes = 0
        self.newest: Any = None
        """Record of the model version that this session stored last. The client of model storage sets this field. None: there is no such version, or
        its weights are not kept.
        """

    def __len__(self) -> int:
        return len(self._contents)

    @property
    def limit(self) -> int:
        """Limit in bytes on all kept files. `put` ignores larger files."""
        return self._limit

    def get(self, weights_sha256: str) -> bytes | None:
        """Return the file with these weights, and mark the file as used; None: the file is not kept.

        Args: weights_sha256: see `modyn.models.weights.weights_sha256`.
        """
        content = self._contents.get(weights_sha256)
        if content is not None:
            self._contents.move_to_end(weights_sha256)
        return content

    def put(self, weights_sha256: str, content: bytes) -> None:
        """Keep a file. The least recently used files are dropped to free memory. A file beyond the limit is not kept."""
        if len(content) > self._limit:
            return
        self._num_bytes += len(content) - len(self._contents.pop(weights_sha256, b""))
        self._contents[weights_sha256] = content
        while self._num_bytes > self._limit:
            _, old = self._contents.popitem(last=False)
            self._num_bytes -= len(old)


class JobConnection:
    """Connection of a job to its service. Thread-safe.

    Args: device: cpu or cuda:N. models: weights from earlier jobs of the session. memory: other values by name, which jobs of the session pass to
    later jobs. sending: lock that is held while a message is sent over `connection`, which all jobs of a session use.
    """

    def __init__(
        self,
        connection: Connection[Any, Any],
        name: str,
        device: str = "cpu",
        models: KeptModels | None = None,
        memory: dict[str, Any] | None = None,
        sending: threading.Lock | None = None,
    ) -> None:
        self.name = name
        self.device = device
        self.models = models if models is not None else KeptModels(0)
        self.memory = memory if memory is not None else {}
        self._connection = connection
        self._stopping = threading.Event()  # The thread that listens to the service sets this event; the working thread reads it.
        self._sending = sending or threading.Lock()
        self._ended = False

    def send(self, message: object) -> None:
        """Send a picklable progress message. Send a few messages per second rather than one per batch, because each message costs a system call.

        A message that a thread sends after the end of the job is dropped.
        """
        self._send(Progress(message))

    def begin(self) -> None:
        """Report that the job has begun."""
        self._send(Begun())

    def end(self, answer: Result | Failure) -> None:
        """Send the last message. Raises errors of pickling; OSError: the service has ended."""
        self._send(answer)
        self._ended = True

    @property
    def stopping(self) -> bool:
        """Whether the job was asked to stop, and should raise CancelledError. Reading this property is cheap enough for once per batch."""
        return self._stopping.is_set()

    def check(self) -> None:
        """Raise CancelledError if the job was asked to stop."""
        if self.stopping:
            raise CancelledError(f"{self.name} was stopped on request")

    def ask_to_stop(self) -> None:
        """Make `stopping` true."""
        self._stopping.set()

    def give_up(self, message: str) -> None:
        """End this process with a UserCodeError, from another thread than the working thread. The process must end, because the working thread cannot
        be interrupted.
        """
        faulthandler.dump_traceback()
        print(message, file=sys.stderr, flush=True)
        try:
            self.end(Failure(UserCodeError.reason, message))
        finally:
            os._exit(0)

    def _send(self, message: Begun | Progress | Result | Failure) -> None:
        with self._sending:
            if not self._ended:
                self._connection.send(message)


def run_worker(rules: SessionRules, connection: Connection[Any, Any]) -> None:
    """Main function of a worker process. Args: connection: the worker's end of the pipe."""
    # Ctrl-C reaches the whole process group; the service decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_fork_server()
    os.environ.pop(
        "PYTHONSAFEPATH", None
    )  # set for the fork server; scripts that user code starts must find modules in their folder
    parent = parent_process()
    assert parent is not None
    worker = _Worker(rules, connection)
    threading.Thread(target=worker.listen, args=(parent.sentinel,), name="listener", daemon=True).start()
    try:
        worker.work()
    except OSError:  # the service has ended
        traceback.print_exc()
        os._exit(ORPHANED)
    # An orderly exit unloads PyTorch, which takes a tenth of a second and would delay the next training.
    os._exit(0)


class _Worker:
    """The session of this process: the queue of commands, and the values that are kept between commands."""

    def __init__(self, rules: SessionRules, connection: Connection[Any, Any]) -> None:
        self._rules = rules
        self._connection = connection
        self._asked: SimpleQueue[tuple[Command, JobConnection]] = SimpleQueue()
        self._newest: JobConnection | None = None
        self._models = KeptModels(rules.models_bytes)
        self._memory: dict[str, Any] = {}
        # Protects the connection: the thread that watches the limits sends messages too. See `JobConnection`.
        self._sending = threading.Lock()
        self._imported = ImportedFiles()

    def listen(self, sentinel: int) -> None:
        """Receive messages of the service. Ends the process when the service closes the pipe or ends in any way."""
        while True:
            # A message, a closed pipe, or the end of the service ends this wait. The wait has no timeout, because a worker may be idle while its
            # service lives.
            ready = wait([self._connection, sentinel])
            try:
                if sentinel in ready:
                    os._exit(ORPHANED)
                message: Command | Stop = self._connection.recv()
            except (EOFError, OSError):
                os._exit(ORPHANED)
            if isinstance(message, Command):
                self._newest = JobConnection(
                    self._connection, message.name, message.device, self._models, self._memory, self._sending
                )
                self._asked.put((message, self._newest))
            elif self._newest is not None:  # a Stop applies to the newest command
                self._newest.ask_to_stop()

    def work(self) -> None:
        """Run commands until the session ends. The session ends after a failure, after too long an idle time, or when the memory or the imports of
        the process do not allow another command.
        """
        # `listen` ends this wait with a command. `listen` also ends the process when the service ends.
        command, job = self._asked.get()
        state = self._set_up(command)
        while True:
            job.begin()
            answer = self._run(command, job)
            self._imported.remember()
            sys.stdout.flush()
            sys.stderr.flush()
            try:
                job.end(answer)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001  (a result that cannot be pickled)
                traceback.print_exc()
                sys.stderr.flush()
                job.end(Failure("", f"the result of {command.task} cannot be sent: {error!r}"))
                return
            if not isinstance(answer, Result) or not answer.continues:
                return
            del answer
            state.restore()
            gc.collect()
            if self._rules.is_full:
                return
            try:
                command, job = self._next()
            except Empty:
                return
            if self._imported.have_changed():
                return  # This worker has not begun the command, so the service sends it to a new one, which imports the new files.
            self._write_output(command)

    def _next(self) -> tuple[Command, JobConnection]:
        """Wait for the next command. Raises Empty: no command has come for `idle_s` seconds."""
        # `listen` ends this wait with a command.
        try:
            return self._asked.get(timeout=min(_RESTS_S, self._rules.idle_s))
        except Empty:
            give_back_freed()
            return self._asked.get(timeout=max(0.0, self._rules.idle_s - _RESTS_S))

    def _set_up(self, command: Command) -> ProcessState:
        protect_output()
        self._write_output(command)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(self._rules.num_threads)
        if self._rules.limits is not None:
            impose(self._rules.limits, self._give_up)
        return ProcessState()

    def _write_output(self, command: Command) -> None:
        write_output_to(command.log_path, self._rules.limits.logs if self._rules.limits else LogLimits())

    def _give_up(self, message: str) -> None:
        assert self._newest is not None
        self._newest.give_up(message)

    def _run(self, command: Command, job: JobConnection) -> Result | Failure:
        try:
            function: Any = load_object(command.task)
            value = function(pickle.loads(command.request), job)
            return Result(value, self._rules.idle_s > 0 and not command.is_only, _free_device_memory())
        except Exception as error:  # noqa: BLE001  (the service gets every error)
            if isinstance(error, CancelledError) and job.stopping:
                print(error.message, file=sys.stderr, flush=True)
                return Failure(error.reason, error.message)
            traceback.print_exc()
            advice = (self._rules.limits.out_of_memory(error) if self._rules.limits else "") + _lost_of_log()
            known = disk_full_error(error) or error
            if isinstance(known, ModynError):
                return Failure(known.reason, known.message + advice)
            return Failure("", f"{type(error).__name__}: {error}{advice}")


def _lost_of_log() -> str:
    """Return a text with the number of lines that are missing in the log of this process, and the reason; empty: no line is missing."""
    number = dropped_lines()
    return f"; {number} lines of its log could not be written: {why_dropped()}" if number else ""


def give_back_freed() -> None:
    """Return free memory to the system. `MALLOC_TRIM_THRESHOLD_` lets a working worker keep this memory."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # only glibc has it
        trim(0)


def _free_device_memory() -> int:
    """Release unused GPU memory. Returns the bytes in use; 0 without a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    return sum(torch.cuda.memory_reserved(i) for i in range(torch.cuda.device_count()))


def die_with_parent() -> None:
    """End this forked process when the process that requested the fork ends in any way. Processes that workers start need this function, because
    their parent in the kernel is the fork server, which continues to run.
    """
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_exit_after, args=(parent.sentinel,), name="die-with-parent", daemon=True).start()


def _exit_after(sentinel: int) -> None:
    wait([sentinel])  # The end of that process ends this wait. There is no timeout, because this thread does nothing else.
    os._exit(ORPHANED)


def die_with_fork_server() -> None:
    """Make this process end with the fork server, and the fork server end with the service, even if the service is killed.

    The fork server lives while any process holds the writing end of its pipe. The standard library gives this end to each worker. This end would keep
    the worker and the fork server alive. Therefore /dev/null replaces this end in the worker. A worker that starts processes uses the running fork
    server; otherwise the worker would start another fork server and wait for its imports.
    """
    alive = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if alive is not None:
        nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nothing, alive, inheritable=False)
        os.close(nothing)
        forkserver._forkserver.ensure_running = _nothing_to_do  # type: ignore[method-assign]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _nothing_to_do() -> None:
    """Replacement of `ensure_running` in a worker, whose fork server runs."""


class ImportedFiles:
    """Files of modules that this process imports after construction, with the time and size of each file at import.

    Packages that are already imported are left out: such a package changes only together with the service, except for modules that PyTorch's compiler
    writes.
    """

    def __init__(self) -> None:
        self._before = frozenset(sys.modules)
        self._scanned_at = time.time_ns() - _CLOCK_STEP_NS
        self._seen: dict[str, tuple[int, int] | None] = {}

    def remember(self) -> None:
        """Add the files of modules imported since the last call. A file written since that call may differ from the import, and counts as changed."""
        for name in sys.modules.keys() - self._before:
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and file not in self._seen and name.partition(".")[0] not in self._before:
                version = _version_of(file)
                self._seen[file] = version if version is None or version[0] < self._scanned_at else _WRITTEN_SINCE
        self._scanned_at = time.time_ns() - _CLOCK_STEP_NS

    def have_changed(self) -> bool:
        """Whether any of the files was changed or removed."""
        return any(_version_of(file) != version for file, version in self._seen.items())


def _version_of(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
