"""Load any list of keys as batches of tensors, without a trigger set."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np

from modyn.config.base import load_section
from modyn.config.system import SystemConfig, load_system_config
from modyn.dataset.bad_samples import BadSampleList
from modyn.dataset.batch import Batch
from modyn.dataset.cached.batch_maker import BatchMaker
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.cached.sample_cache import SampleCache
from modyn.dataset.chunks import ReadOptions
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetSource, PayloadReader, PayloadSource
from modyn.dataset.order.batch_plan import BatchSlice, PartitionRead
from modyn.dataset.processes import ProcessLimits, batches_of_processes
from modyn.dataset.reader import BatchReader
from modyn.errors import InvalidArgumentError
from modyn.records import Int64Array, KeysAndWeights, keys_array
from modyn.storage.model.samples import OnMissing

KEYS_PER_READ = 16_384
"""Number of keys in one request, unless a batch is larger."""


def load_keys(
    keys: Int64Array | Sequence[int] | Iterable[Int64Array],
    data: DataConfig | Mapping[str, Any],
    batch_size: int = 256,
    *,
    num_threads: int = 1,
    on_missing: OnMissing = "skip",
    identity: str = "",
    training: bool = False,
    pin_memory: bool = False,
    payloads: PayloadReader | None = None,
    source: PayloadSource | None = None,
    system: SystemConfig | None = None,
    cache: CacheSource | None = None,
) -> Generator[Batch, None, None]:
    """Yield batches of any keys, in the given order, with weights of 1. Batches whose samples are all deleted are left out.

    Args: keys: whole numbers, as int64 (n,) or as a list; or a stream of such arrays, which are pulled ahead of use. data: the `data` section of a
    pipeline, with the dataset's name. num_threads: number of batches made in parallel. on_missing: "skip" leaves deleted samples out, "raise" raises
    NotFoundError. source: source of the payloads for processes. If Python code runs for each sample, `num_threads` processes make the batches;
    without a source one thread makes all batches, because threads would hold the interpreter's lock in turn. identity: identity of the keys' dataset
    (`DatasetInfo.identity`); empty: any. If another dataset now has the name, NotFoundError is raised. training: whether random transformations are
    applied. Other functions that draw random numbers use a fixed seed, in the caller's thread. pin_memory: whether batches are in page-locked memory.
    payloads: source of the payloads; by default the services of `system`, which by default is the system file that MODYN_CONFIG names. cache: cache
    of the dataset's samples, which is read and filled, or None.
    Raises: InvalidArgumentError: `batch_size` or `num_threads` is less than 1.
    """
    for name, value in (("batch_size", batch_size), ("num_threads", num_threads)):
        if value < 1:
            raise InvalidArgumentError(f"{name} is {value}; it must be at least 1")
    config = data if isinstance(data, DataConfig) else load_section(DataConfig, data, "data")
    options = ReadOptions(
        training=training,
        ahead=num_threads,
        requests=num_threads,
        on_missing=on_missing,
        identity=identity,
        seed_of=_number if config.runs_code else None,
        pin_memory=pin_memory,
    )
    # Python code for each sample uses only one processor in a process, so several processes make the batches.
    if source is not None and num_threads > 1 and config.runs_per_sample:
        yield from _by_processes(_arrays(keys), config, batch_size, num_threads, options, source, cache)
        return
    given = _GivenKeys(_arrays(keys))
    reads = given.reads(batch_size, max(batch_size, KEYS_PER_READ))
    with ExitStack() as stack:
        if payloads is None:
            payloads = DatasetSource(system or load_system_config(), config.dataset_id, num_threads).open_payloads()
            stack.callback(payloads.close)
        opened = None if cache is None else stack.enter_context(closing(cache.open()))
        reader = BatchReader(reads, given.keys_of, payloads, config, options, cache=opened)
        # Decoding that draws random numbers runs in this thread, Python code for each sample in one other thread, anything else in all threads.
        with closing(reader.batches(0 if config.may_draw else 1 if config.runs_per_sample else num_threads)) as batches:
            for batch in batches:
                if len(batch):
                    yield batch


def _number(_: int, index: int) -> int:
    """Return the seed of a batch, which depends only on the number of the batch, also with several processes."""
    return index


def _by_processes(
    arrays: Iterator[Int64Array],
    config: DataConfig,
    batch_size: int,
    num_processes: int,
    options: ReadOptions,
    source: PayloadSource,
    cache: CacheSource | None,
) -> Iterator[Batch]:
    # Each process makes whole batches and does not pin them; this process pins them.
    of_one = replace(options, ahead=1, requests=1, pin_memory=False)

    def make(limits: ProcessLimits) -> _BatchOfKeys:
        return _BatchOfKeys(config, of_one, source, cache, limits)

    requests, bad = enumerate(_of_size(arrays, batch_size)), BadSampleList(config)
    with closing(batches_of_processes(make, num_processes, options.pin_memory, requests)) as batches:
        for batch in batches:
            bad.add(batch.bad)
            if len(batch):
                yield batch


def _of_size(arrays: Iterator[Int64Array], size: int) -> Iterator[Int64Array]:
    """Yield the keys in arrays of `size`. The last array may be shorter."""
    held: list[Int64Array] = []
    for array in arrays:
        held.append(array)
        if sum(map(len, held)) >= size:
            joined = np.concatenate(held)
            full = len(joined) // size * size
            yield from (joined[first : first + size] for first in range(0, full, size))
            held = [joined[full:]]
    if sum(map(len, held)):
        yield np.concatenate(held)


class _BatchOfKeys(BatchMaker[tuple[int, Int64Array]]):
    """Makes batches of given keys in a separate process. An order is the number of a batch and its keys."""

    def __init__(
        self,
        config: DataConfig,
        options: ReadOptions,
        source: PayloadSource,
        cache: CacheSource | None,
        limits: ProcessLimits,
    ) -> None:
        super().__init__(config, options, limits)
        self._source, self._cache = source, cache
        self._tiers: SampleCache | None = None

    def connect(self) -> PayloadReader:
        """See `BatchMaker.connect`; also opens the cache."""
        self._tiers = None if self._cache is None else self._cache.open()
        return self._source.open_payloads()

    def make(self, order: tuple[int, Int64Array]) -> Batch:
        """See `BatchMaker.make`."""
        number, keys = order
        self.open()
        return self.read(KeysAndWeights.unweighted(keys), 0, number, self._tiers)


def _arrays(keys: Int64Array | Sequence[int] | Iterable[Int64Array]) -> Iterator[Int64Array]:
    """Return the keys as a stream of arrays. Raises InvalidArgumentError if `keys` are not whole numbers."""
    is_one = isinstance(keys, np.ndarray) or (isinstance(keys, Sequence) and all(np.ndim(key) == 0 for key in keys))
    arrays: Iterable[Any] = [keys] if is_one or not isinstance(keys, Iterable) else keys
    return map(keys_array, arrays)


class _GivenKeys:
    """The given keys in slices. Each slice is served as a partition, numbered from 0."""

    def __init__(self, arrays: Iterator[Int64Array]) -> None:
        self._arrays = arrays
        # One thread pulls the reads and adds entries; another thread looks up the keys and removes the entries. Both operations are atomic.
        self._partitions: dict[int, Int64Array] = {}
        self._num_reads = 0

    def keys_of(self, read: PartitionRead) -> KeysAndWeights:
        """Return the keys of a read, with weights of 1. Call it once for each read."""
        keys = self._partitions.pop(read.partition)
        return KeysAndWeights.unweighted(keys)

    def reads(self, batch_size: int, limit: int) -> Iterator[PartitionRead]:
        """Yield reads of at most `limit` keys. A batch may span reads. If the last batch is not full, the last read is empty and completes this
        batch.
        """
        index, held = 0, 0
        for array in self._arrays:
            for first in range(0, len(array), limit):
                keys = array[first : first + limit]
                slices, start = [], 0
                while start < len(keys):
                    stop = min(start + batch_size - held, len(keys))
                    complete = held + stop - start == batch_size
                    slices.append(BatchSlice(0, index, start, stop, complete))
                    index, held = (index + 1, 0) if complete else (index, held + stop - start)
                    start = stop
                yield self._read(keys, slices)
        if held:
            yield self._read(np.empty(0, np.int64), [BatchSlice(0, index, 0, 0, True)])

    def _read(self, keys: Int64Array, slices: Sequence[BatchSlice]) -> PartitionRead:
        number, self._num_reads = self._num_reads, self._num_reads + 1
        self._partitions[number] = keys
        return PartitionRead(number, np.arange(len(keys)), tuple(slices))
