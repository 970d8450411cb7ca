"""Version, lock and permissions of the folders that contain the state of services.

A small file in each state folder contains the version. A service checks the version before it opens any other file of the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from pathlib import Path
from typing import Final, TextIO

from modyn.atomic_write import make_folder, sync, write_atomically
from modyn.errors import ConfigError, ConflictError, SecurityError

STATE_VERSION = 5
"""Version of the state on disk. Increase this number with every change of a file or table that the previous version cannot read, or would misread.
Numbers of migrations begin with this number, so that a database of another version is refused too."""
_MARK = "state_version"
SERVING_FILE: Final = "serving"
"""File in a service's folder that contains the service's address. The service writes this file when it answers calls."""
SHARED_MEMORY: Final = Path("/dev/shm")
"""Folder whose files are in memory."""


def check_state(folder: Path) -> None:
    """Check that `folder` is empty or missing, or was written by this version. The check changes nothing.

    Raises: ConfigError: another version wrote the folder. The message names the found version, and gives advice.
    """
    mark = folder / _MARK
    try:
        entries = sorted(path.name for path in folder.iterdir() if not path.name.startswith(_MARK))
        found = mark.read_text(errors="replace").strip() if mark.exists() else ""
    except OSError:  # the folder is missing, or the next code that uses it will report the error
        return
    if found == str(STATE_VERSION) or (not found and not entries):
        return
    shown = ", ".join(entries[:3]) + (", …" if len(entries) > 3 else "")
    raise ConfigError(
        f"{folder} was written by another version of Modyn: it has "
        f"{f'state version {found[:20]}' if found else f'no file {_MARK}'} and holds {shown or 'nothing else'}; this version reads and "
        f"writes state version {STATE_VERSION} only. Nothing was changed. Continue with the version that wrote it; or set another "
        "state_dir, or move this one away, and register the datasets again: their own files are not in it, but runs and models are. If only "
        f"{mark} was lost or damaged, restore it"
    )


def claim_state(folder: Path) -> None:
    """Check `folder`, create it if it is missing, make it private to its user, and mark it with STATE_VERSION. Raises: see `check_state`."""
    check_state(folder)
    make_private_folder(folder)
    if (folder / _MARK).exists():
        sync(
            folder
        )  # A killed process may have left the mark unsynced. If a crash then removed the mark, later files would be refused.
    else:
        write_atomically(folder / _MARK, [f"{STATE_VERSION}\n".encode()])


def keep_private() -> None:
    """Make future files and folders of this process and its children private to their user. Call this function before any thread starts."""
    os.umask(0o077)


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its user can enter; an existing folder of this user becomes private. Raises OSError."""
    make_folder(folder, 0o700)
    found = folder.stat()
    if found.st_uid == os.getuid() and found.st_mode & 0o077:
        folder.chmod(0o700)


def open_private(path: str, flags: int) -> int:
    """Open a file. For use as `opener` of `open`. If the file is created, only its user can read it."""
    return os.open(path, flags, 0o600)


def shared_folder(state_dir: Path) -> Path:
    """Return the folder in SHARED_MEMORY that contains the cache of an installation. Args: state_dir: state folder of the installation."""
    return SHARED_MEMORY / f"modyn-{hashlib.blake2b(os.fsencode(state_dir), digest_size=8).hexdigest()}"


def serving_dir(state_dir: Path) -> Path:
    """Return the folder in which prediction servers keep data that waits for labels, with a subfolder for each run."""
    return state_dir / "serving"


def release_shared_memory(state_dir: Path) -> None:
    """Remove the folder of a stopped installation in SHARED_MEMORY. Files that cannot be removed are ignored, because the files are only a cache."""
    shutil.rmtree(shared_folder(state_dir), ignore_errors=True)


def prepare_run_dir(path: Path) -> None:
    """Make the folder of the sockets. Raises SecurityError if the folder belongs to another user."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.getuid():
        raise SecurityError(f"{path} belongs to user {status.st_uid}, not to you: sockets there are not safe; remove it")
    path.chmod(0o700)


def hold_lock(path: Path, refusal: str) -> TextIO:
    """Lock a file for the lifetime of the process, so that no second process uses its folder. Write the process id into the file.

    Raises: ConflictError: another process holds the lock; the message is `refusal`.
    """
    handle = path.open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise ConflictError(refusal) from None
    handle.truncate(0)
    handle.write(str(os.getpid()))
    handle.flush()
    return handle


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of this file."""
    try:
        with path.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
