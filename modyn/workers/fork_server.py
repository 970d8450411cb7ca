"""Fork server: a process that has imported PyTorch and from which workers are forked. A service has one fork server, starts it on demand and ends it
when it is idle.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, Final

ENVIRONMENT: Final = {
    # No file in the service's folder may shadow a module. Workers unset the variable, and search that folder last.
    "PYTHONSAFEPATH": "1",
    # OpenBLAS and Arrow's allocator start threads on import. PyTorch has its own linear algebra.
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # If each thread had its own arena, a thread could not use memory that another thread freed. Separate arenas take twice the memory, without a gain
    # in speed.
    "MALLOC_ARENA_MAX": "2",
    # A training step allocates the memory that the previous step freed. If this memory were returned to the system, page faults would take up to a
    # third of a step. An idle worker returns the memory. After the first value is set, glibc no longer adapts the second value; 32 MiB is the maximum
    # of the second value.
    "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
}
"""Default environment variables of workers. Variables that the service was started with take precedence."""

LOST: Final = 255
"""Exit code that the standard library gives a process whose fork server has ended."""
SERVER_DIED: Final = (EOFError, ConnectionError)
"""Errors that the standard library raises if the fork server dies while a process is started. The next start makes another fork server."""

# Protects the standard library's table of children, which is not thread-safe: `start` polls every child, and an exit status can be read only once.
# The lock is shared by `start` and `join` in all pools of the process. The lock is reentrant, because the garbage collector ends processes whose
# requests were abandoned, and the collector may run in a thread that holds the lock.
PROCESS_TABLE: Final = threading.RLock()

_logger = logging.getLogger(__name__)
_workers: Final[list[ForkServerProcess]] = []
"""Workers that may be alive. The end of the fork server would end these workers. PROCESS_TABLE protects this list and the variables below."""
_no_others: Final = threading.Condition(PROCESS_TABLE)  # Wakes the thread that ends the fork server: `_others` has become 0.
_others = 0
"""Number of users of the fork server that are not workers. The end of the fork server would end the processes of these users too."""
_preloaded: Final[list[str]] = []
"""Modules that the current or the next fork server imports."""
_ending: list[threading.Thread] = []
"""List of at most one thread, which ends an idle fork server."""
_last_used = 0.0


def warm_up(preload: Sequence[str], idle_s: float | None) -> None:
    """Start the fork server unless it runs already. The function does not wait for the imports of the fork server. Args: preload, idle_s: see
    `WorkerPool`.
    """
    with PROCESS_TABLE:
        _ensure_running(preload, idle_s)


def start_worker(process: ForkServerProcess, preload: Sequence[str], idle_s: float | None) -> None:
    """Start a worker process. Args: preload, idle_s: see `WorkerPool`.

    Raises: OSError, EOFError: the worker cannot be started. Errors of SERVER_DIED: two fork servers died in a row.
    """
    with PROCESS_TABLE, _variables():  # `start` itself starts a fork server if the previous one has just died
        _ensure_running(preload, idle_s)
        try:
            process.start()
        except SERVER_DIED:
            # A fork server that was just killed still counts as running. Wait for its end, and use the next fork server.
            _end()
            _ensure_running(preload, idle_s)
            process.start()
        _forget_ended()
        _workers.append(process)


@contextmanager
def kept_running() -> Iterator[None]:
    """Keep the fork server alive in this context, for processes that are not workers."""
    global _others, _last_used  # noqa: PLW0603
    with PROCESS_TABLE:
        _others += 1
    try:
        yield
    finally:
        with PROCESS_TABLE:
            _others -= 1
            _last_used = time.monotonic()
            _no_others.notify_all()


def _ensure_running(preload: Sequence[str], idle_s: float | None) -> None:
    global _last_used  # noqa: PLW0603  (there is one fork server in a process)
    _last_used = time.monotonic()
    _forget_ended()
    # The running fork server has other imports, and no process depends on it.
    if _preloaded != list(preload) and not (_workers or _others):
        _end()
    _preloaded[:] = preload
    set_preload(get_context("forkserver"), preload)
    with _variables():
        forkserver.ensure_running()
    if idle_s is not None and not _ending:
        _ending.append(threading.Thread(target=_end_when_idle, args=(idle_s,), name="fork-server", daemon=True))
        _ending[0].start()


def set_preload(context: ForkServerContext, modules: Sequence[str]) -> None:
    """Set the modules that the next fork server of `context` imports. Forked processes do not search these modules' objects for garbage."""
    context.set_forkserver_preload(["modyn.workers.collector_off", *modules, "modyn.workers.collector_on"])


@contextmanager
def _variables() -> Iterator[None]:
    """Set ENVIRONMENT in this context. A fork server that starts in this context keeps the variables. Other child processes do not get them."""
    missing = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _end_when_idle(idle_s: float) -> None:
    """End the fork server after a period of `idle_s` seconds without a worker."""
    global _last_used  # noqa: PLW0603
    while True:
        with PROCESS_TABLE:
            _no_others.wait_for(lambda: not _others)  # `kept_running` notifies
            _forget_ended()
            living = list(_workers)  # the references keep the descriptors of their sentinels open
            now = time.monotonic()
            if living:
                _last_used = now
            elif now >= _last_used + idle_s:
                _ending.clear()
                _end()
                _logger.info("no worker was wanted for %g s: the fork server has ended", idle_s)
                return
            left_s = _last_used + idle_s - now
        if living:
            # The end of a worker ends this wait. The lock is not held, because workers may start meanwhile; the next round sees new workers.
            wait([worker.sentinel for worker in living])
        else:
            time.sleep(left_s)


def _end() -> None:
    """End the fork server and its workers, if the fork server runs."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid is not None:
        # The fork server is killed first, because `_stop` waits for its end, and a fork server that hangs in an import would not notice the request
        # to stop.
        os.kill(pid, signal.SIGKILL)
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        # The resource tracker starts with each fork server, and has nothing to remove. The tracker is killed first, because it does not end while a
        # process keeps its pipe open.
        tracker: Any = resource_tracker._resource_tracker
        if tracker._pid is not None:
            os.kill(tracker._pid, signal.SIGKILL)
            tracker._stop()


def _forget_ended() -> None:
    ended = wait([worker.sentinel for worker in _workers], 0)
    _workers[:] = [worker for worker in _workers if worker.sentinel not in ended]
