"""Files of samples in shared memory: written from several pieces of memory, read many at once into one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final

import numpy as np

from modyn.cache.tier import Buffer

_ALIGNMENT: Final = 16
"""Bytes, of where a buffer begins: so that its numbers may be used where they are."""
_MAX_PARTS: Final = 512
"""Pieces that are written at once; the kernel takes 1024."""


def write_unnamed(folder: str, parts: Sequence[Buffer]) -> int:
    """Write a file in a folder that has no name yet: it is gone when it is closed, also by the end of the process.

    Args: parts: its content, in turn; no memory is copied but into the file. Returns: its descriptor. Raises OSError: there is no space.
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
    """Give a file of `write_unnamed` a name, which another one loses. Raises OSError."""
    while True:
        try:
            # With a folder for the link, which an absolute path needs none of, Python follows it to the file.
            os.link(f"/proc/self/fd/{file}", path, src_dir_fd=file)
            return
        except FileExistsError:
            os.unlink(path)


def read_files(paths: Sequence[str]) -> list[Buffer | None]:
    """Whole files, in memory that may be written to, one for all: many allocations of their size would cost more than the copying.

    Returns: None for each that is not there.
    """
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
    """The bytes of a file; None: it is not there. Raises OSError: that is not known."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def _write_all(file: int, parts: Sequence[Buffer]) -> None:
    """Write behind what is there. Args: parts: at most _MAX_PARTS. Raises OSError."""
    written = os.writev(file, parts)
    for part in parts:
        rest = memoryview(part)[written:]
        written -= len(part) - len(rest)
        while rest:  # What is almost full takes a part.
            rest = rest[os.write(file, rest) :]
