"""One worker process of the fork server: it does what its service asks over a pipe, one command after the other, until its session ends."""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import gc
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import OrderedDict
from dataclasses import dataclass
from multiprocessing import forkserver, parent_process
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from typing import Any, Final

from modyn.errors import CancelledError, ModynError, UnavailableError, UserCodeError
from modyn.log_files import LogLimits, dropped_lines, protect_output, why_dropped, write_output_to
from modyn.registry import load_object
from modyn.workers.imported_files import ImportedFiles
from modyn.workers.limits import WorkerLimits, impose
from modyn.workers.messages import Begun, Command, Failure, Progress, Result, Stop
from modyn.workers.process_state import ProcessState

_PR_SET_PDEATHSIG: Final = 1
_RESTS_S: Final = 1.0
"""Seconds without a command after which a worker gives back the memory that it has freed."""
ORPHANED: Final = 86
"""Exit code of a process whose service is gone."""


@dataclass(frozen=True, slots=True)
class SessionRules:
    """What bounds the session of a worker process.

    num_threads: of PyTorch. idle_s: seconds without a command after which it ends; 0: it ends after its first one. models_bytes: of
    weights that it keeps.
    """

    num_threads: int = 1
    limits: WorkerLimits | None = None
    idle_s: float = 0.0
    models_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether this process has taken so much memory that a further command should find a new one: half of `worker_memory_bytes`, or
        without that limit an eighth of the machine's memory. If so, it has given back before what it could."""
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
    """Weights that a session keeps between its commands, so that the next one need not fetch what this one had. Not for threads.

    The content of safetensors files by the hash of their weights: the most recently used ones, `limit` bytes in all. And of the version that the
    session has stored last, what goes with its weights.

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
        """Of the version that was stored last, as the client of model storage wrote it down; None: none was, or its weights are not kept."""

    def __len__(self) -> int:
        return len(self._contents)

    @property
    def limit(self) -> int:
        """Bytes that are kept at most; larger files need not be read for `put`."""
        return self._limit

    def get(self, weights_sha256: str) -> bytes | None:
        """The content of the file with these weights, if it is kept; it counts as used now.

        Args: weights_sha256: as `modyn.models.weights.weights_sha256` computes it.
        """
        content = self._contents.get(weights_sha256)
        if content is not None:
            self._contents.move_to_end(weights_sha256)
        return content

    def put(self, weights_sha256: str, content: bytes) -> None:
        """Keep a file; the least recently used ones make space. One beyond the limit is not kept."""
        if len(content) > self._limit:
            return
        self._num_bytes += len(content) - len(self._contents.pop(weights_sha256, b""))
        self._contents[weights_sha256] = content
        while self._num_bytes > self._limit:
            _, old = self._contents.popitem(last=False)
            self._num_bytes -= len(old)


class JobConnection:
    """The connection of a job to its service. Safe to use from several threads.

    Args: device: where the job was placed, cpu or cuda:N. models: weights that earlier jobs of the session left. memory: what else they
        left by name, in which a job leaves what a later one may use; it ends with the session.
        sending: held while a message is sent over `connection`, which the jobs of a session use one after the other.
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
        self._stopping = threading.Event()  # Set by the thread that listens to the service; the one that works looks at it.
        self._sending = sending or threading.Lock()
        self._ended = False

    def send(self, message: object) -> None:
        """Push one picklable progress message. A few a second, not one a batch: each costs a system call.

        What is sent after the end of the job, by a thread that outlives it, is dropped.
        """
        self._send(Progress(message))

    def begin(self) -> None:
        """Report that the job has begun."""
        self._send(Begun())

    def end(self, answer: Result | Failure) -> None:
        """Send the last message. Raises what pickling raises, and OSError when the service is gone."""
        self._send(answer)
        self._ended = True

    @property
    def stopping(self) -> bool:
        """Whether the job was asked to stop. A cheap look, made once a batch; raise CancelledError then."""
        return self._stopping.is_set()

    def check(self) -> None:
        """Raise CancelledError if the job was asked to stop."""
        if self.stopping:
            raise CancelledError(f"{self.name} was stopped on request")

    def ask_to_stop(self) -> None:
        """Make `stopping` true."""
        self._stopping.set()

    def give_up(self, message: str) -> None:
        """End this process with a UserCodeError, from another thread than the one that works and cannot be interrupted."""
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
    os.environ.pop("PYTHONSAFEPATH", None)  # of the fork server: scripts that user code starts find modules beside them
    parent = parent_process()
    assert parent is not None
    worker = _Worker(rules, connection)
    threading.Thread(target=worker.listen, args=(parent.sentinel,), name="listener", daemon=True).start()
    try:
        worker.work()
    except OSError:  # the service is gone
        traceback.print_exc()
        os._exit(ORPHANED)
    # To unload PyTorch in order takes a tenth of a second, for which the next training would wait.
    os._exit(0)


class _Worker:
    """The session of this process: commands that wait, and what is kept between them."""

    def __init__(self, rules: SessionRules, connection: Connection[Any, Any]) -> None:
        self._rules = rules
        self._connection = connection
        self._asked: SimpleQueue[tuple[Command, JobConnection]] = SimpleQueue()
        self._newest: JobConnection | None = None
        self._models = KeptModels(rules.models_bytes)
        self._memory: dict[str, Any] = {}
        # One message at a time on the connection: the thread that watches the limits sends, too. See `JobConnection`.
        self._sending = threading.Lock()
        self._imported = ImportedFiles()

    def listen(self, sentinel: int) -> None:
        """Receive what the service asks. Ends the process when the service closes the pipe, or ends: a worker must not outlive it, however
        that happens."""
        while True:
            # Woken by a message, a closed pipe, or the end of the service. Not bounded: a worker may idle for as long as its service lives.
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
            elif self._newest is not None:  # it was sent behind its command, and before the next one
                self._newest.ask_to_stop()

    def work(self) -> None:
        """Do what is asked until the session ends: by a failure, for lack of commands, or for what it has become."""
        command, job = self._asked.get()  # Ends: `listen` puts a command, or ends the process with the service.
        state = self._set_up(command)
        while True:
            job.begin()
            answer = self._do(command, job)
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
            if not isinstance(answer, Result) or not answer.goes_on:
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
                return  # The service asks a new worker, which imports them anew: this one has not begun.
            self._write_output(command)

    def _next(self) -> tuple[Command, JobConnection]:
        """The next command. Raises Empty: none has come for `idle_s`."""
        # Woken by `listen` with the command.
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
        # What the fork server imported is never collected: to look through it would copy its pages.
        gc.freeze()
        return ProcessState()

    def _write_output(self, command: Command) -> None:
        write_output_to(command.log_path, self._rules.limits.logs if self._rules.limits else LogLimits())

    def _give_up(self, message: str) -> None:
        assert self._newest is not None
        self._newest.give_up(message)

    def _do(self, command: Command, job: JobConnection) -> Result | Failure:
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
            # The reason is that of a service that cannot be reached, because the request may succeed once there is room.
            if not isinstance(error, ModynError) and _is_disk_full(error):
                return Failure(UnavailableError.reason, f"the disk is full: {error}; free space there{advice}")
            if isinstance(error, ModynError):
                return Failure(error.reason, error.message + advice)
            return Failure("", f"{type(error).__name__}: {error}{advice}")


def _is_disk_full(error: Exception) -> bool:
    """Whether a disk or a quota is full. Libraries in C++ and Rust say it by the text alone."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return os.strerror(errno.ENOSPC) in str(error)


def _lost_of_log() -> str:
    """What is missing in the log of this process, and why; empty: nothing."""
    number = dropped_lines()
    return f"; {number} lines of its log could not be written: {why_dropped()}" if number else ""


def give_back_freed() -> None:
    """Give memory that was freed back to the system: while a worker works, `MALLOC_TRIM_THRESHOLD_` lets it keep that."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc alone
        trim(0)


def _free_device_memory() -> int:
    """Give back the GPU memory that nothing uses; return what is left in use. 0 without a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    return sum(torch.cuda.memory_reserved(i) for i in range(torch.cuda.device_count()))


def die_with_parent() -> None:
    """Make this process of the fork server end when the process that asked for it ends, however that happens. For worker processes
    that start further ones: the parent in the kernel's sense is the fork server, which lives on."""
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_exit_after, args=(parent.sentinel,), name="die-with-parent", daemon=True).start()


def _exit_after(sentinel: int) -> None:
    wait([sentinel])  # Woken by the end of that process. Not bounded: this thread has nothing else to do.
    os._exit(ORPHANED)


def die_with_fork_server() -> None:
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
