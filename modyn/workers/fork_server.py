"""The process that workers are forked from, with PyTorch imported: one in a service, started on demand, ended when it is idle."""

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
from multiprocessing.context import ForkServerProcess
from typing import Any, Final

ENVIRONMENT: Final = {
    # No module in the folder of the service may stand for another one. Workers, which look there last, forget it.
    "PYTHONSAFEPATH": "1",
    # OpenBLAS (PyTorch brings its own linear algebra) and Arrow's allocator start threads when they are imported.
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # With one arena for each thread that receives payloads, no thread can use what another frees: twice as much memory, no more speed.
    "MALLOC_ARENA_MAX": "2",
    # What a training step frees, the next one takes again: given back to the system in between, it would come page by page, for up to a third of the
    # time of a step. A worker that rests gives it back. 32 MiB is the most that the second may be, and glibc chooses it no longer by itself once
    # the first is set.
    "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
}
"""Environment variables of workers, where the service was not started with other values."""

LOST: Final = 255
"""Exit code that the standard library gives a process whose fork server has ended."""
SERVER_DIED: Final = (EOFError, ConnectionError)
"""What the standard library raises for a process that is started while the fork server dies; the next one starts another fork server."""

# Protects the standard library's table of children, which is not made for several threads: `start` polls every child, and an exit status
# can be read once only. One lock for all pools of the process, over `start` and `join`. A thread that holds it may come to it again: the garbage
# collector, which runs anywhere, ends processes whose requests were left.
PROCESS_TABLE: Final = threading.RLock()

_logger = logging.getLogger(__name__)
_workers: Final[list[ForkServerProcess]] = []
"""Those that may live. Ending the fork server would end them. Guarded by PROCESS_TABLE, as those below are."""
_no_others: Final = threading.Condition(PROCESS_TABLE)
_others = 0
"""How many of its users are not workers. Ending it would end their processes, too."""
_preloaded: Final[list[str]] = []
"""What the fork server imports, or the one that is started next."""
_ending: list[threading.Thread] = []
"""The thread that ends the fork server, while there is one."""
_last_used = 0.0


def warm_up(preload: Sequence[str], idle_s: float | None) -> None:
    """Start the fork server, which imports its modules in the background, unless it runs. Returns at once.

    Args: preload, idle_s: see `WorkerPool`.
    """
    with PROCESS_TABLE:
        _ensure_running(preload, idle_s)


def start_worker(process: ForkServerProcess, preload: Sequence[str], idle_s: float | None) -> None:
    """Start a worker process. Args: preload, idle_s: of the fork server, see `WorkerPool`.

    Raises: OSError, EOFError: it cannot be started; those of SERVER_DIED: two fork servers have died of it.
    """
    with PROCESS_TABLE, _variables():  # also for a fork server that `start` itself starts, since the one before has just died
        _ensure_running(preload, idle_s)
        try:
            process.start()
        except SERVER_DIED:
            # One that was killed a moment ago still counts as running: its end is waited for, and the next one is asked.
            _end()
            _ensure_running(preload, idle_s)
            process.start()
        _forget_ended()
        _workers.append(process)


@contextmanager
def kept_running() -> Iterator[None]:
    """For processes that are not workers, and that others start: the fork server does not end in this context, even where it is idle else."""
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
    if _preloaded != list(preload) and not (
        _workers or _others
    ):  # one that runs has imported something else, and has nothing to lose
        _end()
    _preloaded[:] = preload
    get_context("forkserver").set_forkserver_preload(list(preload))
    with _variables():
        forkserver.ensure_running()
    if idle_s is not None and not _ending:
        _ending.append(threading.Thread(target=_end_when_idle, args=(idle_s,), name="fork-server", daemon=True))
        _ending[0].start()


@contextmanager
def _variables() -> Iterator[None]:
    """A context with ENVIRONMENT, which a fork server that starts in it keeps: other children of this process do not get it."""
    missing = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _end_when_idle(idle_s: float) -> None:
    """End the fork server once there has been no worker for `idle_s` seconds."""
    global _last_used  # noqa: PLW0603
    while True:
        with PROCESS_TABLE:
            _no_others.wait_for(lambda: not _others)
            _forget_ended()
            living = list(_workers)  # kept, and with them the descriptors of their sentinels
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
            # Outside the lock, else no worker could start; one that starts meanwhile is seen in the next round.
            wait([worker.sentinel for worker in living])
        else:
            time.sleep(left_s)


def _end() -> None:
    """End the fork server if it runs, and its workers."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid is not None:
        # One that hangs in an import would never see that it is asked to stop, and `_stop` waits for its end.
        os.kill(pid, signal.SIGKILL)
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        # Started with it, and again with the next one: it removes what processes share, and there are none. Killed first, since it would not
        # end while any process still has its pipe.
        tracker: Any = resource_tracker._resource_tracker
        if tracker._pid is not None:
            os.kill(tracker._pid, signal.SIGKILL)
            tracker._stop()


def _forget_ended() -> None:
    ended = wait([worker.sentinel for worker in _workers], 0)
    _workers[:] = [worker for worker in _workers if worker.sentinel not in ended]
