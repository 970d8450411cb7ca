"""Makes batches in processes, for Python code that runs for each sample, because threads would hold the interpreter's lock in turn."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from typing import Any

from torch.utils.data import DataLoader, Dataset

from modyn.dataset.batch import Batch
from modyn.errors import ModynError, UserCodeError, WorkerDiedError
from modyn.workers.fork_server import kept_running, set_preload
from modyn.workers.limits import WorkerLimits, active_limits, impose

_PRELOADED = ["torch", "modyn.dataset.loader", "modyn.dataset.key_loader", "modyn.storage.payloads", "PIL.JpegImagePlugin"]
"""Modules that the fork server imports once, because each process would need half a second for the imports. PIL loads plug-ins with its first image.
"""

_END_S = 5.0
"""Seconds for which the end of a process whose connection broke is awaited."""


class ProcessLimits:
    """The limits of the present worker process, for the processes that make its batches. These processes call `impose`."""

    def __init__(self, limits: WorkerLimits | None, sender: Connection[Any, Any]) -> None:
        """Args: limits: the limits, or None. sender: pipe to which a process that ends sends its reason."""
        self._limits = limits
        self._sender = sender

    def impose(self) -> None:
        """Impose the limits on this process. A process that exceeds a limit sends the reason and ends."""
        if self._limits is not None:
            impose(self._limits, self._exit)

    def _exit(self, reason: str) -> None:
        try:
            self._sender.send(reason)
        finally:
            os._exit(1)


def batches_of_processes(
    make_dataset: Callable[[ProcessLimits], Dataset[Batch | ModynError]],
    num_processes: int,
    pin_memory: bool,
    requests: Iterable[Any] | None = None,
) -> Generator[Batch, None, None]:
    """Yield the batches of a dataset, in order, empty ones included. Separate processes (forkserver) make them.

    Args: make_dataset: makes the dataset that is sent to the processes. The dataset returns errors as items, because DataLoader would put a whole
    traceback into their message. requests: indices for a dataset with batches by index, pulled ahead of use; None: the dataset is iterable.
    pin_memory: whether batches are in page-locked memory.
    Raises: UserCodeError: a process has exceeded a limit. WorkerDiedError: a process was killed. Also raises the errors that the dataset returns.
    """
    context = _context()
    reasons, sender = context.Pipe(duplex=False)
    loader: DataLoader[Batch | ModynError] = DataLoader(
        make_dataset(ProcessLimits(active_limits(), sender)),
        batch_size=None,
        sampler=requests,
        num_workers=num_processes,
        collate_fn=_unchanged,
        pin_memory=pin_memory,
        multiprocessing_context=context,
        worker_init_fn=_start_worker,
    )
    batches: Any = None
    with kept_running():
        try:
            batches = iter(loader)  # The new iterator pulls the first indices, which may fail.
            while (batch := _next(batches, reasons)) is not None:
                if isinstance(batch, ModynError):
                    raise batch
                yield batch
        finally:
            # Workers end with their iterator; the garbage collector would end them at an arbitrary time. The pipe closes after the workers, so that a
            # worker that exceeds a limit can still send its reason.
            if batches is not None:
                batches._shutdown_workers()
            reasons.close()
            sender.close()


def start_fork_server() -> None:
    """Start the fork server of `batches_of_processes`, unless it runs, and wait until it has imported the needed modules."""
    first = _context().Process(target=_start_worker, args=(0,))
    first.start()
    # The fork server forks this process after it has imported everything. The process ends immediately.
    first.join()


def _context() -> ForkServerContext:
    context = get_context("forkserver")
    set_preload(context, _PRELOADED)
    return context


def _next(batches: Any, reasons: Connection[Any, Any]) -> Batch | ModynError | None:
    """Return the next batch. A worker that exceeds a limit sends the reason through the pipe, because DataLoader only knows that the worker has
    ended. If the worker was killed, the death counts as the death of this process, so that the work is repeated.
    """
    try:
        batch: Batch | ModynError | None = next(batches, None)
    except (RuntimeError, OSError, EOFError) as error:
        if not isinstance(error, RuntimeError):  # A worker died while this process took over the memory of a batch.
            wait([process.sentinel for process in batches._workers], timeout=_END_S)
        if reasons.poll():
            raise UserCodeError(reasons.recv()) from error
        for process in batches._workers:
            if process.exitcode is not None and process.exitcode < 0:
                how = signal.Signals(-process.exitcode).name
                raise WorkerDiedError(
                    f"process {process.pid} that makes batches was ended by {how}, perhaps because memory ran out"
                ) from error
        raise
    return batch


def _unchanged(batch: Any) -> Any:
    return batch


def _start_worker(_: int) -> None:
    import torch

    from modyn.workers import die_with_parent

    # Ctrl-C reaches all processes of a terminal; the parent process decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    die_with_parent()
