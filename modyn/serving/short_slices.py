"""Short time slices for a process that answers: it runs as soon as something arrives, and gets no more processor time than before."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import struct
from typing import Final

_SLICE_NS: Final = 300_000
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""The number of the system call, by machine: most C libraries have no function for it."""
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""struct sched_attr, as sched_setattr(2) has it: size, policy, flags, nice, priority; then runtime, deadline and period in nanoseconds."""

logger = logging.getLogger(__name__)


def take_short_slices() -> bool:
    """Ask the kernel for short time slices, for the calling thread and those that it starts; returns whether it takes them.

    The scheduler of Linux (EEVDF) lets run next, of the threads with a claim, the one whose slice would end first. What does a little work after
    each wait then goes before what computes without end, at the same share of time: https://docs.kernel.org/scheduler/sched-eevdf.html. A
    kernel before 6.12, or another system, goes on as it does.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, _SLICE_NS, 0, 0)
    if ctypes.CDLL(None, use_errno=True).syscall(number, 0, attributes, 0) != 0:
        logger.debug("The kernel takes no short time slices: %s", os.strerror(ctypes.get_errno()))
        return False
    return True
