"""Making files cold: their pages leave the page cache, so that the next read goes to the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_DROP = Path("/proc/sys/vm/drop_caches")


def how() -> str:
    """Which way is open here, for the report."""
    return "drop_caches" if os.access(_DROP, os.W_OK) else "posix_fadvise(DONTNEED) on the data"


def drop(paths: Iterable[Path]) -> None:
    """All pages of the machine where that is allowed, those of the files below `paths` elsewhere; written out first.

    Pages that a process has mapped stay, either way.
    """
    os.sync()
    if os.access(_DROP, os.W_OK):
        _DROP.write_text("1")
        return
    for path in _files(paths):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from (child for child in path.rglob("*") if child.is_file())
        else:
            yield path
