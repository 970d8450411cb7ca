"""A child process that answers requests one after the other, within bounds of memory and time: a request that takes more, or makes it crash, ends
this process and nothing else. For libraries of third parties that read files of users.

Its memory is watched from outside while a request runs, because allocators reserve far more address space than they use; the limit of the
address space stands behind that, for what is asked at once. It is the first that the kernel ends when memory runs out.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
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
from modyn.workers.process import ORPHANED, die_with_fork_server, give_back_freed

POLL_S: Final = 0.05
"""Seconds between two polls of a process that works. New memory fills at about 1 GB/s, so that it exceeds its bound by little."""
RESERVE_BYTES: Final = 128 << 20
"""A process that holds more than this ends when less than this is left on the machine."""
_SLACK_BYTES: Final = 2 << 30
"""Of address space that allocators and stacks of threads reserve beyond what they use."""
_START_S: Final = 60.0
"""How long a new process may import what it needs before its first request counts."""
_END_S: Final = 5.0
"""A killed process ends at once, but for one that waits in the kernel for a disk; that one is left alone."""

_WORK_SHARE: Final = 0.1
"""A process is at fault only if it had a processor for this part of the time until an answer. On a busy machine it gets little."""

_CRASHES: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP)
"""Signals that a process gets for what it did. Others come from elsewhere."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """memory_bytes: that the process may take. silence_s: seconds that it may work until its next answer. idle_s: without a request, after which it
    ends."""

    memory_bytes: int
    silence_s: float
    idle_s: float = 10.0


class EndedError(Exception):
    """The process ended before it had answered.

    Args: how: predicate of a sentence on the process. by_request: what it was asked did it, and would do it again; else the machine did.
        bound: which one was exceeded, if that was it. lost: something else ended it, perhaps before it began.
    """

    def __init__(
        self, how: str, *, by_request: bool = False, bound: Literal["memory", "time"] | None = None, lost: bool = False
    ) -> None:
        super().__init__(how)
        self.how, self.by_request, self.bound, self.lost = how, by_request, bound, lost

    @property
    def by_machine(self) -> bool:
        """Whether the machine lacks something that any request needs: memory, or a process."""
        return not self.by_request and self.bound is None and not self.lost


class AnswerError(Exception):
    """The function that answers raised. kind: class of the error. trace: its traceback."""

    def __init__(self, kind: str, trace: str) -> None:
        super().__init__(kind)
        self.kind, self.trace = kind, trace


@dataclass(frozen=True, slots=True)
class _Ready:
    """From the process: it takes requests."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """From the process, which goes on with the same request."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Done:
    """From the process: that was all. goes_on: whether it takes further requests."""

    goes_on: bool


@dataclass(frozen=True, slots=True)
class _Raised:
    """From the process, which ends: the function that answers raised."""

    kind: str
    trace: str
    out_of_memory: bool


class BoundedProcess:
    """The service's end of one process. Used by one thread at a time; `kill` by any.

    Args:
        function: `package.module:function`, a generator function of one picklable request: what it yields are the answers.
        name: of the process, for tools that show it. preload: of the fork server, see `WorkerPool`.
        server_idle_s: as of `WorkerPool`.
    Raises: EndedError: it cannot be started.
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
        """Whether it lives, as far as is known, and has answered all that it was asked."""

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it is gone, if it is not working."""
        return bool(self._ready.poll(0))

    def ask(self, request: object) -> Iterator[Any]:
        """Yield the answers to a request. A caller that leaves before the last one ends the process.

        Raises: EndedError, AnswerError.
        """
        self.takes_requests = goes_on = False
        content = pickle.dumps(request)
        try:
            if not self._is_ready:  # it reads nothing yet, and a large request would wait for that without a deadline
                self._await_start()
            with contextlib.suppress(OSError):  # it has ended: that is found below
                self._connection.send_bytes(content)
            while not isinstance(message := self._next(self._bounds.silence_s), _Done):
                if isinstance(message, _Raised):
                    raise self._raised(message)
                assert isinstance(message, _Answer)
                yield message.value
            goes_on = message.goes_on
        finally:
            if goes_on:
                self.takes_requests = True
            else:
                self.end()

    def kill(self) -> None:
        """End the process at once."""
        with PROCESS_TABLE:
            if not wait([self._process.sentinel], 0):  # else its id may be another one's by now
                self._process.kill()

    def end(self) -> int | None:
        """End the process, and return its exit code; None: it does not end, because it waits for a disk."""
        self._connection.close()
        self.kill()
        if not wait([self._process.sentinel], _END_S):  # Woken by the end of the killed process; at most so long.
            return None
        with PROCESS_TABLE:  # it has ended: the join does not wait
            self._process.join()
            return self._process.exitcode

    def _await_start(self) -> None:
        try:
            self._is_ready = isinstance(self._next(_START_S), _Ready)
        except EndedError as ended:
            raise EndedError(f"did not start: it {ended.how}") from ended

    def _next(self, silence_s: float) -> object:
        """The next message. Raises EndedError."""
        deadline, worked_before_s = time.monotonic() + silence_s, -1.0
        # Woken by a message or the end of the process; every `POLL_S` its bounds are checked, and `silence_s` bounds the whole wait.
        while not (ready := self._ready.poll(1000 * POLL_S)):
            if worked_before_s < 0:  # at the first look: most messages come before it
                worked_before_s = _processor_seconds_of(self.pid)
            if (ended := self._exceeded_memory()) is not None:
                raise ended
            if time.monotonic() > deadline:
                raise _was_silent(silence_s, _processor_seconds_of(self.pid) - worked_before_s)
        is_open = any(descriptor == self._connection.fileno() for descriptor, _ in ready)
        # Its last message may have come between the look at the connection and that at the process.
        if is_open or self._connection.poll():
            try:
                return self._messages.receive()
            except EOFError:
                pass  # Also of a message that breaks off.
            except OSError as error:
                raise EndedError(f"gave an answer that could not be received: {error.strerror or error}") from error
        raise self._ended()

    def _exceeded_memory(self) -> EndedError | None:
        """Whether the working process takes too much memory, or there is none left."""
        held = _memory_of(self.pid)
        if held > self._bounds.memory_bytes:
            return _took_too_much(self._bounds)
        if held > RESERVE_BYTES and available_memory() < RESERVE_BYTES:
            how = f"was ended because memory ran out on the machine, of which it held {held:,} bytes"
            return EndedError(how)
        return None

    def _ended(self) -> EndedError:
        """Why the process has ended by itself."""
        # Woken when the kernel has ended the process, whose pipe is closed already; at most so long.
        wait([self._process.sentinel], _END_S)
        code = self.end()
        if code is None or code in (LOST, ORPHANED):
            return EndedError("was lost with the process that it was forked from", lost=True)
        if code < 0 and -code not in _CRASHES:
            hint = ", which is what the kernel sends when memory runs out" if -code == signal.SIGKILL else ""
            return EndedError(f"was ended by {_exit_text(code)}{hint}", lost=True)
        # C++ that finds no memory aborts. One that ends of idleness has the exit code 0.
        by_request = -code != signal.SIGABRT or not _may_be_refused_memory(self._bounds.memory_bytes)
        return EndedError(f"crashed: {_exit_text(code)}", by_request=by_request, lost=code == 0)

    def _raised(self, message: _Raised) -> Exception:
        if not message.out_of_memory:
            return AnswerError(message.kind, message.trace)
        if _may_be_refused_memory(self._bounds.memory_bytes):
            return EndedError("was refused memory by the kernel, which has committed all of it")
        return _took_too_much(self._bounds)


def available_memory() -> int:
    """Bytes of memory that processes could still take: of the machine, and of the control groups (version 2) that this process is in."""
    groups = Path("/proc/self/cgroup").read_text().splitlines() if os.path.exists("/proc/self/cgroup") else []
    own = [line.removeprefix("0::/") for line in groups if line.startswith("0::/")]
    left = [number for group in own for number in left_in_groups(Path("/sys/fs/cgroup"), group)]
    return min([_kibibytes("/proc/meminfo", "MemAvailable") << 10, *left])


def left_in_groups(top: Path, group: str) -> Iterator[int]:
    """Bytes that are left below the limit of a control group, and of each one that it is in and that has a limit."""
    folder = top / group
    while folder.is_relative_to(top):
        if (limit := _number(folder / "memory.max")) is not None:
            # Of cached files, the kernel takes back what has not been used lately.
            fields = (folder / "memory.stat").read_text().split()
            cached = int(fields[fields.index("inactive_file") + 1])
            yield limit - (_number(folder / "memory.current") or 0) + cached
        folder = folder.parent


def _number(path: Path) -> int | None:
    """The number in a file of a control group; None: there is none, or no limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _may_be_refused_memory(num_bytes: int) -> bool:
    """Whether the kernel may refuse a process `num_bytes` although they are within its own limit: where it is set not to promise more memory than
    there is. Otherwise it refuses nothing, and ends a process when memory runs out."""
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() != "2":
        return False
    promised = _kibibytes("/proc/meminfo", "CommitLimit") - _kibibytes("/proc/meminfo", "Committed_AS")
    return promised << 10 < num_bytes


def _memory_of(pid: int) -> int:
    """Bytes of memory that a process has for itself, swapped ones included; 0: it has ended."""
    try:
        return (_kibibytes(f"/proc/{pid}/status", "RssAnon") + _kibibytes(f"/proc/{pid}/status", "VmSwap")) << 10
    except (OSError, LookupError):
        return 0


def _kibibytes(path: str, name: str) -> int:
    """A field of a file of /proc. Raises: OSError, LookupError: it is not there, as of a process that has ended."""
    with open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    raise LookupError(f"{path} has no {name}")


def _processor_seconds_of(pid: int) -> float:
    """Processor time of all threads of a process; 0: it has ended."""
    with contextlib.suppress(OSError):
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _was_silent(silence_s: float, worked_s: float) -> EndedError:
    """Of a disk, a mount or a machine that lets the process wait, what it was asked is innocent."""
    by_request = worked_s >= _WORK_SHARE * silence_s
    waited = "" if by_request else ", in which it waited: for a disk, a server or a processor"
    return EndedError(f"gave no answer for {silence_s:g} s{waited}", by_request=by_request, bound="time")


def _took_too_much(bounds: Bounds) -> EndedError:
    return EndedError(f"took more than {bounds.memory_bytes:,} bytes of memory", by_request=True, bound="memory")


def _exit_text(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


# In the process


def _run(function: str, bounds: Bounds, connection: Connection[Any, Any]) -> None:
    """Main function of the process: answer until there is nothing to answer."""
    # Ctrl-C reaches the whole process group; the service decides when its processes end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_fork_server()
    faulthandler.enable()  # the place of a crash goes to the log of the service
    Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer: Any = load_object(function)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = (_kibibytes("/proc/self/status", "VmSize") << 10) + bounds.memory_bytes + _SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    # What the fork server imported is never collected: to look through it would copy its pages.
    gc.freeze()
    messages = LargeMessages(connection)
    _send(messages, _Ready())
    while True:
        try:
            if not connection.poll(bounds.idle_s):
                os._exit(0)
            request = connection.recv_bytes()
        except (EOFError, OSError):  # the service is done with it, or gone
            os._exit(ORPHANED)
        # One that still holds much once it has answered ends: the next request is to find its memory free.
        last = _answer(answer, request, messages, bounds.memory_bytes // 4)
        _send(messages, last)
        if not isinstance(last, _Done) or not last.goes_on:
            os._exit(0)


def _answer(
    answer: Callable[[Any], Iterator[object]], request: bytes, messages: LargeMessages, kept_bytes: int
) -> _Done | _Raised:
    """Send each answer at once, so that those before a crash arrive; return the last message."""
    try:
        for value in answer(pickle.loads(request)):
            _send(messages, _Answer(value))
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the service gets every error)
        return _Raised(type(error).__name__, traceback.format_exc(), isinstance(error, MemoryError))
    # The most that it ever held is known at no cost.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    if most > kept_bytes:
        give_back_freed()
    return _Done(goes_on=most <= kept_bytes or _memory_of(os.getpid()) <= kept_bytes)


def _send(messages: LargeMessages, message: object) -> None:
    try:
        messages.send(message)
    except EOFError:  # the service is gone, or does not want the answer any more
        os._exit(ORPHANED)
