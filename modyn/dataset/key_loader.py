"""Any list of keys as batches of tensors, without a trigger set."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from modyn.config.base import load_section
from modyn.config.system import SystemConfig, load_system_config
from modyn.dataset.batch import Batch
from modyn.dataset.chunks import ReadOptions
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetSource, PayloadReader
from modyn.dataset.order.plan import BatchSlice, PartitionRead
from modyn.dataset.reader import BatchReader
from modyn.errors import InvalidArgumentError
from modyn.records import Int64Array, KeysAndWeights, keys_array
from modyn.storage.model.samples import OnMissing

KEYS_PER_READ = 16_384
"""Keys that are asked for as one, unless a batch is larger."""


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
    system: SystemConfig | None = None,
) -> Generator[Batch, None, None]:
    """Batches of any keys, in the order given; without those whose samples are all deleted. Weights are 1.

    Args: keys: whole numbers, as int64 (n,) or as a list; or a stream of such arrays,
    which a thread pulls ahead of use. data: the `data` section of a pipeline, with the
    dataset's name. num_threads: batches made in parallel. on_missing: "skip" leaves deleted samples out, "raise" raises NotFoundError.
    identity: of the dataset that the keys are of (`DatasetInfo.identity`); NotFoundError if another is registered under its name; empty: any.
    training: whether random transformations are applied; others that draw random numbers do so from a fixed seed, in the caller's thread.
    pin_memory: batches are in page-locked memory. payloads: where they come from; by default the services of `system`, which by default is
    the system file that MODYN_CONFIG names.
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
        seed_of=(lambda _, index: index) if config.runs_code else None,
        pin_memory=pin_memory,
    )
    given = _GivenKeys(_arrays(keys))
    reads = given.reads(batch_size, max(batch_size, KEYS_PER_READ))
    with ExitStack() as stack:
        if payloads is None:
            payloads = DatasetSource(system or load_system_config(), config.dataset_id, num_threads).open_payloads()
            stack.callback(payloads.close)
        reader = BatchReader(reads, given.keys_of, payloads, config, options)
        with closing(reader.batches(0 if config.may_draw else 1 if config.runs_per_sample else num_threads)) as batches:
            for batch in batches:
                if len(batch):
                    yield batch


def _arrays(keys: Int64Array | Sequence[int] | Iterable[Int64Array]) -> Iterator[Int64Array]:
    """The keys as a stream of arrays. Raises InvalidArgumentError: they are not whole numbers."""
    is_one = isinstance(keys, np.ndarray) or (isinstance(keys, Sequence) and all(np.ndim(key) == 0 for key in keys))
    return map(keys_array, [keys] if is_one else keys)


class _GivenKeys:
    """The given keys in parts, each served as a partition of its own, numbered from 0."""

    def __init__(self, arrays: Iterator[Int64Array]) -> None:
        self._arrays = arrays
        # Entered by the thread that pulls the reads, taken out by the one that looks up the keys: single operations.
        self._parts: dict[int, Int64Array] = {}
        self._num_reads = 0

    def keys_of(self, read: PartitionRead) -> KeysAndWeights:
        """The keys of a read, with weights 1. To be called once for each read."""
        keys = self._parts.pop(read.partition)
        return KeysAndWeights.unweighted(keys)

    def reads(self, batch_size: int, limit: int) -> Iterator[PartitionRead]:
        """Reads of at most `limit` keys, with batches that are full across them; the last read is empty and completes the last batch."""
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
        self._parts[number] = keys
        return PartitionRead(number, np.arange(len(keys)), tuple(slices))
