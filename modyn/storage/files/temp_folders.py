"""Temporary folders that do not outlive their process for long: who is killed leaves his to the next one that needs some."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

PREFIX = "modyn-s3-"
_LOCK = "in-use"
"""A file that is locked as long as the process lives, whatever the number of the process means to others that see this folder."""
_YOUNG_S = 60.0
"""A folder without a lock may be one that is just being made."""


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A new folder, in `TMPDIR`. Raises OSError."""
    place, pid = tempfile.gettempdir(), os.getpid()
    try:
        return tempfile.TemporaryDirectory(dir=_of_this_process(place, pid))
    except FileNotFoundError:  # Whoever tidies up temporary files took the process's own one.
        _of_this_process.cache_clear()
        return tempfile.TemporaryDirectory(dir=_of_this_process(place, pid))


@cache
def _of_this_process(place: str, pid: int) -> str:
    sweep(Path(place))
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=place)
    # Never closed: the lock is held until the process ends.
    fcntl.flock(os.open(os.path.join(folder, _LOCK), os.O_WRONLY | os.O_CREAT, 0o600), fcntl.LOCK_EX)
    atexit.register(_remove, folder, pid)
    return folder


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # Not in a process that forked from this one.
        shutil.rmtree(folder, ignore_errors=True)


def sweep(place: Path) -> None:
    """Removes the folders of processes that are gone."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if _is_left_over(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left_over(folder: Path) -> bool:
    """Raises OSError if that cannot be found out, as for folders of other users."""
    if time.time() - folder.stat().st_mtime < _YOUNG_S:
        return False
    try:
        with open(folder / _LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass  # Of a Modyn that made no locks, or of a process that was killed before it did.
    except BlockingIOError:
        return False
    return True
