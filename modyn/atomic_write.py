"""Atomic writes: a file is complete or absent, even when the machine stops during the write."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from modyn.errors import UnavailableError

TEMPORARY_SUFFIX = ".tmp"
"""Ending of files that a crash may leave; the owner of the folder removes them when it starts."""


def write_atomically(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write `parts` one after the other as the whole content of `path`; durable on return.

    Raises: UnavailableError: the disk cannot be written to.
    """
    try:
        with replacing(path) as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise UnavailableError(
            f"cannot write {path}: {error.strerror or error}; make its folder writable for the service and check the space on its disk"
        ) from error


@contextmanager
def replacing(path: Path, temporary: Path | None = None, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a new file `temporary` beside `path`. At the end it durably replaces `path`; on an error it is removed.

    Args: temporary: by default a name of this thread, which ends in TEMPORARY_SUFFIX. durable: False: nothing waits for the disk; after a loss of
    power the file may be cut or missing, after the death of the process it is there.
    Raises: OSError: it cannot be written; `path` is as before, unless the last sync of its folder failed.
    """
    temporary = temporary or path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file or link, if there is one, durably. Raises: UnavailableError."""
    try:
        with suppress(FileNotFoundError):  # or its folder
            path.unlink()
            sync(path.parent)
    except OSError as error:
        raise UnavailableError(
            f"cannot remove {path}: {error.strerror or error}; make its folder writable for the service"
        ) from error


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it that are missing, durably: a file that is synced in it is found again after a crash. Raises OSError.

    Args: mode: of `path` itself.
    """
    if path.is_dir():
        # It may have been made by a process that was killed before it was synced; those above it were synced before it was made.
        with suppress(PermissionError):  # of a folder above all of ours, which may be entered only
            sync(path.parent)
        return
    make_folder(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync(path.parent)


def sync_names(folder: Path) -> None:
    """Sync the names in a folder, if there is one. Raises: UnavailableError."""
    try:
        with suppress(FileNotFoundError):
            sync(folder)
    except OSError as error:
        raise UnavailableError(f"cannot sync {folder}: {error.strerror or error}; repair the disk") from error


def sync(path: Path) -> None:
    """Sync a file's content, or a folder's names, to the disk, so that they survive a crash of the machine. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing_for_user(path: Path) -> Iterator[None]:
    """Turn an OSError within the block into an UnavailableError that names the file, which a user has chosen."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"cannot write {path}: {error.strerror or error}; choose another place") from error
