"""Child process that answers requests one after the other, within bounds of memory and time. A request that exceeds these bounds, or crashes, ends
only this process. The child process runs third-party libraries that read users' files.

The service watches the memory of the child process while a request runs, because allocators reserve far more address space than they use. A limit of
the address space stops a single huge allocation. When memory runs out on the machine, the kernel ends the child process first.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final, Literal

from modyn.registry import load_object
from modyn.workers.fork_server import LOST, PROCESS_TABLE, SERVER_DIED, start_worker
from modyn.workers.large_messages import LargeMessages
from modyn.workers.worker_process import ORPHANED, die_with_fork_server, give_back_freed

POLL_S: Final = 0.05
"""Seconds between two polls of a working process. A process fills new memory at about 1 GB/s, and therefore exceeds its bound by little."""
RESERVE_BYTES: Final = 128 << 20
"""If the machine has fewer free bytes of memory than this number, a process that uses more bytes than this number is ended."""
_SLACK_BYTES: Final = 2 << 30
"""Bytes of address space that allocators and thread stacks reserve beyond the memory that they use."""
_START_S: Final = 60.0
"""Seconds that a new process may take to import its modules."""
_END_S: Final = 5.0
"""Seconds to wait for the end of a killed process. A killed process ends immediately, unless it waits in the kernel for a disk. After this time, the
service stops waiting for the process.
"""

_WORK_SHARE: Final = 0.1
"""If a process gives no answer in time, the request is the cause only if the process used a processor for at least this share of the time. The share
is small, because a process gets less processor time on a busy machine.
"""

_CRASHES: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP)
"""Signals that a process causes by its own faults. Other signals come from other processes."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """memory_bytes: limit on the memory of the process. silence_s: longest time until the next answer. idle_s: time without a request after which the
    process ends.
    """

    memory_bytes: int
    silence_s: float
    idle_s: float = 10.0


class EndedError(Exception):
    """The process ended before it had answered.

    Args: how: predicate of a sentence about the process. by_request: whether the request caused the end, and would cause it again; otherwise the
    machine caused the end. bound: the bound that was exceeded, if any. lost: whether something other than the request ended the process, perhaps
    before the request began.
    """

    def __init__(
        self, how: str, *, by_request: bool = False, bound: Literal["memory", "time"] | None = None, lost: bool = False
    ) -> None:
        super().__init__(how)
        self.how, self.by_request, self.bound, self.lost = how, by_request, bound, lost

    @property
    def by_machine(self) -> bool:
        """Whether the machine lacks memory or processes, which any request needs."""
        return not self.by_request and self.bound is None and not self.lost


class AnswerError(Exception):
    """The answering function raised an error. kind: class of the error. trace: traceback of the error."""

    def __init__(self, kind: str, trace: str) -> None:
        super().__init__(kind)
        self.kind, self.trace = kind, trace


@dataclass(frozen=True, slots=True)
class _Ready:
    """Message of the process: the process is ready for requests."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Message of the process: one answer. The process then continues with the same request."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Done:
    """Message of the process: the request has no more answers. continues: whether the process takes further requests."""

    continues: bool


@dataclass(frozen=True, slots=True)
class _Raised:
    """Last message of the process: the answering function raised an error, and the process ends."""

    kind: str
    trace: str
    out_of_memory: bool


class BoundedProcess:
    """Handle of one child process, for the service. One thread at a time may use the object. Any thread may call `kill`.

    Args:
        function: `package.module:function`, a generator function of one picklable request that yields the answers.
        name: name of the process in tools. preload, server_idle_s: see `WorkerPool`.
    Raises: EndedError: the process cannot be started.
    """

    def __init__(self, function: str, bounds: Bounds, name: str, preload: Sequence[str], server_idle_s: float) -> None:
        self._bounds = bounds
        context = get_context("forkserver")
        self._connection, theirs = context.Pipe()
        self._messages = LargeMessages(self._connection)
        self._process: ForkServerProcess = context.Process(target=_run, args=(function, bounds, theirs), name=name)
        with theirs:
            try:
                start_worker(self._process, preload, server_idle_s)
            except (OSError, EOFError) as error:
                self._connection.close()
                raise EndedError(f"could not be started: {error!r}", lost=isinstance(error, SERVER_DIED)) from error
        self._ready = select.poll()
        for descriptor in (self._connection.fileno(), self._process.sentinel):
            self._ready.register(descriptor, select.POLLIN)
        self._is_ready = False
        self.takes_requests = True
        """Whether the process has answered all requests, and is not known to have ended."""

    @property
    def pid(self) -> int:
        """Id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether an idle process has ended."""
        return bool(self._ready.poll(0))

    def ask(self, request: object) -> Iterator[Any]:
        """Yield the answers to a request. A caller that stops before the last answer ends the process.

        Raises: EndedError, AnswerError.
        """
        self.takes_requests = continues = False
        content = pickle.dumps(request)
        try:
            # Without this check, sending a large request would block without a deadline until the process reads.
            if not self._is_ready:
                self._await_start()
            with contextlib.suppress(OSError):  # the process has ended; `_next` reports this
                self._connection.send_bytes(content)
            while not isinstance(message := self._next(self._bounds.silence_s), _Done):
                if isinstance(message, _Raised):
                    raise self._error_of(message)
                assert isinstance(message, _Answer)
                yield message.value
            continues = message.continues
        finally:
            if continues:
                self.takes_requests = True
            else:
                self.end()

    def kill(self) -> None:
        """Kill the process."""
        with PROCESS_TABLE:
            if not wait([self._process.sentinel], 0):  # the id of an ended process may belong to another process
                self._process.kill()

    def end(self) -> int | None:
        """Kill the process, and return its exit code; None: the process does not end, because it waits for a disk."""
        self._connection.close()
        self.kill()
        if not wait([self._process.sentinel], _END_S):  # woken by the end of the process
            return None
        with PROCESS_TABLE:  # the process has ended, so the join does not wait
            self._process.join()
            return self._process.exitcode

    def _await_start(self) -> None:
        try:
            self._is_ready = isinstance(self._next(_START_S), _Ready)
        except EndedError as ended:
            raise EndedError(f"did not start: it {ended.how}") from ended

    def _next(self, silence_s: float) -> object:
        """Wait for the next message. Raises EndedError."""
        deadline, worked_before_s = time.monotonic() + silence_s, -1.0
        # A message or the end of the process ends this wait. The bounds are checked every `POLL_S` seconds, and `silence_s` bounds the whole wait.
        while not (ready := self._ready.poll(1000 * POLL_S)):
            if worked_before_s < 0:  # measured at the first poll; most messages arrive earlier
                worked_before_s = _processor_seconds_of(self.pid)
            if (ended := self._exceeded_memory()) is not None:
                raise ended
            if time.monotonic() > deadline:
                raise _silence_error(silence_s, _processor_seconds_of(self.pid) - worked_before_s)
        is_open = any(descriptor == self._connection.fileno() for descriptor, _ in ready)
        # The last message may have arrived after the check of the connection and before the check of the process.
        if is_open or self._connection.poll():
            try:
                return self._messages.receive()
            except EOFError:
                pass  # the process ended, perhaps in the middle of a message
            except OSError as error:
                raise EndedError(f"gave an answer that could not be received: {error.strerror or error}") from error
        raise self._why_ended()

    def _exceeded_memory(self) -> EndedError | None:
        """Return an error if the working process takes too much memory, or if the machine has no memory left."""
        held = _memory_of(self.pid)
        if held > self._bounds.memory_bytes:
            return _memory_error(self._bounds)
        if held > RESERVE_BYTES and available_memory() < RESERVE_BYTES:
            how = f"was ended because memory ran out on the machine, of which it held {held:,} bytes"
            return EndedError(how)
        return None

    def _why_ended(self) -> EndedError:
        """Return why the process ended by itself."""
        # The pipe is closed. The wait ends when the kernel has ended the process.
        wait([self._process.sentinel], _END_S)
        code = self.end()
        if code is None or code in (LOST, ORPHANED):
            return EndedError("was lost with the process that it was forked from", lost=True)
        if code < 0 and -code not in _CRASHES:
            hint = ", which is what the kernel sends when memory runs out" if -code == signal.SIGKILL else ""
            return EndedError(f"was ended by {_exit_text(code)}{hint}", lost=True)
        # A C++ program aborts when it gets no memory. Exit code 0 means that the process ended because it was idle.
        by_request = -code != signal.SIGABRT or not _may_be_refused_memory(self._bounds.memory_bytes)
        return EndedError(f"crashed: {_exit_text(code)}", by_request=by_request, lost=code == 0)

    def _error_of(self, message: _Raised) -> Exception:
        if not message.out_of_memory:
            return AnswerError(message.kind, message.trace)
        if _may_be_refused_memory(self._bounds.memory_bytes):
            return EndedError("was refused memory by the kernel, which has committed all of it")
        return _memory_error(self._bounds)


def available_memory() -> int:
    """Return the bytes of memory that processes can still allocate, on the machine and in this process's control groups (version 2)."""
    groups = Path("/proc/self/cgroup").read_text().splitlines() if os.path.exists("/proc/self/cgroup") else []
    own = [line.removeprefix("0::/") for line in groups if line.startswith("0::/")]
    left = [number for group in own for number in left_in_groups(Path("/sys/fs/cgroup"), group)]
    return min([_kibibytes("/proc/meminfo", "MemAvailable") << 10, *left])


def left_in_groups(top: Path, group: str) -> Iterator[int]:
    """Yield the bytes left below the limit of a control group and of each of its parents that has a limit."""
    folder = top / group
    while folder.is_relative_to(top):
        if (limit := _number(folder / "memory.max")) is not None:
            # The kernel can free the memory of cached files that were not used lately.
            fields = (folder / "memory.stat").read_text().split()
            cached = int(fields[fields.index("inactive_file") + 1])
            yield limit - (_number(folder / "memory.current") or 0) + cached
        folder = folder.parent


def _number(path: Path) -> int | None:
    """Read the number in a file of a control group; None: there is no file, or no limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _may_be_refused_memory(num_bytes: int) -> bool:
    """Whether the kernel may refuse `num_bytes` to a process that is within its own limit. The kernel does so only if overcommitment of memory is
    disabled. Otherwise the kernel kills a process when memory runs out.
    """
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() != "2":
        return False
    promised = _kibibytes("/proc/meminfo", "CommitLimit") - _kibibytes("/proc/meminfo", "Committed_AS")
    return promised << 10 < num_bytes


def _memory_of(pid: int) -> int:
    """Return the private memory of a process in bytes, swapped memory included; 0: the process has ended."""
    try:
        return (_kibibytes(f"/proc/{pid}/status", "RssAnon") + _kibibytes(f"/proc/{pid}/status", "VmSwap")) << 10
    except (OSError, LookupError):
        return 0


def _kibibytes(path: str, name: str) -> int:
    """Read a field of a file in /proc. Raises OSError, LookupError: the file or field is missing, for example because the process has ended."""
    with open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    raise LookupError(f"{path} has no {name}")


def _processor_seconds_of(pid: int) -> float:
    """Return the processor time of all threads of a process, in seconds; 0: the process has ended."""
    with contextlib.suppress(OSError):
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _silence_error(silence_s: float, worked_s: float) -> EndedError:
    """Return the error of a process without a timely answer. If a disk, a mount or the machine made the process wait, the request is not the
    cause.
    """
    by_request = worked_s >= _WORK_SHARE * silence_s
    waited = "" if by_request else ", in which it waited: for a disk, a server or a processor"
    return EndedError(f"gave no answer for {silence_s:g} s{waited}", by_request=by_request, bound="time")


def _memory_error(bounds: Bounds) -> EndedError:
    return EndedError(f"took more than {bounds.memory_bytes:,} bytes of memory", by_request=True, bound="memory")


def _exit_text(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


# The functions below run in the child process.


def _run(function: str, bounds: Bounds, connection: Connection[Any, Any]) -> None:
    """Main function of the process: answer requests until the process is idle for too long."""
    # Ctrl-C reaches the whole process group; the service decides when its processes end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_fork_server()
    faulthandler.enable()  # writes the traceback of a crash to the service's log
    Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer: Any = load_object(function)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = (_kibibytes("/proc/self/status", "VmSize") << 10) + bounds.memory_bytes + _SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    messages = LargeMessages(connection)
    _send(messages, _Ready())
    while True:
        try:
            if not connection.poll(bounds.idle_s):  # a request or the end of the service ends this wait
                os._exit(0)
            request = connection.recv_bytes()
        except (EOFError, OSError):  # the service has closed the pipe, or has ended
            os._exit(ORPHANED)
        # If the process still holds much memory after a request, the process ends, so that the next request has enough memory.
        last = _answer(answer, request, messages, bounds.memory_bytes // 4)
        _send(messages, last)
        if not isinstance(last, _Done) or not last.continues:
            os._exit(0)


def _answer(
    answer: Callable[[Any], Iterator[object]], request: bytes, messages: LargeMessages, kept_bytes: int
) -> _Done | _Raised:
    """Answer a request. Each answer is sent immediately, so that answers before a crash arrive. Returns the last message."""
    try:
        for value in answer(pickle.loads(request)):
            _send(messages, _Answer(value))
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the service gets every error)
        return _Raised(type(error).__name__, traceback.format_exc(), isinstance(error, MemoryError))
    # Reading the peak is cheap. The current memory is read only if the peak was high.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    if most > kept_bytes:
        give_back_freed()
    return _Done(continues=most <= kept_bytes or _memory_of(os.getpid()) <= kept_bytes)


def _send(messages: LargeMessages, message: object) -> None:
    try:
        messages.send(message)
    except EOFError:  # the service has ended, or has closed the pipe
        os._exit(ORPHANED)
