"""Trainings as processes that read at the same time, each with one worker of its own: a thread of it, which decodes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Self, TypeVar

import numpy as np
import torch

from benchmark.cache.arrivals import Arrivals
from benchmark.cache.sides import Side
from modyn.workers.fork_server import ENVIRONMENT

T = TypeVar("T")
R = TypeVar("R")
_START_S = 300.0
"""For all processes to be there."""
_barrier: Barrier | None = None


@dataclass(frozen=True, slots=True)
class Training:
    """One training: it reads, and pauses for the time of an accelerator's work. Picklable."""

    side: Side
    epochs: int
    seed: int
    samples_per_s: float = float("inf")
    """Rate of the accelerator that it simulates."""
    workers: int = 1
    """One worker is a thread of the training's process; several workers are processes."""


def read(training: Training) -> Arrivals:
    """Read all epochs. Raises: RuntimeError: it was not served each sample once an epoch."""
    times: list[float] = []
    sizes: list[int] = []
    num_hits = num_served = 0
    with training.side.loader(training.seed, training.epochs, workers=training.workers) as loader:
        for batch in loader:
            # The clock of the machine, which all processes share.
            times.append(time.monotonic())
            sizes.append(len(batch))
            if batch.epoch:
                num_hits, num_served = num_hits + sum(batch.cached), num_served + len(batch)
            time.sleep(len(batch) / training.samples_per_s)
            training.side.trained(loader, batch.keys.numpy())
    expected = training.epochs * training.side.trigger_set.num_keys
    if sum(sizes) != expected:
        raise RuntimeError(f"{sum(sizes)} samples came, not {expected}")
    # The last batch is trained on too.
    return Arrivals(np.array([*times, time.monotonic()]), np.cumsum([*sizes, 0]), num_hits / max(1, num_served))


class TrainingProcesses:
    """A number of processes, which stay for one training after the other. Each imports what it needs before the first one begins."""

    def __init__(self, number: int) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        context = get_context("spawn")
        self._number = number
        self._pool = ProcessPoolExecutor(number, context, _begin, (context.Barrier(number),))
        self.run(_nothing, [None] * number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def run(
        self, work: Callable[[T], R], tasks: Sequence[T], watch: Callable[[], object] | None = None, every_s: float = 0.2
    ) -> list[R]:
        """Do a task in each process, all beginning at once. Args: watch: called meanwhile, again and again. Raises what a task raises."""
        if len(tasks) != self._number:
            raise ValueError(f"{len(tasks)} tasks were given to {self._number} processes")
        waiting = [self._pool.submit(_together, work, task) for task in tasks]
        while watch is not None and not all(future.done() for future in waiting):
            watch()
            time.sleep(every_s)
        return [future.result() for future in waiting]

    def submit(self, work: Callable[[T], R], task: T) -> Future[R]:
        """Do a task as soon as a process is free, in the order in which they were given."""
        return self._pool.submit(work, task)

    def read(self, trainings: Sequence[Training], watch: Callable[[], object] | None = None) -> list[Arrivals]:
        """Run trainings at once, as many as there are processes. Args: watch: as of `run`."""
        return self.run(read, trainings, watch)


def _begin(barrier: Barrier) -> None:
    global _barrier  # noqa: PLW0603  (of this process alone)
    _barrier = barrier
    torch.set_num_threads(1)


def _together(work: Callable[[T], R], task: T) -> R:
    """Wait until each process has its task: so none takes two."""
    assert _barrier is not None
    _barrier.wait(_START_S)
    return work(task)


def _nothing(_: object) -> None: ...
