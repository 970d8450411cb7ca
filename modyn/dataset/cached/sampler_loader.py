"""Serve a dataset in the order of a sampler of the cache, so that batches contain samples that other trainings have prepared.

The process of the training decides each batch: which samples to read from the tier of the sampler, which to store there and which to drop. The same
process or worker processes make the batches. Only workers import this module, because it imports torch.
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
from modyn.dataset.batch import NO_WORK, Batch, CacheWork, TierReport
from modyn.dataset.cached.background_fill import BackgroundFill, Filled
from modyn.dataset.cached.batch_cache import BatchCache, FillCache
from modyn.dataset.cached.batch_maker import BatchMaker
from modyn.dataset.cached.cache_samplers import open_sampler
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.cached.sample_cache import SampleCache, TierInUse
from modyn.dataset.chunks import ReadOptions
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients, PayloadReader
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.batch_plan import BatchPosition, PartitionRead
from modyn.dataset.prefetch import Prefetcher
from modyn.dataset.processes import ProcessLimits, batches_of_processes
from modyn.dataset.reader import BATCHES_AHEAD
from modyn.dataset.trigger_set import TriggerSetDataset, keys_of_partition
from modyn.errors import DataError, ModynError, UserCodeError
from modyn.records import Float32Array, Int64Array, KeysAndWeights

PROBED: Final = 16
"""Number of samples that are prepared before the first batch, to measure the size of a value."""
_REFILLED: Final = 1 << 30
"""Each piece of background work has its own batch number: the number of the batch, plus a multiple of this number."""
PIECE: Final = 16
"""Number of samples in a piece of background work. A batch waits for at most one piece."""


def trigger_set_keys(dataset: TriggerSetDataset) -> KeysAndWeights | None:
    """Return all keys that a dataset serves, ascending, and their weights; None if a sample occurs twice, because samplers do not support repeated
    samples.
    """
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
    """The non-empty batches of a dataset, from its position on. Each epoch serves every sample once. The sampler of the cache decides the order;
    without the cache, the loader uses its own random order. A single worker is a thread that decides and makes batches ahead of use. If decoding may
    draw random numbers, the caller's thread makes each batch when it is needed.

    Args: cache: the cache that `dataset.connect` opens, with the tier of the sampler; None: the cache no longer exists. wanted: all keys of the
    dataset, from `trigger_set_keys`. resumed: the result of `state` at the position; None: the training begins.
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
        # Checkpoints hold tensors, and the sampler takes arrays.
        self._resumed = None if resumed is None else {**resumed, "seen": resumed["seen"].numpy()}
        self._begun = dataset.plan.batches_before(dataset.position)
        self._sampler: BatchSampler | None = None
        self._lock = threading.Lock()
        """Guards the sampler, which the deciding threads, the thread of the training and the lease thread use. The lock is not held while a batch is
        made."""
        self._probing = NO_WORK
        """Work before the first batch. The first batch reports it."""
        self._asked: deque[int] = deque()
        """Numbers of the batches that are being made, in order. One thread appends numbers, and another thread removes numbers. No lock is needed,
        because both operations of a deque are atomic."""

    def state(self, position: BatchPosition) -> dict[str, Any]:
        """Return the state for a checkpoint, from which another process resumes at a position. The position must not decrease from call to call."""
        assert self._sampler is not None
        with self._lock:
            state = self._sampler.state_dict(self._dataset.plan.batches_before(position) - self._begun - 1)
        return {**state, "seen": torch.from_numpy(state["seen"])}

    def _in_threads(self) -> Generator[Batch, None, None]:
        # `_shared` ends before the maker is closed, because `_shared` drops values from the tier through the maker.
        with closing(self._maker(None, self._pin_memory)) as maker, self._shared(maker):
            if self._dataset.data.may_draw:
                # Batches are not made ahead: only their reads could be, and an early decision finds fewer samples that other trainings have prepared.
                yield from self._report_batches(map(maker.make, self._orders(maker)))
                return
            # One thread: a batch may read values that the previous batch put into the tier.
            begun: Prefetcher[_BatchOrder, Batch | ModynError] = Prefetcher(
                self._orders(maker), lambda order: iter((maker[order],)), ahead=BATCHES_AHEAD, threads=1, name="sampler"
            )
            try:
                yield from self._report_batches(_raise_error(batch) for _, made in begun for batch in made)
            finally:
                # First prevent further batches. The thread may still wait for storage, for a batch that is no longer needed. `maker.stop` ends this
                # read, and `join` waits for the thread.
                begun.stop()
                maker.stop()
                begun.join()
                maker.join()

    def _in_processes(self) -> Generator[Batch, None, None]:
        def make(limits: ProcessLimits) -> _BatchMaker:
            return self._maker(limits, pin_memory=False)

        with closing(self._maker(None, pin_memory=False)) as own, self._shared(own):
            made = batches_of_processes(make, self._num_workers, self._pin_memory, self._orders(own))
            with closing(made) as batches:
                yield from self._report_batches(batches)

    def _maker(self, limits: ProcessLimits | None, pin_memory: bool) -> _BatchMaker:
        dataset = self._dataset
        return _BatchMaker(dataset.data, dataset.read_options(pin_memory), dataset.connect, self._cache, limits)

    @contextmanager
    def _shared(self, maker: _BatchMaker) -> Iterator[None]:
        """Keep the training a member of the cache within the block, also in long pauses between batches. End the membership with the block. All
        threads and processes that make batches end inside the block, so that their values are dropped only when no batch needs them.
        """
        # Set at the end of the block. It wakes the lease thread.
        ended = threading.Event()

        def send_heartbeats() -> None:
            # Within a lease, two heartbeats may be lost before the state expels the job.
            while not ended.wait(LEASE_S / 3):
                with self._lock:
                    if self._sampler is not None:
                        self._sampler.report()

        thread = threading.Thread(target=send_heartbeats, name="cache-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            # A heartbeat after `leave` would join the cache again, so the thread ends first. The thread ends after the heartbeat in progress.
            thread.join()
            with self._lock:
                if self._sampler is not None:
                    maker.drop(self._sampler.leave())

    def _report_batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Report each batch to the sampler, and yield it."""

        def reported() -> Iterator[Batch]:
            for batch in batches:
                assert self._sampler is not None
                with self._lock:
                    self._sampler.report_made(self._asked.popleft(), *(batch.report or ()))
                probing, self._probing = self._probing, NO_WORK
                yield replace(batch, report=None, work=batch.work.plus(probing))

        return self._count_batches(reported())

    def _orders(self, maker: _BatchMaker) -> Iterator[_BatchOrder]:
        """Yield the batches to make. Each batch is decided when its item is requested, which may be ahead of use."""
        self._asked.clear()
        # `room` is called before the first batch, because it prepares samples and may seed the random generators of the caller's thread.
        capacity, self._probing = maker.room(self._wanted), maker.probing
        self._sampler = self.open_sampler(capacity)
        return self._decide_batches(self._sampler)

    def open_sampler(self, capacity: int) -> BatchSampler:
        """Open the sampler that decides the batches. A subclass may open another sampler. Args: capacity: number of values that fit in the sampler's
        tier."""
        plan = self._dataset.plan
        return open_sampler(
            self._cache, capacity, self._wanted.keys, plan.seed, self._resumed, plan.batch_size, self._num_workers
        )

    def _decide_batches(self, sampler: BatchSampler) -> Iterator[_BatchOrder]:
        dataset, wanted = self._dataset, self._wanted
        plan, start = dataset.plan, dataset.position
        for epoch in range(start.epoch, dataset.end_epoch):
            with self._lock:
                if sampler.epoch < epoch and sampler.num_left:
                    sampler.end_epoch()  # With `drop_last`, the samples of an incomplete batch are left out.
            for index in range(start.batch if epoch == start.epoch else 0, plan.num_batches):
                with self._lock:
                    batch = sampler.next_batch(min(plan.batch_size, plan.num_keys - index * plan.batch_size))
                self._asked.append(batch.number)
                weights = wanted.weights[np.searchsorted(wanted.keys, batch.keys)]
                # Each process makes every num_workers-th batch.
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
    """Whether the process makes no batch after this one. The process then ends its background work, and reports the results of this work with this
    batch."""


class _BatchMaker(BatchMaker[_BatchOrder]):
    """Makes the batch of each `_BatchOrder`, in a separate process or in the process of the training.

    A background thread prepares refills (samples for the cache only) if the process only makes batches, or if decoding draws no random numbers.
    Otherwise the thread would disturb the global random generators of the training, so `make` prepares the refills, and the batch is ready later.
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
        self._fills_in_background = limits is not None or not config.may_draw
        self._fill: BackgroundFill[_BatchOrder] | None = None
        self._clients: DatasetClients | None = None
        self._tier: TierInUse | None = None
        """Tier of the sampler."""
        self.probing = NO_WORK
        """Work that `room` did, to be reported with the first batch."""

    def connect(self) -> PayloadReader:
        """See `BatchMaker.connect`; also opens the cache."""
        self._clients = self._connect()
        self._tier = self._cache.open_managed() if self._cache is not None else None
        return self._clients.payloads

    def room(self, wanted: KeysAndWeights) -> int:
        """Return the number of values that fit in the tier of the sampler, estimated from the size of a few values; 0: no value fits."""
        managed = self._cache and self._cache.managed
        self.open()
        if not managed or self._tier is None:
            return 0
        probe = _Probe(managed)
        keys = np.random.default_rng(0).choice(wanted.keys, min(PROBED, len(wanted)), replace=False)
        # A bad sample raises its error in its batch later; the samples before it are enough here.
        with suppress(DataError, UserCodeError):
            self.read(KeysAndWeights.unweighted(keys), 0, 0, probe)
        self.probing = CacheWork(len(keys), len(keys), len(keys))
        return self._tier.room(probe.values)

    def drop(self, keys: Int64Array) -> None:
        """Drop values from the tier of the sampler."""
        if self._tier is not None:
            self._tier.drop(keys)

    def stop(self) -> None:
        """See `BatchMaker.stop`; also stops the background work."""
        if self._fill is not None:
            self._fill.stop()
        super().stop()

    def join(self) -> None:
        """Wait for the end of the background work, after `stop`."""
        if self._fill is not None:
            self._fill.join()

    def close(self) -> None:
        """Close the payloads and the cache."""
        for opened in (self._clients, self._tier):
            if opened is not None:
                opened.close()

    def make(self, order: _BatchOrder) -> Batch:
        """See `BatchMaker.make`. Takes hits from the cache, and puts admitted samples there."""
        self.open()
        assert self._clients is not None
        managed, batch, cache = self._cache and self._cache.managed, order.batch, self._clients.cache
        samples = KeysAndWeights(batch.keys, order.weights)
        if not managed:
            return self.read(samples, order.epoch, order.index, cache)
        used = BatchCache(cache or SampleCache({}), managed, self._tier, batch)
        made = self.read(samples, order.epoch, order.index, used)
        # Refills follow the batch, because the batch may still read the older value of a sample that is prepared again.
        filled = self._take_refills(order)
        return replace(made, report=used.finish().plus(filled.report), work=made.work.plus(filled.work))

    def _take_refills(self, order: _BatchOrder) -> Filled:
        """Prepare the refills of a batch, now or in the background. Returns the work since the last batch."""
        if not self._fills_in_background:
            return reduce(Filled.plus, self._refill(order, len(order.batch.refilled)), Filled())
        if self._fill is None:
            self._fill = BackgroundFill(partial(self._refill, size=PIECE))
        if len(order.batch.refilled):
            self._fill.add(order)
        if order.is_last:
            # This process makes no later batch that could report the rest. `stop` ends the thread after its current piece.
            self._fill.stop()
            self._fill.join()
        return self._fill.take()

    def _refill(self, order: _BatchOrder, size: int) -> Iterator[Filled]:
        """Prepare the refills of a batch, `size` samples at a time."""
        managed, refilled = self._cache and self._cache.managed, order.batch.refilled
        if not managed or self._tier is None or self._clients is None:
            # Give the samples up; otherwise the state would wait for their values until the job leaves.
            yield Filled(report=TierReport(lost=refilled))
            return
        for piece, start in enumerate(range(0, len(refilled), max(1, size))):
            samples = KeysAndWeights.unweighted(refilled[start : start + size])
            used = FillCache(self._clients.cache or SampleCache({}), managed, self._tier, order.batch)
            # Each piece has its own batch number, so that its random numbers differ from those of the batch.
            work = self.read(samples, order.epoch, order.index + (1 + piece) * _REFILLED, used).work
            yield Filled(work, used.report(samples.keys))


def _raise_error(batch: Batch | ModynError) -> Batch:
    if isinstance(batch, ModynError):
        raise batch
    return batch


class _Probe(SampleCache):
    """A cache that stores nothing, and collects the values for one tier."""

    def __init__(self, name: TierName) -> None:
        super().__init__({})
        self._name = name
        self.values: list[Any] = []

    def keep(self, tier: TierName, keys: Int64Array, values: Sequence[Any]) -> Int64Array:
        if tier == self._name:
            self.values += values
        return NO_SAMPLES
