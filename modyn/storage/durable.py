"""Writing our own files so that they are complete or not there, also when the machine stops in the middle."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from modyn.errors import UnavailableError

TEMPORARY_SUFFIX = ".tmp"
"""Files with this ending are left over from a crash; whoever owns the folder removes them when it starts."""


def write_atomically(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write `parts` one after the other as the whole content of `path`; durable on return. Raises UnavailableError."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise UnavailableError(
            f"cannot write {path}: {error.strerror or error}; make its folder writable for the service and check the space on its disk"
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
