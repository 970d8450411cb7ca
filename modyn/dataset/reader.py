"""One reader: what one process serves of a planned stream, from keys to decoded batches. The order of reading is the order of running.

units → keys (prefetched) → payloads (prefetched, or looked up by the short cut) → planned batches → gathered → decoded
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from modyn.dataset.batch import Batch
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import PayloadReader
from modyn.dataset.decode import Decoder, as_tensor
from modyn.dataset.flight_batches import KeyStream, Wanted, arrivals
from modyn.dataset.order.plan import Unit
from modyn.dataset.partition_keys import PartitionKeys
from modyn.dataset.prefetch import Prefetcher
from modyn.errors import ModynError
from modyn.records import Float32Array, KeysAndWeights
from modyn.storage.flight.client import OnMissing, Payloads

BATCHES_AHEAD = 2
"""Batches that are made ahead of the one in use, at least."""


class KeySource(Protocol):
    """Where the keys of a unit come from."""

    def keys_of(self, unit: Unit) -> KeysAndWeights:
        """Keys and weights of the unit's whole partition, of which `unit.rows` are wanted. Called by prefetch threads, several at once."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a stream is read.

    shuffled: rows of a unit are in random order. ahead: units whose keys, and payloads or windows of them, are prefetched beyond the one in
    use. requests: how many at once. on_missing: "skip" leaves deleted samples out of their batch, "raise" makes them an error.
    training: whether random transformations are applied. seed_of(epoch, index): what the random generators are seeded with while that
    batch is decoded; None leaves them alone. pin_memory: batches are in page-locked memory.
    """

    training: bool
    shuffled: bool = False
    ahead: int = 1
    requests: int = 1
    on_missing: OnMissing = "skip"
    seed_of: Callable[[int, int], int] | None = None
    pin_memory: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Planned:
    """A batch whose parts have arrived."""

    epoch: int
    index: int
    parts: Sequence[Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Gathered:
    """A batch whose payloads are in one buffer. A cache of payloads would stand before it, one of decoded samples behind it."""

    epoch: int
    index: int
    payloads: Payloads
    weights: Float32Array


class BatchReader:
    """Serves the batches of `units`, once: keys from `source`, payloads from `payloads`, decoded as `data` says."""

    def __init__(
        self, units: Iterator[Unit], source: KeySource, payloads: PayloadReader, data: DataConfig, options: ReadOptions
    ) -> None:
        self._options = options
        self._decoder = Decoder(data, training=options.training)
        self._num_planned: int | None = None
        keys: KeyStream = Prefetcher(
            self._counted(units),
            lambda unit: iter((Wanted(PartitionKeys(source.keys_of(unit)), unit.rows),)),
            ahead=options.ahead,
            threads=options.requests,
            name="prefetch-keys",
        )
        self._arrivals = arrivals(
            keys,
            payloads,
            data.dataset_id,
            options.on_missing,
            shuffled=options.shuffled,
            ahead=options.ahead,
        )
        self._serving: Prefetcher[_Planned, Any] | None = None

    def batches(self, num_threads: int) -> Generator[Batch, None, None]:
        """All batches, in order; one whose samples are all deleted is empty. Made by `num_threads` threads, or with 0 by the caller's own:
        where decoding draws random numbers. Bytes are read ahead by a thread even then. Raises what went wrong in any thread, and ModynError
        for a stream that ends before its plan."""
        try:
            if num_threads:
                yield from self._served(lambda planned: self._decode(self._gather(planned)), num_threads)
            else:
                for gathered in self._served(self._gather, 1):
                    yield self._decode(gathered)
        finally:
            self._close()

    def _close(self) -> None:
        """Ends all threads: those that others wait for are told first."""
        self._arrivals.stop()
        if self._serving is not None:
            self._serving.stop()
            self._serving.join()
        self._arrivals.join()

    def _counted(self, units: Iterator[Unit]) -> Iterator[Unit]:
        """The units; how many batches were planned is known once they have come to their end, and not if they break off."""
        num_planned = 0
        for unit in units:
            num_planned += sum(piece.last for piece in unit.pieces)
            yield unit
        self._num_planned = num_planned

    def _served(self, make: Callable[[_Planned], Any], num_threads: int) -> Iterator[Any]:
        """What `make` makes of each planned batch, in their order, on threads."""
        ahead = max(BATCHES_AHEAD, num_threads)
        self._serving = Prefetcher(
            self._planned(), lambda planned: iter((make(planned),)), ahead=ahead, threads=num_threads, name="serve"
        )
        num_served = 0
        for _, made in self._serving:
            for batch in made:
                yield batch
                num_served += 1
        # Whoever stops early does so at a `yield`. A stream that loses its end must not look like one that is complete.
        if num_served != self._num_planned:
            planned = "not all were planned" if self._num_planned is None else f"{self._num_planned} were planned"
            raise ModynError(f"the batches ended after {num_served}, but {planned}: this is an error in Modyn; please report it")

    def _planned(self) -> Iterator[_Planned]:
        """The batches, each as soon as its last part is there; without those that are cut off when the reader is stopped."""
        parts: list[Any] = []
        for unit, chunks in self._arrivals.units():
            chunk = None
            for piece in unit.pieces:
                while chunk is not None or (chunk := next(chunks, None)) is not None:
                    part = chunk.part(piece.start, piece.stop)
                    if part is not None:
                        parts.append(part)
                    if chunk.upto >= piece.stop:
                        break
                    chunk = None
                else:
                    return  # stopped: a unit is complete otherwise, or `_served` raises
                if piece.last:
                    yield _Planned(piece.epoch, piece.index, parts)
                    parts = []

    def _gather(self, planned: _Planned) -> _Gathered:
        return _Gathered(planned.epoch, planned.index, *self._arrivals.gather(planned.parts))

    def _decode(self, gathered: _Gathered) -> Batch:
        payloads, seed_of = gathered.payloads, self._options.seed_of
        with seeded(None if seed_of is None else seed_of(gathered.epoch, gathered.index)):
            data, labels = self._decoder.decode(payloads)
        batch = Batch(as_tensor(payloads.keys), data, labels, as_tensor(gathered.weights), gathered.epoch, gathered.index)
        return batch.pin_memory() if self._options.pin_memory else batch


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """The generators of PyTorch (CPU), NumPy and Python start from `seed` inside the block and go on undisturbed behind it."""
    if seed is None:
        yield
        return
    before = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
