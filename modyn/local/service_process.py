"""Child processes that end with their parent and leave no zombies."""

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
    """A child of `fork`, with the methods of `subprocess.Popen` that `ChildProcess` needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or the negative number of the signal that ended the process. None while the process runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process. Returns the result of `poll`. Raises TimeoutExpired after `timeout` seconds."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                select.select([descriptor], [], [], timeout)  # woken by the end of the process
            finally:
                os.close(descriptor)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL unless the process has ended."""
        self.send_signal(signal.SIGKILL)


class ChildProcess:
    """A server that runs as a child of this process. Subclasses define `start`, and `url` for the address of the server."""

    url: str = ""
    stop_signal = signal.SIGTERM
    stop_patience_s = 10.0
    """Seconds between `stop_signal` and SIGKILL."""
    _process: subprocess.Popen[bytes] | ForkedProcess | None = None

    @property
    def pid(self) -> int | None:
        """Id of the process; None: the process does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def is_serving(self) -> bool:
        """Whether the server has answered since its start. Always True if `start` waits for the first answer."""
        return True

    def start(self) -> None:
        """Start the server."""
        raise NotImplementedError

    def ask_to_stop(self) -> None:
        """Send the stop signal if the process runs, without waiting for its end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(self.stop_signal)

    def stop(self) -> int | None:
        """Stop the process, or kill it after `stop_patience_s`. Returns the exit code; None: the process was not started."""
        if self._process is None:
            return None
        self.ask_to_stop()
        try:
            self._process.wait(self.stop_patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()  # the process has ended or was killed
        self._process = None
        return code


def become_subreaper() -> None:
    """Make orphaned descendants children of this process, so that this process can collect their exit.

    Otherwise, in a container without an init process, a postmaster would stay a zombie after its parent was killed, and the next start would
    mistake the zombie for a running server.
    """
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(own: Sequence[int]) -> None:
    """Collect the exit of all ended children, except the processes `own`, whose `Popen` objects collect their exit."""
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
    """Start `command` in a separate session, and append its output to `log`.

    The kernel sends `death_signal` to the new process when this process dies. Call this function from the main thread, because the kernel sends the
    signal when the forking thread ends.

    Args: user: user of the new process; None: the user of this process. environment: variables that are added to the environment of this process, or
    override it. cwd: folder in which the command runs; None: the current folder.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_child_setup(death_signal, user, os.getpid()),  # noqa: PLW1509  (threads do not matter at this point of the child)
            env=None if environment is None else {**os.environ, **environment},
            cwd=cwd,
        )


def fork(run: Callable[[], None], log: Path, environment: Mapping[str, str]) -> ForkedProcess:
    """Call `run` in a fork of this process. The fork ends when `run` ends. If `run` raises SystemExit, the code of SystemExit is the exit code. Args:
    log, environment: see `spawn`.

    This process must have no other thread, because locks of other threads would stay locked in the fork. Raises UnavailableError: the kernel refuses
    to make a process.
    """
    assert threading.active_count() == 1
    log.parent.mkdir(parents=True, exist_ok=True)
    setup = _child_setup(signal.SIGTERM, None, os.getpid())
    _flush_output()  # the fork would write buffered output again
    with log.open("ab") as output:
        # Signals are blocked until the child has removed the signal handlers of this process. The handlers would treat a signal to the child as a
        # signal to this process.
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
                f"no process can be started: {error}; end other processes, or raise the limit of this user"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return ForkedProcess(pid)


def _run_to_exit(run: Callable[[], None]) -> NoReturn:
    """Call `run`, then end this process as an interpreter does. Even after an error, the parent's code must not continue in this process."""
    code = 1
    try:
        try:
            run()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
        except BaseException:  # noqa: BLE001 - printed, and this process ends
            traceback.print_exc()
        _flush_output()
    finally:
        os._exit(code & 0xFF)


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # a full disk, a closed stream, or no stream
            stream.flush()


def _leave_parent(output: int) -> None:
    """Begin a session, remove signal handlers, and close files. An open file would keep its lock after the end of the parent."""
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
        # This call must follow the change of the user, which clears the death signal.
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return setup


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not count as running."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def runs_with(pid: int, *arguments: str) -> bool:
    """Whether `pid` runs and has all `arguments` in its command line. The arguments are checked because the kernel reuses process ids."""
    try:
        return is_alive(pid) and {*map(os.fsencode, arguments)} <= {*Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")}
    except OSError:
        return False


def running_pid(path: Path, *arguments: str) -> int | None:
    """Return the process id at the start of a file, if this process runs and has all `arguments` in its command line."""
    try:
        pid = int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if runs_with(pid, *arguments) else None


def packaged_program(package: str, option: str, *parts: str) -> str:
    """Find a program in the wheel `package`. The function does not import the package, because an import makes folders and prints warnings.

    Args: option: field of the system file that replaces the packaged server. Raises: UnavailableError: the package is not installed.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        name = package.replace("_", "-")
        raise UnavailableError(f"the package {name} is not installed; install it, or set {option} in the system file")
    return str(Path(spec.origin).parent.joinpath(*parts))


def log_tail(log: Path, num_lines: int = 12) -> str:
    """Return the last lines of a log, for an error message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-num_lines:])
