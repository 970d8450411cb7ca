"""Limits of one worker, which the worker itself enforces: seconds of one call of a user function, and memory. This module does not import torch.

A call is registered while it runs; see `Call`. A thread polls the registered calls about once a second.
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
"""Additional seconds after the limit. If a call still blocks the watching thread, a thread that needs no interpreter lock ends the process."""

_running: Final[set[Call]] = set()
"""Calls that have not returned. The set needs no lock, because changes and copies of a set are atomic in the interpreter."""


class Call:
    """Successive calls of a user function, which the watchdog checks. Use an instance as a context manager.

    at: number of the running call, set before each call. The time of a call starts when the watchdog first sees the call.
    describe(at): names the sample or batch of that call.
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
    """Limits of a worker. service: section of the system file that sets the limits. memory_bytes: address space; None: no limit."""

    service: str
    user_function_timeout_s: float
    memory_bytes: int | None = None
    logs: LogLimits = field(default_factory=LogLimits)

    def out_of_memory(self, error: BaseException) -> str:
        """Return advice for the message of `error` if `error` or one of its causes shows that memory ran out; otherwise an empty text."""
        if self.memory_bytes is None or not _is_out_of_memory(error):
            return ""
        return f"; {self.memory_advice()}"

    def memory_advice(self) -> str:
        """Return advice on the setting that bounds the memory of a worker."""
        return (
            f"memory ran out: a worker may take {self.memory_bytes} bytes; raise or remove {self.service}.worker_memory_bytes in the "
            "system file, or make batches smaller"
        )


_active: Final[list[WorkerLimits]] = []


def active_limits() -> WorkerLimits | None:
    """Return the limits of this process. A process that this process starts must impose the limits again."""
    return _active[-1] if _active else None


def impose(limits: WorkerLimits, give_up: Callable[[str], None]) -> None:
    """Limit this process.

    Args: give_up: called by the watching thread, with a message, when a call takes too long. The function must end the process, because a call cannot
    be interrupted.
    """
    _active[:] = [limits]
    _arm(limits)
    if limits.memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = limits.memory_bytes if hard == resource.RLIM_INFINITY else min(limits.memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    threading.Thread(target=_watch, args=(limits, Watchdog(limits, give_up)), name="watchdog", daemon=True).start()


class Watchdog:
    """Finds calls that take too long. Args: give_up: see `impose`."""

    def __init__(self, limits: WorkerLimits, give_up: Callable[[str], None]) -> None:
        self._limits = limits
        self._give_up = give_up
        self._seen: dict[Call, tuple[int, float]] = {}
        """For each running call: the number of the call, and the time at which the watchdog first saw it."""

    def poll(self, now: float) -> None:
        """Check the running calls. Args: now: seconds, monotonic."""
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
        # Calls do not announce that they take long. Short limits are checked more often; the daemon thread ends with the process.
        time.sleep(min(POLL_S, limits.user_function_timeout_s / 4))
        _arm(limits)
        watchdog.poll(time.monotonic())


def _arm(limits: WorkerLimits) -> None:
    """Start a timer that ends the process unless this function is called again in time. Code that keeps the interpreter's lock, as some regular
    expressions do, blocks the watching thread too.
    """
    seconds = limits.user_function_timeout_s + STUCK_S
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)


def _is_out_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False


_SIGNS: Final = ("can't allocate memory", "Cannot allocate memory", "can't start new thread", "bad_alloc", "failed to allocate")
