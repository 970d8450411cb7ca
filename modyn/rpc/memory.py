"""What a process does with memory that it has freed."""

from __future__ import annotations

import ctypes
import os
from typing import Final

LARGEST_KEPT: Final = 32 * 2**20
"""Bytes. A larger block is mapped for itself, and given back when it is freed."""
MOST_KEPT: Final = 64 * 2**20
"""Bytes of freed memory at the end of a heap that wait for their next use."""
ENVIRONMENT: Final = {"MALLOC_MMAP_THRESHOLD_": str(LARGEST_KEPT), "MALLOC_TRIM_THRESHOLD_": str(MOST_KEPT)}
"""The same for a process that is still to be started."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>


def keep_freed_memory() -> None:
    """Messages of some MiB come and go. glibc by itself gives the memory of each back to the system, which then has to clear it page by page
    for the next one: that takes longer than sending it. Nothing happens where the environment says otherwise, or without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or ENVIRONMENT.keys() & os.environ.keys():
        return
    mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT)
    mallopt(_M_TRIM_THRESHOLD, MOST_KEPT)
