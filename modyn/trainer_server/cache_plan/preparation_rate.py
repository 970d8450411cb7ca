"""Measure the rate at which the workers of a training (processes or threads) decode and augment payloads in memory.

Imports torch and the modules that make batches, but no training code, because each worker process imports this module at its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import reduce
from itertools import cycle
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from modyn.cache.plan.measuring import Clock, measure_processes, measure_together
from modyn.dataset.batch import Batch
from modyn.dataset.config import DataConfig
from modyn.dataset.decode import BatchPipeline, as_tensor
from modyn.dataset.preparation_clock import NO_TIMES, PreparationClock, PreparationTimes
from modyn.dataset.processes import ProcessLimits, batches_of_processes
from modyn.errors import ModynError
from modyn.models.calls import Data
from modyn.storage.payloads import Payloads
from modyn.trainer_server.cache_plan.store_rates import ReadingWorkers


def preparation_rate(
    data: DataConfig,
    pieces: Sequence[Payloads],
    workers: ReadingWorkers,
    seconds: float,
    clock: Clock,
    *,
    from_decoded: bool = False,
) -> tuple[float, PreparationTimes]:
    """Measure the samples per second that the workers of a training (`BatchLoader`) prepare, as processes or as threads. Also return the preparation
    times.

    Args: from_decoded: decode the samples once beforehand, outside of the measured time, and measure only augmentation.
    Raises: UserCodeError, DataError: from the user's functions.
    """
    times: list[PreparationTimes] = []

    def amount(batch: Batch) -> float:
        # Several threads call this. No lock is needed, because `append` is one operation of the interpreter.
        times.append(batch.times)
        return len(batch)

    if workers.are_processes:

        def make(limits: ProcessLimits) -> _PreparedInProcess:
            return _PreparedInProcess(data, pieces, from_decoded, limits)

        with closing(batches_of_processes(make, workers.num, pin_memory=False)) as batches:
            rate = measure_processes(batches, amount, workers.num, seconds, clock)
        return rate, reduce(PreparationTimes.plus, times, NO_TIMES)
    functions = BatchPipeline(data, training=True)
    num_threads = 1 if data.may_draw else workers.num
    threads = [map(amount, prepared_again(functions, data, pieces, from_decoded)) for _ in range(num_threads)]
    return measure_together(threads, seconds, clock), reduce(PreparationTimes.plus, times, NO_TIMES)


def prepared_again(functions: BatchPipeline, data: DataConfig, pieces: Sequence[Payloads], from_decoded: bool) -> Iterator[Batch]:
    """Yield batches of the pieces in an endless cycle."""
    decoded = [decode_samples(functions, data, piece) if from_decoded else [] for piece in pieces]
    for piece, samples in cycle(zip(pieces, decoded, strict=True)):
        preparing = PreparationClock()
        if from_decoded:
            made, labels = default_collate(functions.augment(samples, piece.keys)), as_tensor(piece.labels)
        else:
            made, labels = functions.run(piece, clock=preparing)
        yield Batch(as_tensor(piece.keys), made, labels, torch.ones(len(piece)), times=preparing.times)


class _PreparedInProcess(IterableDataset[Batch | ModynError]):
    """`prepared_again` in a worker process."""

    def __init__(self, data: DataConfig, pieces: Sequence[Payloads], from_decoded: bool, limits: ProcessLimits) -> None:
        super().__init__()
        self._data, self._pieces, self._from_decoded = data, pieces, from_decoded
        self._limits = limits

    def __iter__(self) -> Iterator[Batch | ModynError]:
        try:
            self._limits.impose()
            yield from prepared_again(BatchPipeline(self._data, training=True), self._data, self._pieces, self._from_decoded)
        except ModynError as error:
            yield error


def decode_samples(functions: BatchPipeline, data: DataConfig, payloads: Payloads) -> list[Any]:
    """Decode the samples with all deterministic transformations. Return one value for each sample."""
    if data.bytes_parser_function is not None or data.decode is not None:
        return functions.decode(map(payloads.payload, range(len(payloads))), payloads.keys)
    return functions.decode(rows_of(functions.decode_batch(payloads)), payloads.keys)


def rows_of(batch: Data) -> list[Any]:
    """Split a batch into its samples.

    >>> rows_of({"x": torch.tensor([1, 2])})
    [{'x': tensor(1)}, {'x': tensor(2)}]
    """
    if isinstance(batch, torch.Tensor):
        return list(batch)
    if isinstance(batch, tuple):
        return list(zip(*batch, strict=True))
    return [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
