"""The folders of what services keep on disk: the version of their content, their lock, and who may read them.

The version is a small file in each folder of state, checked before anything else there is opened.
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

STATE_VERSION = 3
"""Raised with every change of a file or table that the version before cannot read, or would misread. Numbers of migrations begin with it: a
database of another version is refused as well."""
_MARK = "state_version"
SHARED_MEMORY: Final = Path("/dev/shm")
"""Where files are memory, on this machine."""


def check_state(folder: Path) -> None:
    """Check that `folder` is empty, missing, or was written by this version. Changes nothing.

    Raises: ConfigError: another version wrote it; the message says what was found and what to do.
    """
    mark = folder / _MARK
    try:
        entries = sorted(path.name for path in folder.iterdir() if not path.name.startswith(_MARK))
        found = mark.read_text(errors="replace").strip() if mark.exists() else ""
    except OSError:  # missing; or reported by the part that is to work on it
        return
    if found == str(STATE_VERSION) or (not found and not entries):
        return
    shown = ", ".join(entries[:3]) + (", …" if len(entries) > 3 else "")
    raise ConfigError(
        f"{folder} was written by another version of Modyn: it has "
        f"{f'state version {found[:20]}' if found else f'no file {_MARK}'} and holds {shown or 'nothing else'}; this version reads and "
        f"writes state version {STATE_VERSION} only. Nothing was changed. Go on with the version that wrote it; or set another "
        "state_dir, or move this one away, and register the datasets again: their own files are not in it, but runs and models are. If only "
        f"{mark} was lost or damaged, restore it"
    )


def claim_state(folder: Path) -> None:
    """Check `folder`, make it if it is missing, for its user alone, and mark it as written by this version. Raises as `check_state` does."""
    check_state(folder)
    make_private_folder(folder)
    if (folder / _MARK).exists():
        sync(folder)  # A process that was killed may have left the mark unsynced, and without it what follows would be refused.
    else:
        write_atomically(folder / _MARK, [f"{STATE_VERSION}\n".encode()])


def keep_private() -> None:
    """Let this process, and all that it starts, make files and folders that only their user can read or write. Call it before any thread runs."""
    os.umask(0o077)


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its user can enter; one that is there becomes so, unless it is another user's. Raises OSError."""
    make_folder(folder, 0o700)
    found = folder.stat()
    if found.st_uid == os.getuid() and found.st_mode & 0o077:
        folder.chmod(0o700)


def open_private(path: str, flags: int) -> int:
    """Open a file that, if it is made, only its user can read; as `opener` of `open`."""
    return os.open(path, flags, 0o600)


def shared_folder(state_dir: Path) -> Path:
    """Return the folder of one installation in SHARED_MEMORY, which holds its cache. Args: state_dir: its state folder."""
    return SHARED_MEMORY / f"modyn-{hashlib.blake2b(os.fsencode(state_dir), digest_size=8).hexdigest()}"


def serving_dir(state_dir: Path) -> Path:
    """Return the folder in which servers of predictions keep what waits for its label, each run in a folder of its id."""
    return state_dir / "serving"


def release_shared_memory(state_dir: Path) -> None:
    """Remove the folder of an installation in SHARED_MEMORY, none of whose services runs. What cannot be removed stays: it is only cache."""
    shutil.rmtree(shared_folder(state_dir), ignore_errors=True)


def prepare_run_dir(path: Path) -> None:
    """Make the folder of the sockets. Raises SecurityError when it belongs to another user."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.getuid():
        raise SecurityError(f"{path} belongs to user {status.st_uid}, not to you: sockets there are not safe; remove it")
    path.chmod(0o700)


def hold_lock(path: Path, refusal: str) -> TextIO:
    """Lock a file for as long as the process lives, and write the process id into it: two would each take the folder for their own.

    Raises: ConflictError: another process holds it; with `refusal`.
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
    """Whether a process holds the lock of this file."""
    try:
        with path.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
