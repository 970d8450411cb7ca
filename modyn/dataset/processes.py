"""Batches made by processes, where Python code runs for each sample: threads would hold the interpreter's lock in turn."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

from torch.utils.data import DataLoader, Dataset

from modyn.dataset.batch import Batch
from modyn.errors import ModynError, UserCodeError
from modyn.workers.fork_server import kept_running
from modyn.workers.limits import WorkerLimits, active_limits, impose

_PRELOADED = ["torch", "modyn.dataset.loader", "modyn.dataset.key_loader", "modyn.storage.payloads", "PIL.JpegImagePlugin"]
"""What the fork server imports once; each process would need half a second for it. PIL's plug-ins are found when the first image is opened."""


class ProcessLimits:
    """The limits of the present worker process, for processes that make its batches. `impose` is called in these."""

    def __init__(self, limits: WorkerLimits | None, sender: Connection[Any, Any]) -> None:
        """Args: limits: None: there are none. sender: pipe for the reason of a process that ends."""
        self._limits = limits
        self._sender = sender

    def impose(self) -> None:
        """Impose them on this process. One that exceeds a limit sends the reason and ends."""
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
    """The batches of a dataset that processes of their own (forkserver) make, in order, empty ones included.

    Args: make_dataset: makes what is sent to the processes. It gives errors as items: DataLoader would put a whole traceback into their
    message. requests: indices for a dataset that has batches by index, pulled some ahead of use; None: it is iterable. pin_memory:
    batches are in page-locked memory.
    Raises: UserCodeError: a process has exceeded a limit. The errors that the dataset gives.
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
            batches = iter(loader)  # It asks for the first indices, which may fail.
            while (batch := _next(batches, reasons)) is not None:
                if isinstance(batch, ModynError):
                    raise batch
                yield batch
        finally:
            # Workers end with their iterator; left to the garbage collector, that would happen at any time. The pipe is closed after them,
            # so that a worker which ends for a reason of its own can still send it.
            if batches is not None:
                batches._shutdown_workers()
            reasons.close()
            sender.close()


def start_fork_server() -> None:
    """Start the process that those of `batches_of_processes` are forked from, unless it runs, and wait until it has imported what they need."""
    first = _context().Process(target=_start_worker, args=(0,))
    first.start()
    first.join()


def _context() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _next(batches: Any, reasons: Connection[Any, Any]) -> Batch | ModynError | None:
    """The next batch. A worker that exceeds a limit sends the reason on a pipe of its own; DataLoader knows only that it has ended."""
    try:
        batch: Batch | ModynError | None = next(batches, None)
    except RuntimeError as error:
        if reasons.poll():
            raise UserCodeError(reasons.recv()) from error
        raise
    return batch


def _unchanged(batch: Any) -> Any:
    return batch


def _start_worker(_: int) -> None:
    import torch

    from modyn.workers import die_with_parent

    # Ctrl-C reaches all processes of a terminal; the process that started this one decides when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    die_with_parent()
