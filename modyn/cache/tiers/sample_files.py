"""Files of samples in shared memory. Each file is written from several pieces of memory. Many files are read at once into one buffer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final

import numpy as np

from modyn.cache.tiers.tier import Buffer

_ALIGNMENT: Final = 16
"""Buffers begin at multiples of this number of bytes, so that their numbers can be used without copying."""
_MAX_PARTS: Final = 512
"""Number of pieces in one write. The kernel allows 1024."""


def write_unnamed(folder: str, parts: Sequence[Buffer]) -> int:
    """Write a file without a name in a folder. The kernel removes the file when it is closed, also at the end of the process.

    Args: parts: the content in order; memory is copied only into the file. Returns: the file's descriptor. Raises OSError: there is no space.
    """
    file = os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o600)
    try:
        for start in range(0, len(parts), _MAX_PARTS):
            _write_all(file, parts[start : start + _MAX_PARTS])
    except OSError:
        os.close(file)
        raise
    return file


def name_file(file: int, path: str) -> None:
    """Name a file of `write_unnamed`. The file replaces an existing file of this name. Raises OSError."""
    while True:
        try:
            # Without `src_dir_fd`, Python would link the symbolic link in /proc instead of the file. On absolute paths, `src_dir_fd` has no other
            # effect.
            os.link(f"/proc/self/fd/{file}", path, src_dir_fd=file)
            return
        except FileExistsError:
            os.unlink(path)


def read_files(paths: Sequence[str]) -> list[Buffer | None]:
    """Read whole files into one writable buffer. Allocating memory for each file separately would take longer than reading the files.

    Returns: None for each missing file."""
    buffers: list[Buffer | None] = [None] * len(paths)
    with ExitStack() as stack:
        files: list[tuple[int, int, int, int]] = []
        end = 0
        for i, path in enumerate(paths):
            with suppress(OSError):
                file = os.open(path, os.O_RDONLY)
                stack.callback(os.close, file)
                size = os.fstat(file).st_size
                files.append((i, file, end, end + size))
                end += size + -size % _ALIGNMENT
        content = np.empty(end, np.uint8).data
        for i, file, start, stop in files:
            with suppress(OSError):
                if os.readv(file, [content[start:stop]]) == stop - start:
                    buffers[i] = content[start:stop]
    return buffers


def size_of(path: str) -> int | None:
    """Return the size of a file in bytes; None: there is no such file. Raises OSError: the size cannot be read."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def _write_all(file: int, parts: Sequence[Buffer]) -> None:
    """Append to the file. Args: parts: at most _MAX_PARTS. Raises OSError."""
    written = os.writev(file, parts)
    for part in parts:
        rest = memoryview(part)[written:]
        written -= len(part) - len(rest)
        while rest:  # An almost full file system accepts only a part.
            rest = rest[os.write(file, rest) :]
