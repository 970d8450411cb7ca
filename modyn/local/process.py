"""Child processes that do not outlive their parent, and that leave no zombies."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans below this process become its children, so that it can reap them.

    A postmaster whose parent was killed would stay a zombie in a container without an init, and the next start would take its
    process id for a running server.
    """
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(own: Sequence[int] = ()) -> None:
    """Collects the exit of children that nobody else here waits for (`own` are left to their owners)."""
    for pid in _children():
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
    """Starts `command` in its own session with output appended to `log`; the kernel sends it `death_signal` when this process dies.

    Call it from the main thread: the kernel ties the signal to the thread that forked.
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


def _child_setup(death_signal: signal.Signals, user: str | None, parent: int) -> Callable[[], None]:
    ids = _user_ids(user)

    def setup() -> None:
        if ids is not None:
            os.setgroups([])
            os.setgid(ids[1])
            os.setuid(ids[0])
        # After the change of user, which clears it.
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return setup


def _user_ids(user: str | None) -> tuple[int, int] | None:
    if user is None:
        return None
    import pwd

    entry = pwd.getpwnam(user)
    return entry.pw_uid, entry.pw_gid


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def stop_process(process: subprocess.Popen[bytes], first: signal.Signals = signal.SIGTERM, patience_s: float = 10.0) -> int:
    """Asks with `first`, waits, then kills. Returns the exit code."""
    if process.poll() is None:
        process.send_signal(first)
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock of this file."""
    try:
        with path.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
