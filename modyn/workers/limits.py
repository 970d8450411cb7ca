"""Limits of one worker: seconds for one call of a user function, and memory. Enforced inside the worker. Imports no torch.

A call is registered while it runs, see `Call`; a thread polls the registered calls about once a second.
"""

from __future__ import annotations

import faulthandler
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from modyn.log_files import LogLimits

POLL_S: Final = 1.0
"""Seconds between two polls of the calls."""
STUCK_S: Final = 2.0
"""Seconds beyond the limit after which a thread that needs no interpreter ends a call that keeps the watching thread from running."""

_running: Final[set[Call]] = set()
"""Calls that have not returned. No lock: the interpreter changes and copies a set in single operations."""


class Call:
    """Calls of a user function, one after the other, as the watchdog sees them. Use as a context manager.

    at: number of the call that runs, set before each: one assignment. Its time begins when the watchdog first sees it.
    describe(at): the sample or batch that the argument of that call belongs to.
    """

    __slots__ = ("at", "describe", "name")

    def __init__(self, name: str, describe: Callable[[int], str]) -> None:
        self.name = name
        self.describe = describe
        self.at = 0

    def __enter__(self) -> Self:
        _running.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _running.discard(self)


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Limits of a worker. service: the section of the system file that sets them. memory_bytes: of address space; None: no limit."""

    service: str
    user_function_timeout_s: float
    memory_bytes: int | None = None
    logs: LogLimits = field(default_factory=LogLimits)

    def out_of_memory(self, error: BaseException) -> str:
        """Advice to add to the message of `error` if it, or a cause of it, is that memory ran out; else empty."""
        if self.memory_bytes is None or not _is_out_of_memory(error):
            return ""
        return f"; {self.memory_advice()}"

    def memory_advice(self) -> str:
        """Advice for a message: which setting bounds the memory of a worker, and what to change."""
        return (
            f"memory ran out: a worker may take {self.memory_bytes} bytes; raise or remove {self.service}.worker_memory_bytes in the "
            "system file, or make batches smaller"
        )


_active: Final[list[WorkerLimits]] = []


def active_limits() -> WorkerLimits | None:
    """The limits of this process; processes that it starts impose them again."""
    return _active[-1] if _active else None


def impose(limits: WorkerLimits, give_up: Callable[[str], None]) -> None:
    """Limit this process.

    Args: give_up: called by the watching thread, with a message, when a call takes too long. It must end the process: nothing else
        ends the call.
    """
    _active[:] = [limits]
    _arm(limits)
    if limits.memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = limits.memory_bytes if hard == resource.RLIM_INFINITY else min(limits.memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    threading.Thread(target=_watch, args=(limits, Watchdog(limits, give_up)), name="watchdog", daemon=True).start()


class Watchdog:
    """Looks for calls that take too long.

    Args: give_up: called with a message, see `impose`.
    """

    def __init__(self, limits: WorkerLimits, give_up: Callable[[str], None]) -> None:
        self._limits = limits
        self._give_up = give_up
        self._seen: dict[Call, tuple[int, float]] = {}
        """Number of each call that runs, and when it was first seen."""

    def poll(self, now: float) -> None:
        """Look at the calls that run, at `now` in seconds of a clock that never jumps."""
        timeout_s = self._limits.user_function_timeout_s
        running = {call: call.at for call in list(_running)}
        seen = self._seen
        self._seen = {call: seen[call] if call in seen and seen[call][0] == at else (at, now) for call, at in running.items()}
        for call, (at, since) in self._seen.items():
            if now - since >= timeout_s and call in _running and call.at == at:
                self._give_up(
                    f"{call.name} did not return for {call.describe(at)} within {timeout_s:g} s; make it faster, or raise "
                    f"{self._limits.service}.user_function_timeout_s in the system file"
                )


def _watch(limits: WorkerLimits, watchdog: Watchdog) -> None:
    while True:
        time.sleep(min(POLL_S, limits.user_function_timeout_s / 4))
        _arm(limits)
        watchdog.poll(time.monotonic())


def _arm(limits: WorkerLimits) -> None:
    """End the process unless called again in time: code that does not release the interpreter (some regular expressions) also blocks the
    watching thread."""
    seconds = limits.user_function_timeout_s + STUCK_S
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)


def _is_out_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False


_SIGNS: Final = ("can't allocate memory", "Cannot allocate memory", "can't start new thread", "bad_alloc", "failed to allocate")
