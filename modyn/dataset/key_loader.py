"""Any list of keys as batches of tensors, without a trigger set."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from typing import Any

import numpy as np

from modyn.config.base import load_section
from modyn.config.system import SystemConfig, load_system_config
from modyn.dataset.batch import Batch
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import PayloadReader, PayloadSource
from modyn.dataset.order.plan import Piece, Unit
from modyn.dataset.reader import BatchReader, ReadOptions
from modyn.errors import InvalidArgumentError
from modyn.records import Int64Array, KeysAndWeights
from modyn.storage.flight.client import OnMissing

KEYS_PER_READ = 16_384
"""Samples that one fetch of payloads asks for at most, unless a batch is larger."""


def load_keys(
    keys: Int64Array | Iterable[Int64Array],
    data: DataConfig | Mapping[str, Any],
    batch_size: int = 256,
    *,
    num_threads: int = 1,
    on_missing: OnMissing = "skip",
    training: bool = False,
    pin_memory: bool = False,
    payloads: PayloadReader | None = None,
    system: SystemConfig | None = None,
) -> Generator[Batch, None, None]:
    """Batches of any keys, in the order given: int64 (n,), or a stream of such arrays, which is pulled by a thread ahead of use.

    data: the `data` section of a pipeline, with the dataset's name. num_threads: batches made in parallel. on_missing: "skip" leaves
    deleted samples out, "raise" raises NotFoundError. Weights are 1. Random transformations are left out unless `training`; others that
    draw random numbers do so from a fixed seed, in the caller's thread. A batch all of whose samples are deleted is left out. pin_memory:
    batches are in page-locked memory.
    payloads: where they come from; by default the services of `system`, which by default is the system file that MODYN_CONFIG names.
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
        seed_of=(lambda _, index: index) if config.may_draw else None,
        pin_memory=pin_memory,
    )
    with nullcontext(payloads) if payloads is not None else _open(config, num_threads, system) as source:
        units = _units(iter([keys]) if isinstance(keys, np.ndarray) else iter(keys), batch_size)
        reader = BatchReader(units, _GivenKeys(), source, config, options)
        with closing(reader.batches(0 if config.may_draw else 1 if config.runs_per_sample else num_threads)) as batches:
            for batch in batches:
                if len(batch):
                    yield batch


def _open(config: DataConfig, num_threads: int, system: SystemConfig | None) -> PayloadReader:
    return PayloadSource.of(system or load_system_config(), config.dataset_id, streams=num_threads).open()


class _GivenUnit(Unit):
    def __init__(self, keys: Int64Array, pieces: tuple[Piece, ...]) -> None:
        super().__init__(0, np.arange(len(keys)), pieces)
        self.keys = keys


class _GivenKeys:
    """The keys that a unit carries itself."""

    def keys_of(self, unit: Unit) -> KeysAndWeights:
        assert isinstance(unit, _GivenUnit)
        return KeysAndWeights(unit.keys, np.ones(len(unit.keys), np.float32))


def _units(arrays: Iterator[Int64Array], batch_size: int) -> Iterator[Unit]:
    """Units of bounded length, with batches that are full across them; the last unit is empty and closes the last batch."""
    number, held = 0, 0
    limit = max(batch_size, KEYS_PER_READ)
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
            yield _GivenUnit(keys, tuple(pieces))
    if held:
        yield _GivenUnit(np.empty(0, np.int64), (Piece(0, number, 0, 0, True),))
