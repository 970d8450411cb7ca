"""Removal of files from the page cache, so that the next read goes to the disk."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

_SWITCH = Path("/proc/sys/vm/drop_caches")
_EVERYTHING = "3"


def how() -> str:
    """Return which method works on this machine, for the report."""
    return (
        "drop_caches" if _may_drop(_SWITCH) else "posix_fadvise(DONTNEED) on the data, names and inodes of files stay in memory"
    )


def drop(paths: Iterable[Path], switch: Path = _SWITCH) -> float:
    """Drop all pages, names and inodes of the machine if that is allowed, else pages of the files below `paths`. They are written out first.

    Mapped pages stay in both cases. Returns the share of the bytes that is still in memory, of that one of `paths` of which
    most is. switch: the kernel's file that drops the page cache of the machine.
    """
    os.sync()
    files = [list(_files(path)) for path in paths]
    if not _may_drop(switch):
        _advise(path for below in files for path in below)
        return max(map(_resident, files), default=0.0)
    switch.write_text(_EVERYTHING)
    left = max(map(_resident, files), default=0.0)
    # Looking has brought names and inodes of all files back.
    switch.write_text(_EVERYTHING)
    return left


def _may_drop(switch: Path) -> bool:
    return os.access(switch, os.W_OK)


def _advise(files: Iterable[Path]) -> None:
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _resident(files: Iterable[Path]) -> float:
    """Return the share of the pages of `files` that is in memory, by mincore(2)."""
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


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (child for child in path.rglob("*") if child.is_file())
    else:
        yield path
