"""Run a dataset in an order that a sampler of the cache decides: batches take samples that other trainings have prepared.

The process of the training decides each batch: for those that make batches, or it by itself, which samples to take from the tier that the sampler
manages, which to put there and which to drop. In workers only: imports torch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Final

import numpy as np
import torch

from modyn.cache.keys import TierName
from modyn.cache.sample_numbers import NO_SAMPLES
from modyn.cache.sharing.served_batch import BatchSampler, SharedBatch
from modyn.cache.sharing.state import LEASE_S
from modyn.config.cache import BY_LOSS
from modyn.dataset.background_fill import BackgroundFill
from modyn.dataset.batch import NO_WORK, Batch, CacheWork
from modyn.dataset.batch_cache import BatchCache, FillCache
from modyn.dataset.batch_maker import BatchMaker
from modyn.dataset.cache_samplers import open_sampler
from modyn.dataset.cache_source import CacheSource
from modyn.dataset.chunks import ReadOptions
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients, PayloadReader
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.plan import BatchPosition, PartitionRead
from modyn.dataset.prefetch import Prefetcher
from modyn.dataset.processes import ProcessLimits, batches_of_processes
from modyn.dataset.reader import BATCHES_AHEAD
from modyn.dataset.sample_cache import SampleCache, TierInUse
from modyn.dataset.trigger_set import TriggerSetDataset, keys_of_partition
from modyn.errors import DataError, ModynError, UserCodeError
from modyn.records import Float32Array, Int64Array, KeysAndWeights

PROBED: Final = 16
"""Samples that are prepared before the first batch, to see how large a value is."""
_REFILLED: Final = 1 << 30
"""Added to the number of a batch for each piece of what is prepared beside it."""
PIECE: Final = 16
"""Samples that are prepared at once beside batches: a batch that is to be decoded waits for no more."""


def trigger_set_keys(dataset: TriggerSetDataset) -> KeysAndWeights | None:
    """All keys that a dataset serves, ascending, and their weights; None: a sample is there twice, which no sampler serves."""
    with closing(dataset.connect()) as clients:
        parts = [
            keys_of_partition(clients.selector, dataset.trigger_set, dataset.share, PartitionRead(number, NO_SAMPLES, ()))
            for number in range(dataset.plan.num_partitions)
        ]
    keys, weights = np.concatenate([part.keys for part in parts]), np.concatenate([part.weights for part in parts])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    return KeysAndWeights(keys, weights[order]) if (np.diff(keys) > 0).all() else None


class SamplerLoader(BatchLoader):
    """The batches of a dataset behind its position, without empty ones: each epoch every sample once, in an order that the sampler of a cache
    decides. Where the cache is away, in an order of the training's own. One worker is a thread, which decides and makes batches ahead of use; where
    decoding may draw random numbers there is none, and the caller's thread makes each batch as it is asked for.

    Args: cache: that `dataset.connect` opens, with the tier that the sampler manages; None: there is none any more. wanted: all keys of the dataset,
    of `trigger_set_keys`. resumed: as `state` returned it at the position; None: it begins.
    """

    def __init__(
        self,
        dataset: TriggerSetDataset,
        cache: CacheSource | None,
        wanted: KeysAndWeights,
        num_workers: int = 1,
        pin_memory: bool = False,
        resumed: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(dataset, num_workers, pin_memory)
        self._cache, self._wanted = cache, wanted
        self._resumed = None if resumed is None else {**resumed, "seen": resumed["seen"].numpy()}
        self._begun = dataset.plan.batches_before(dataset.position)
        self._sampler: BatchSampler | None = None
        self._lock = threading.Lock()
        """Guards the sampler, to which a thread of its own also reports that the training lives."""
        self._probing = NO_WORK
        """What was prepared before the first batch, which counts it."""
        self._asked: deque[int] = deque()
        """Numbers of the batches that are being made."""

    def state(self, position: BatchPosition) -> dict[str, Any]:
        """What a checkpoint keeps, so that another process goes on at a position, which is at or behind that of the state before."""
        assert self._sampler is not None
        with self._lock:
            state = self._sampler.state_dict(self._dataset.plan.batches_before(position) - self._begun - 1)
        return {**state, "seen": torch.from_numpy(state["seen"])}

    def rank(self, keys: Int64Array, losses: Float32Array) -> None:
        """Give the sampler the losses of samples that were trained on, (n,) each. `needs_losses` says whether it makes anything of them."""
        with self._lock:
            if self._sampler is not None:
                self._sampler.rank(keys, losses)

    @property
    def needs_losses(self) -> bool:
        """Whether the sampler chooses by the losses of samples."""
        return self._cache is not None and self._cache.sampler in BY_LOSS

    def _in_threads(self) -> Generator[Batch, None, None]:
        with closing(self._maker(None, self._pin_memory)) as maker, self._shared(maker):
            if self._dataset.data.may_draw:
                # Only reading could be done ahead, and what is decided earlier finds fewer samples that others have prepared.
                yield from self._reported(map(maker.make, self._orders(maker)))
                return
            # One thread: a batch takes what the one before it has put into the tier.
            begun: Prefetcher[_BatchOrder, Batch | ModynError] = Prefetcher(
                self._orders(maker), lambda order: iter((maker[order],)), ahead=BATCHES_AHEAD, threads=1, name="sampler"
            )
            try:
                yield from self._reported(_raised(batch) for _, made in begun for batch in made)
            finally:
                begun.stop()
                # It may wait for storage, inside a batch that nothing will use.
                maker.stop()
                begun.join()
                maker.join()

    def _in_processes(self) -> Generator[Batch, None, None]:
        def make(limits: ProcessLimits) -> _BatchMaker:
            return self._maker(limits, pin_memory=False)

        with closing(self._maker(None, pin_memory=False)) as own, self._shared(own):
            made = batches_of_processes(make, self._num_workers, self._pin_memory, self._orders(own))
            with closing(made) as batches:
                yield from self._reported(batches)

    def _maker(self, limits: ProcessLimits | None, pin_memory: bool) -> _BatchMaker:
        dataset = self._dataset
        return _BatchMaker(dataset.data, dataset.read_options(pin_memory), dataset.connect, self._cache, limits)

    @contextmanager
    def _shared(self, maker: _BatchMaker) -> Iterator[None]:
        """Let the training count for others within the block, also in long pauses between two batches, and leave nothing of it behind. In the block
        all that makes its batches runs and ends."""
        ended = threading.Event()

        def say_that_it_lives() -> None:
            while not ended.wait(LEASE_S / 3):
                with self._lock:
                    if self._sampler is not None:
                        self._sampler.report()

        thread = threading.Thread(target=say_that_it_lives, name="cache-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with self._lock:
                if self._sampler is not None:
                    maker.drop(self._sampler.leave())

    def _reported(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, each of which is reported to the sampler."""

        def reported() -> Iterator[Batch]:
            for batch in batches:
                assert self._sampler is not None
                with self._lock:
                    self._sampler.made(self._asked.popleft(), *(batch.report or ()))
                probing, self._probing = self._probing, NO_WORK
                yield replace(batch, report=None, work=batch.work.plus(probing))

        return self._counted(reported())

    def _orders(self, maker: _BatchMaker) -> Iterator[_BatchOrder]:
        """What to make, decided as it is asked for, some batches ahead of use."""
        self._asked.clear()
        # Here, not with the first batch: it prepares samples, for which the generators of the caller's thread may be seeded.
        capacity, self._probing = maker.room(self._wanted), maker.probing
        plan = self._dataset.plan
        self._sampler = open_sampler(
            self._cache, capacity, self._wanted.keys, plan.seed, self._resumed, plan.batch_size, self._num_workers
        )
        return self._decided(self._sampler)

    def _decided(self, sampler: BatchSampler) -> Iterator[_BatchOrder]:
        dataset, wanted = self._dataset, self._wanted
        plan, start = dataset.plan, dataset.position
        for epoch in range(start.epoch, dataset.end_epoch):
            with self._lock:
                if sampler.epoch < epoch and sampler.num_left:
                    sampler.end_epoch()  # With `drop_last`, what makes no whole batch is left out.
            for index in range(start.batch if epoch == start.epoch else 0, plan.num_batches):
                with self._lock:
                    batch = sampler.next_batch(min(plan.batch_size, plan.num_keys - index * plan.batch_size))
                self._asked.append(batch.number)
                weights = wanted.weights[np.searchsorted(wanted.keys, batch.keys)]
                # Processes make batches in turn.
                is_last = epoch == dataset.end_epoch - 1 and index >= plan.num_batches - max(1, self._num_workers)
                yield _BatchOrder(epoch, index, weights, batch, is_last)


@dataclass(frozen=True, slots=True)
class _BatchOrder:
    """A batch to be made."""

    epoch: int
    index: int
    weights: Float32Array
    batch: SharedBatch
    is_last: bool
    """Of those that this process makes: what it prepares beside batches is counted with this one."""


class _BatchMaker(BatchMaker[_BatchOrder]):
    """Makes batches by their orders, in a process of its own or in that of the training.

    What the sampler wants beside a batch is prepared in the background, by a thread of a process that makes batches only, or where nothing is drawn.
    Where the training draws from the global generators of the same process, that thread would disturb it: there the batch waits.
    """

    def __init__(
        self,
        config: DataConfig,
        options: ReadOptions,
        connect: Callable[[], DatasetClients],
        cache: CacheSource | None,
        limits: ProcessLimits | None,
    ) -> None:
        super().__init__(config, options, limits)
        self._connect, self._cache = connect, cache
        self._fills_beside = limits is not None or not config.may_draw
        self._fill: BackgroundFill[_BatchOrder] | None = None
        self._clients: DatasetClients | None = None
        self._tier: TierInUse | None = None
        """That of the sampler."""
        self.probing = NO_WORK
        """What was prepared by `room`."""

    def connect(self) -> PayloadReader:
        """As `BatchMaker.connect`, and the cache."""
        self._clients = self._connect()
        self._tier = self._cache.open_managed() if self._cache is not None else None
        return self._clients.payloads

    def room(self, wanted: KeysAndWeights) -> int:
        """How many values the tier of the sampler has room for, by the size of a few; 0: it can hold none."""
        managed = self._cache and self._cache.managed
        self.open()
        if not managed or self._tier is None:
            return 0
        probe = _Probe(managed)
        keys = np.random.default_rng(0).choice(wanted.keys, min(PROBED, len(wanted)), replace=False)
        # A sample that cannot be prepared is for the batch that has it; those before it will do.
        with suppress(DataError, UserCodeError):
            self.read(KeysAndWeights.unweighted(keys), 0, 0, probe)
        self.probing = CacheWork(len(keys), len(keys), len(keys))
        return self._tier.room(probe.values)

    def drop(self, keys: Int64Array) -> None:
        """Drop values from the tier of the sampler."""
        if self._tier is not None:
            self._tier.drop(keys)

    def stop(self) -> None:
        """As `BatchMaker.stop`, also what is prepared beside batches."""
        if self._fill is not None:
            self._fill.stop()
        super().stop()

    def join(self) -> None:
        """Wait for what is prepared beside batches, once stopped."""
        if self._fill is not None:
            self._fill.join()

    def close(self) -> None:
        """Close what was opened."""
        for opened in (self._clients, self._tier):
            if opened is not None:
                opened.close()

    def make(self, order: _BatchOrder) -> Batch:
        """As `BatchMaker.make`: a batch is looked up in the cache, and what is to be kept of the rest is put there."""
        self.open()
        assert self._clients is not None
        managed, batch, cache = self._cache and self._cache.managed, order.batch, self._clients.cache
        samples = KeysAndWeights(batch.keys, order.weights)
        if not managed:
            return self.read(samples, order.epoch, order.index, cache)
        used = BatchCache(cache or SampleCache({}), managed, self._tier, batch)
        made = self.read(samples, order.epoch, order.index, used)
        # Only now: a value that is prepared anew may be of a sample that the batch is served.
        return replace(made, report=used.finish(), work=made.work.plus(self._refilled(order)))

    def _refilled(self, order: _BatchOrder) -> CacheWork:
        """Prepare what the sampler wants beside a batch, now or in the background. Returns what was done since the last batch."""
        if not self._fills_beside:
            return reduce(CacheWork.plus, self._refill(order, len(order.batch.refilled)), NO_WORK)
        if self._fill is None:
            self._fill = BackgroundFill(partial(self._refill, size=PIECE))
        if len(order.batch.refilled):
            self._fill.add(order)
        if order.is_last:
            # The rest is of no use to this training.
            self._fill.stop()
            self._fill.join()
        return self._fill.take_work()

    def _refill(self, order: _BatchOrder, size: int) -> Iterator[CacheWork]:
        """Prepare samples for the tier of the sampler, so many at once."""
        managed, refilled = self._cache and self._cache.managed, order.batch.refilled
        if not managed or self._tier is None or self._clients is None:
            return
        for piece, start in enumerate(range(0, len(refilled), max(1, size))):
            samples = KeysAndWeights.unweighted(refilled[start : start + size])
            used = FillCache(self._clients.cache or SampleCache({}), managed, self._tier, order.batch)
            # Of another number, so that they do not draw what the batch draws.
            yield self.read(samples, order.epoch, order.index + (1 + piece) * _REFILLED, used).work


def _raised(batch: Batch | ModynError) -> Batch:
    if isinstance(batch, ModynError):
        raise batch
    return batch


class _Probe(SampleCache):
    """Holds nothing, and remembers the values that are to be kept in one form."""

    def __init__(self, name: TierName) -> None:
        super().__init__({})
        self._name = name
        self.values: list[Any] = []

    def keep(self, tier: TierName, keys: Int64Array, values: Sequence[Any]) -> Int64Array:
        if tier == self._name:
            self.values += values
        return NO_SAMPLES
