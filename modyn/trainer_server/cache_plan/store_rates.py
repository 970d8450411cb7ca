"""Measure how fast trainings can use each store of a cache: with real tiers, the codec for values, and workers as in a training. Imports torch.

Each store gets a temporary tier with its own name. Budgets and samples of trainings are not changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from secrets import token_bytes, token_hex
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import IterableDataset

from modyn.cache.keys import NAMESPACE_BYTES
from modyn.cache.plan.measuring import Clock, StoreRates, measure_processes, measure_together, measure_writing, read_batches
from modyn.cache.sample_codec import SampleCodec
from modyn.cache.tiers.tier import CacheTier, StoreName, TierPlace
from modyn.config.system import SystemConfig
from modyn.dataset.batch import Batch
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.cached.pipeline_cache import shared_memory_bytes
from modyn.dataset.processes import ProcessLimits, batches_of_processes
from modyn.errors import ModynError, UnavailableError
from modyn.records import BoolArray, Int64Array
from modyn.state_folders import shared_folder

STORED_BYTES: Final = 64 << 20
"""Target size in bytes of the values that are written and read: more than fits into the caches of a processor."""


@dataclass(frozen=True, slots=True)
class ReadingWorkers:
    """Workers that read and decode in a training: `num` threads or processes."""

    num: int
    are_processes: bool


class FormSizes:
    """Counts the bytes of one form's samples in a tier. Counting ends at the first sample that a tier cannot keep."""

    def __init__(self) -> None:
        self._codec = SampleCodec()
        self._num_bytes = self._num_samples = 0
        self.refusal: str | None = None
        """Reason why a sample cannot be kept, or None if all samples can be kept."""

    def add(self, samples: Sequence[object]) -> None:
        """Count samples."""
        if self.refusal is None:
            try:
                self._num_bytes += sum(len(self._codec.encode(sample)) for sample in samples)
                self._num_samples += len(samples)
            except Exception as error:  # noqa: BLE001  (values are objects of the user's libraries)
                self.refusal = str(error) or type(error).__name__

    @property
    def mean_bytes(self) -> float | None:
        """Mean number of bytes of a value, or None if a tier cannot keep a value, or there is no value."""
        return self._num_bytes / self._num_samples if self.refusal is None and self._num_samples else None


class CodedTier:
    """A tier that keeps values; implements `ValueStore`."""

    def __init__(self, tier: CacheTier) -> None:
        self._tier, self._codec = tier, SampleCodec()

    def get(self, keys: Int64Array) -> list[Any]:
        """See `ValueStore.get`."""
        return [self._codec.decode(buffer) for buffer in self._tier.get(keys)]

    def put(self, keys: Int64Array, values: Sequence[object]) -> BoolArray:
        """See `ValueStore.put`."""
        return self._tier.put(keys, [self._codec.encode_parts(value) for value in values])


def known_stores(config: SystemConfig) -> dict[StoreName, str]:
    """Return the stores that trainings of an installation can use, each with its folder or URL."""
    url = config.resolved_redis_url()
    return {"memory": str(shared_folder(config.state_dir)), **({} if url is None else {"redis": url})}


def most_stored_bytes() -> int:
    """Limit in bytes on the values for a measurement: at most a quarter of this machine's shared memory."""
    return min(STORED_BYTES, max(1 << 20, shared_memory_bytes() // 4))


def store_rates(
    stores: Mapping[StoreName, str],
    values: Sequence[object],
    batch_size: int,
    workers: ReadingWorkers,
    seconds: float,
    clock: Clock,
) -> tuple[dict[str, StoreRates], list[str]]:
    """Measure each store with `values`, which a store must be able to keep. Remove the values afterwards, even after an error.

    Args: stores: see `known_stores`. Returns: rates by store, and one sentence for each store that cannot be measured, with the reason.
    """
    rates: dict[str, StoreRates] = {}
    notes: list[str] = []
    for name, address in stores.items():
        try:
            rates[name] = _measured(name, address, values, batch_size, workers, seconds / len(stores), clock)
        except ModynError as error:
            notes.append(f"The store '{name}' was left out: {error.message}.")
    return rates, notes


def _measured(
    store: StoreName,
    address: str,
    values: Sequence[object],
    batch_size: int,
    workers: ReadingWorkers,
    seconds: float,
    clock: Clock,
) -> StoreRates:
    """Measure one store. Raises: ConfigError, ConflictError, UnavailableError: the store cannot be used."""
    codec = SampleCodec()
    sizes = [len(codec.encode(value)) for value in values]
    source = CacheSource(store, address, {})
    nothing = TierPlace(f"profiled_{token_hex(8)}", token_bytes(NAMESPACE_BYTES), 0)
    # The budget is twice the size, because the parts of a tier in a Redis Cluster have equal budgets, but unequal numbers of samples.
    place = TierPlace(nothing.name, nothing.namespace, 2 * sum(map(source.tier(nothing).charge, sizes)))
    mean_bytes = sum(sizes) / len(sizes)
    with closing(source.tier(place)) as tier:
        try:
            tier.open()
            if not tier.usage().is_reachable:
                raise UnavailableError("it does not answer")
            written = measure_writing(CodedTier(tier), values, mean_bytes, batch_size, seconds / 2, clock)
            return StoreRates(written, mean_bytes * _reading(source, place, len(values), batch_size, workers, seconds / 2, clock))
        finally:
            tier.clear()


def _reading(
    source: CacheSource,
    place: TierPlace,
    num_values: int,
    batch_size: int,
    workers: ReadingWorkers,
    seconds: float,
    clock: Clock,
) -> float:
    """Measure how many values/s all workers read together."""
    if workers.are_processes:

        def make(limits: ProcessLimits) -> _ReadInProcess:
            return _ReadInProcess(source, place, num_values, batch_size, limits)

        with closing(batches_of_processes(make, workers.num, pin_memory=False)) as batches:
            return measure_processes(batches, len, workers.num, seconds, clock)
    with closing(source.tier(place)) as tier:
        reading = [map(float, read_batches(CodedTier(tier), num_values, batch_size)) for _ in range(workers.num)]
        return measure_together(reading, seconds, clock)


class _ReadInProcess(IterableDataset[Batch | ModynError]):
    """Runs `read_batches` in a worker process. Yields batches without content. The length of a batch is the number of samples found."""

    def __init__(self, source: CacheSource, place: TierPlace, num_values: int, batch_size: int, limits: ProcessLimits) -> None:
        super().__init__()
        self._source, self._place = source, place
        self._num_values, self._batch_size = num_values, batch_size
        self._limits = limits

    def __iter__(self) -> Iterator[Batch | ModynError]:
        try:
            self._limits.impose()
            with closing(self._source.tier(self._place)) as tier:
                for num in read_batches(CodedTier(tier), self._num_values, self._batch_size):
                    keys = torch.from_numpy(np.arange(num))
                    yield Batch(keys, keys, keys, keys)
        except ModynError as error:
            yield error
