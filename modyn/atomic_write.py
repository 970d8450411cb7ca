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
"""Ending of temporary files. A crash may leave such files; the service that owns the folder removes them when it starts."""


def write_atomically(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Replace the content of `path` by `parts`, one after the other. The file is durable on return.

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
    """Open a new file `temporary` next to `path`. At the end of the block, the file durably replaces `path`; after an error, the file is removed.

    Args: temporary: path of the new file; by default, a name that only this thread uses, with the ending TEMPORARY_SUFFIX. durable: if false, no
    call waits for the disk. Then the file survives a kill of the process, but a power loss may truncate or remove the file.
    Raises: OSError: the file cannot be written; `path` is unchanged, unless the last sync of its folder failed.
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
    """Remove a file or link durably, if it exists. Raises: UnavailableError."""
    try:
        with suppress(FileNotFoundError):  # the file or its folder is missing
            path.unlink()
            sync(path.parent)
    except OSError as error:
        raise UnavailableError(
            f"cannot remove {path}: {error.strerror or error}; make its folder writable for the service"
        ) from error


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and its missing parents durably, so that a file that is synced in the folder survives a crash. Raises OSError.

    Args: mode: mode of `path` itself.
    """
    if path.is_dir():
        # The process that made the folder may have been killed before it synced the parent.
        with suppress(PermissionError):  # This process may enter the parent, but not read it.
            sync(path.parent)
        return
    make_folder(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync(path.parent)


def sync_names(folder: Path) -> None:
    """Sync the names in a folder, if it exists. Raises: UnavailableError."""
    try:
        with suppress(FileNotFoundError):
            sync(folder)
    except OSError as error:
        raise UnavailableError(f"cannot sync {folder}: {error.strerror or error}; repair the disk") from error


def sync(path: Path) -> None:
    """Sync the content of a file, or the names in a folder, to the disk, so that they survive a crash of the machine. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing_for_user(path: Path) -> Iterator[None]:
    """Convert an OSError within a `with` block to an UnavailableError that names the file. Args: path: file that a user has chosen."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"cannot write {path}: {error.strerror or error}; choose another place") from error
