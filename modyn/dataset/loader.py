"""Run a dataset: in threads of this process or in DataLoader workers. And serve any list of keys, without a trigger set."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from modyn.dataset.batch import Batch
from modyn.dataset.config import DataConfig
from modyn.dataset.online_dataset import DECODED_AHEAD, OnlineDataset
from modyn.dataset.plan import Piece, Unit
from modyn.dataset.prefetch import in_background
from modyn.dataset.reader import BatchReader
from modyn.errors import ModynError, UserCodeError
from modyn.records import Int64Array, KeysAndWeights
from modyn.storage.flight import OnMissing, PayloadClient
from modyn.workers.limits import WorkerLimits, active_limits, impose

_PRELOADED = ["torch", "modyn.dataset.online_dataset"]
KEYS_PER_UNIT = 16_384
"""Samples that one request for payloads holds at most, unless a batch is larger."""


class BatchLoader:
    """The batches of a dataset, in plan order, empty ones left out. Use as a context manager, or call `close`.

    num_workers = 1 serves from threads of this process, more from so many processes of their own (forkserver). The batches are the same.
    """

    def __init__(self, dataset: OnlineDataset, num_workers: int = 1, pin_memory: bool = False) -> None:
        self._dataset = dataset
        self._num_workers = num_workers
        self._pin_memory = pin_memory
        self._running: Generator[Batch, None, None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        """Starts the workers, from the dataset's position on; what ran before is closed."""
        self.close()
        self._running = self._in_threads() if self._num_workers <= 1 else self._in_processes()
        return self._running

    def close(self) -> None:
        """Ends threads and processes."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def _in_threads(self) -> Generator[Batch, None, None]:
        batches = self._dataset.serve()
        assert isinstance(batches, Generator)
        with closing(batches):
            for batch in batches:
                if len(batch):
                    yield batch.pin_memory() if self._pin_memory else batch

    def _in_processes(self) -> Generator[Batch, None, None]:
        context = get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        limits = active_limits()
        told, told_by = context.Pipe(duplex=False)
        loader: DataLoader[Batch | ModynError] = DataLoader(
            _Shipped(self._dataset, limits, told_by),
            batch_size=None,
            num_workers=self._num_workers,
            collate_fn=_unchanged,
            pin_memory=self._pin_memory,
            multiprocessing_context=context,
            worker_init_fn=_start_worker,
        )
        batches: Any = iter(loader)
        try:
            while (batch := _next(batches, told)) is not None:
                if isinstance(batch, ModynError):
                    raise batch
                if len(batch):
                    yield batch
        finally:
            # The workers end when their iterator does; waiting for the garbage collector would leave that to chance.
            batches._shutdown_workers()
            told.close()
            told_by.close()


def _next(batches: Any, told: Connection[Any, Any]) -> Batch | ModynError | None:
    """The next batch. A worker that gave up has said why on a line of its own; DataLoader knows only that it has ended."""
    try:
        batch: Batch | ModynError | None = next(batches, None)
    except RuntimeError as error:
        if told.poll():
            raise UserCodeError(told.recv()) from error
        raise
    return batch


class _Shipped(IterableDataset[Batch | ModynError]):
    """The dataset in a worker process. Its errors are sent as they are: DataLoader would put a whole traceback into their message."""

    def __init__(self, dataset: OnlineDataset, limits: WorkerLimits | None, told_by: Connection[Any, Any]) -> None:
        super().__init__()
        self._dataset = dataset
        self._limits = limits
        self._told_by = told_by

    def __iter__(self) -> Iterator[Batch | ModynError]:
        try:
            if self._limits is not None:
                impose(self._limits, self._give_up)
            yield from self._dataset
        except ModynError as error:
            yield error

    def _give_up(self, message: str) -> None:
        try:
            self._told_by.send(message)
        finally:
            os._exit(1)


def _unchanged(batch: Any) -> Any:
    return batch


def _start_worker(_: int) -> None:
    import torch

    from modyn.workers import die_with_parent

    torch.set_num_threads(1)
    die_with_parent()


def serve_keys(
    keys: Int64Array | Iterable[Int64Array],
    data: DataConfig,
    payloads: PayloadClient,
    batch_size: int,
    *,
    num_threads: int = 1,
    on_missing: OnMissing = "skip",
    training: bool = False,
) -> Generator[Batch, None, None]:
    """Batches of any keys, in the order given: int64 (n,), or a stream of such arrays, which is pulled by a thread ahead of use.

    num_threads: requests for payloads in parallel. Weights are 1. Random transformations are left out unless `training`; others that draw
    random numbers do so from a fixed seed. A batch all of whose samples are deleted is left out.
    """
    reader = BatchReader(
        _units(iter([keys]) if isinstance(keys, np.ndarray) else iter(keys), batch_size),
        _GivenKeys(),
        payloads,
        data,
        training=training,
        ahead=num_threads,
        threads=num_threads,
        on_missing=on_missing,
        seed_of=(lambda _, index: index) if data.may_draw else None,
    )
    batches = reader.batches() if data.may_draw else in_background(reader.batches(), DECODED_AHEAD, reader.stop)
    with closing(batches):
        for batch in batches:
            if len(batch):
                yield batch


@dataclass(frozen=True, slots=True, eq=False)
class _GivenUnit(Unit):
    keys: Int64Array


class _GivenKeys:
    """The keys that a unit carries itself."""

    def keys_of(self, unit: Unit) -> KeysAndWeights:
        assert isinstance(unit, _GivenUnit)
        return KeysAndWeights(unit.keys, np.ones(len(unit.keys), np.float32))


def _units(arrays: Iterator[Int64Array], batch_size: int) -> Iterator[Unit]:
    """Units of bounded length, with batches that are full across them; the last unit is empty and closes the last batch."""
    number, held = 0, 0
    limit = max(batch_size, KEYS_PER_UNIT)
    for array in arrays:
        for first in range(0, len(array), limit):
            keys = array[first : first + limit]
            pieces, start = [], 0
            while start < len(keys):
                stop = min(start + batch_size - held, len(keys))
                complete = held + stop - start == batch_size
                pieces.append(Piece(0, number, start, stop, complete))
                number, held = (number + 1, 0) if complete else (number, held + stop - start)
                start = stop
            yield _GivenUnit(0, np.arange(len(keys)), tuple(pieces), keys)
    if held:
        yield _GivenUnit(0, np.empty(0, np.int64), (Piece(0, number, 0, 0, True),), np.empty(0, np.int64))
