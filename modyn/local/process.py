"""Child processes that do not outlive their parent, and that leave no zombies."""

from __future__ import annotations

import ctypes
import os
import pwd
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from modyn.errors import UnavailableError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class ForkedProcess:
    """A child of `fork`. The part of `subprocess.Popen` that `ChildProcess` needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or the signal that ended it with a minus; None: it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return what `poll` does. Raises TimeoutExpired after `timeout` seconds."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL unless it has ended."""
        self.send_signal(signal.SIGKILL)


class ChildProcess:
    """A server that runs as a child of this process. Subclasses define `start`, and `url`, the address at which it answers."""

    url: str = ""
    stop_signal = signal.SIGTERM
    stop_patience_s = 10.0
    """Seconds after `stop_signal` at which the process is killed."""
    _process: subprocess.Popen[bytes] | ForkedProcess | None = None

    @property
    def pid(self) -> int | None:
        """None: it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def is_serving(self) -> bool:
        """Whether it answers since it was started; True where `start` itself waits for that."""
        return True

    def start(self) -> None:
        """Start the server."""
        raise NotImplementedError

    def ask_to_stop(self) -> None:
        """Send the stop signal if the process runs, and do not wait for its end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(self.stop_signal)

    def stop(self) -> int | None:
        """End the process, by force if it does not end when it is asked to. Returns the exit code; None: it was not started."""
        if self._process is None:
            return None
        self.ask_to_stop()
        try:
            self._process.wait(self.stop_patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()  # It has ended, or was killed just now.
        self._process = None
        return code


def become_subreaper() -> None:
    """Make orphans below this process its children, so that it can collect their exit.

    In a container without an init process, a postmaster whose parent was killed would stay a zombie, and the next start would take its
    process id for a running server.
    """
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(own: Sequence[int]) -> None:
    """Collect the exit of children that are not in `own`, whose exit is collected by their `Popen`."""
    try:
        children = [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return
    for pid in children:
        if pid not in own:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def spawn(
    command: Sequence[str],
    log: Path,
    *,
    death_signal: signal.Signals = signal.SIGTERM,
    user: str | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, its output appended to `log`. The kernel sends it `death_signal` when this process dies.

    Call it from the main thread: the kernel ties the signal to the thread that forked.

    Args: user: to run as; None: that of this process. environment: variables beside those of this process, or in their place. cwd: None:
    that of this process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_child_setup(death_signal, user, os.getpid()),  # noqa: PLW1509  (no threads at this point of the child matter)
            env=None if environment is None else {**os.environ, **environment},
            cwd=cwd,
        )


def fork(run: Callable[[], None], log: Path, environment: Mapping[str, str]) -> ForkedProcess:
    """Call `run` in a fork of this process, which ends when `run` does, with the code of its SystemExit; otherwise as `spawn`.

    This process must have no other thread: a lock that one holds would stay locked in the fork.

    Raises: UnavailableError: the kernel makes no process.
    """
    assert threading.active_count() == 1
    log.parent.mkdir(parents=True, exist_ok=True)
    setup = _child_setup(signal.SIGTERM, None, os.getpid())
    _flush_output()  # What waits here would be written by the fork too.
    with log.open("ab") as output:
        # Until the child has given up the handlers of this process, which would take a signal for this process's own.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

        def begin() -> None:
            setup()
            _leave_parent(output.fileno())
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.environ.update(environment)
            run()

        try:
            pid = os.fork()
            if pid == 0:
                _run_to_exit(begin)
        except OSError as error:
            raise UnavailableError(
                f"no process can be made: {error}; end other processes, or raise the limit of this user"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return ForkedProcess(pid)


def _run_to_exit(run: Callable[[], None]) -> NoReturn:
    """Call `run`, then end this process as an interpreter would: nothing may go on where the parent was, whatever raises."""
    code = 1
    try:
        try:
            run()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
        except BaseException:  # noqa: BLE001 - it is printed, and this process ends
            traceback.print_exc()
        _flush_output()
    finally:
        os._exit(code & 0xFF)


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # a full disk, closed, or none
            stream.flush()


def _leave_parent(output: int) -> None:
    """Begin a session, and give up handlers of signals and open files: a lock is held for as long as any process has its file open."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _child_setup(death_signal: signal.Signals, user: str | None, parent: int) -> Callable[[], None]:
    entry = None if user is None else pwd.getpwnam(user)

    def setup() -> None:
        if entry is not None:
            os.setgroups([])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
        # After the change of user, which clears it.
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return setup


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def runs_with(pid: int, *arguments: str) -> bool:
    """Whether `pid` runs and has all `arguments` in its command line: process ids are used again."""
    try:
        return is_alive(pid) and {*map(os.fsencode, arguments)} <= {*Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")}
    except OSError:
        return False


def running_pid(path: Path, *arguments: str) -> int | None:
    """The process whose id begins this file, if it runs and has all `arguments` in its command line."""
    try:
        pid = int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if runs_with(pid, *arguments) else None


def packaged_program(package: str, option: str, *parts: str) -> str:
    """Find a program inside the wheel `package`, without importing it: imports of such wheels set up folders and warnings of their own.

    Args: option: of the system file, to name a server in place of the packaged one.
    Raises: UnavailableError: the package is not installed.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        name = package.replace("_", "-")
        raise UnavailableError(f"the package {name} is not installed; install it, or set {option} in the system file")
    return str(Path(spec.origin).parent.joinpath(*parts))


def log_tail(log: Path, num_lines: int = 12) -> str:
    """The last lines of a log, for an error message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-num_lines:])
