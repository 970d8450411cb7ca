"""Making files cold: their pages leave the page cache, so that the next read goes to the disk."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

_DROP = Path("/proc/sys/vm/drop_caches")


def how() -> str:
    """Which way is open here, for the report."""
    return "drop_caches" if os.access(_DROP, os.W_OK) else "posix_fadvise(DONTNEED) on the data"


def drop(paths: Iterable[Path]) -> float:
    """All pages of the machine where that is allowed, those of the files below `paths` elsewhere; written out first.

    Pages that a process has mapped stay, either way. Returns the share of the bytes below `paths` that is still in memory.
    """
    os.sync()
    files = list(_files(paths))
    if os.access(_DROP, os.W_OK):
        _DROP.write_text("1")
    else:
        _advise(files)
    return _resident(files)


def _advise(files: Iterable[Path]) -> None:
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _resident(files: Iterable[Path]) -> float:
    """The share of the pages of `files` that is in memory, as mincore(2) tells it."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = present = 0
    for path in files:
        size = path.stat().st_size
        if not size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            found = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            failed = libc.mincore(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(found.ctypes.data))
            del view
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore of {path}")
        pages += len(found)
        present += int((found & 1).sum())
    return present / pages if pages else 0.0


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from (child for child in path.rglob("*") if child.is_file())
        else:
            yield path
