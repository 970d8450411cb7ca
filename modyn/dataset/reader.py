"""One reader: what one process serves of a planned stream, from keys to decoded batches. The order of reading is the order of running."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from modyn.dataset.batch import Batch
from modyn.dataset.config import DataConfig
from modyn.dataset.decode import Decoder, Segment, concatenate
from modyn.dataset.plan import Unit
from modyn.dataset.prefetch import Prefetcher
from modyn.errors import ModynError
from modyn.records import Float32Array, Int64Array, KeysAndWeights
from modyn.storage.flight import OnMissing, PayloadClient, Payloads


class KeySource(Protocol):
    """Where the keys of a unit come from."""

    def keys_of(self, unit: Unit) -> KeysAndWeights:
        """Keys and weights of `unit.rows`, in that order. Called by prefetch threads, several at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Arrived samples of a unit: sample `rows[i]` of `payloads` is position `where[i]` of the unit, weighted `weights[i]`.

    where: int64 (k,), ascending. Positions below `upto` have arrived, or are no longer there.
    """

    where: Int64Array
    rows: Int64Array
    weights: Float32Array
    payloads: Payloads
    upto: int


def align(asked: Int64Array, start: int, arrived: Int64Array) -> Int64Array:
    """Positions in `asked`, from `start` on, of the keys `arrived`: those asked for, in order, some perhaps left out.

    >>> align(np.array([5, 3, 9, 3, 4]), 1, np.array([9, 4])).tolist()
    [2, 4]
    """
    n = len(arrived)
    if np.array_equal(asked[start : start + n], arrived):
        return np.arange(start, start + n, dtype=np.int64)
    positions = np.empty(n, np.int64)
    for i, key in enumerate(arrived.tolist()):
        rest = asked[start:]
        step = int(np.argmax(rest == key)) if len(rest) else 0
        if not len(rest) or rest[step] != key:
            raise ModynError(f"storage answered key {key}, which was not asked for or not in this order")
        positions[i] = start + step
        start += step + 1
    return positions


class BatchReader:
    """Serves the batches of `units`: keys from `source`, payloads from `payloads`, decoded as `data` says.

    whole_units: rows of a unit are in shuffled order. Then its payloads are asked for in stored order, which is how they are read fastest,
    and put in order once all have arrived; else samples are used as soon as they arrive.
    seed_of(epoch, index): what the random generators are seeded with while that batch is decoded; None leaves them alone.
    on_missing: "skip" leaves deleted samples out of their batch, "raise" makes them an error.
    """

    def __init__(
        self,
        units: Iterator[Unit],
        source: KeySource,
        payloads: PayloadClient,
        data: DataConfig,
        *,
        training: bool,
        whole_units: bool = False,
        ahead: int = 1,
        threads: int = 1,
        on_missing: OnMissing = "skip",
        seed_of: Callable[[int, int], int] | None = None,
    ) -> None:
        self._source = source
        self._payloads = payloads
        self._dataset = data.dataset_id
        self._whole_units = whole_units
        self._on_missing: OnMissing = on_missing
        self._seed_of = seed_of
        self._decoder = Decoder(data, training=training)
        self._prefetcher: Prefetcher[Unit, Chunk] = Prefetcher(units, self._load, ahead, threads)

    def stop(self) -> None:
        """Makes `batches` end, whichever thread is in it."""
        self._prefetcher.close()

    def batches(self) -> Generator[Batch, None, None]:
        """All batches, in order; one whose samples are all deleted is empty. Ends the threads when it ends."""
        with closing(self._prefetcher):
            segments: list[Segment] = []
            for unit, chunks in self._prefetcher:
                chunk: Chunk | None = None
                for piece in unit.pieces:
                    while chunk is not None or (chunk := next(chunks, None)) is not None:
                        first, last = np.searchsorted(chunk.where, (piece.start, piece.stop))
                        if last > first:
                            segments.append(Segment(chunk.payloads, chunk.rows[first:last], chunk.weights[first:last]))
                        if chunk.upto >= piece.stop:
                            break
                        chunk = None
                    else:
                        return  # stopped: a unit is complete otherwise
                    if piece.last:
                        yield self._decode(segments, piece.epoch, piece.index)
                        segments = []

    def _decode(self, segments: list[Segment], epoch: int, index: int) -> Batch:
        with seeded(None if self._seed_of is None else self._seed_of(epoch, index)):
            data, labels = self._decoder.decode(segments)
        keys = np.concatenate([np.empty(0, np.int64), *(segment.keys for segment in segments)])
        weights = np.concatenate([np.empty(0, np.float32), *(segment.weights for segment in segments)])
        return Batch(torch.from_numpy(keys), data, labels, torch.from_numpy(weights), epoch, index)

    def _load(self, unit: Unit) -> Iterator[Chunk]:
        wanted = self._source.keys_of(unit)
        return self._load_sorted(unit, wanted) if self._whole_units else self._load_in_order(wanted)

    def _load_in_order(self, wanted: KeysAndWeights) -> Iterator[Chunk]:
        done = 0
        for arrived in self._payloads.fetch(self._dataset, wanted.keys, self._on_missing):
            where = align(wanted.keys, done, arrived.keys)
            done = int(where[-1]) + 1 if len(where) else done
            yield Chunk(where, np.arange(len(where)), wanted.weights[where], arrived, done)
        if done < len(wanted) or not len(wanted):
            nothing = np.empty(0, np.int64)
            yield Chunk(nothing, nothing, wanted.weights[:0], _no_payloads(), len(wanted))

    def _load_sorted(self, unit: Unit, wanted: KeysAndWeights) -> Iterator[Chunk]:
        order = _inverse(unit.rows)[1]
        asked = wanted.keys[order]
        parts, present, done = [], [np.empty(0, np.int64)], 0
        for arrived in self._payloads.fetch(self._dataset, asked, self._on_missing):
            where = align(asked, done, arrived.keys)
            done = int(where[-1]) + 1 if len(where) else done
            parts.append(arrived)
            present.append(where)
        # Row k of the answer belongs to position order[present[k]] of the unit.
        where, rows = _inverse(order[np.concatenate(present)])
        yield Chunk(where, rows, wanted.weights[where], concatenate(parts) if parts else _no_payloads(), len(wanted))


def _inverse(values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The distinct, non-negative `values` in ascending order, and the index at which each stands: a sort in linear time.

    >>> [column.tolist() for column in _inverse(np.array([3, 0, 2]))]
    [[0, 2, 3], [1, 2, 0]]
    """
    index = np.full(int(values.max(initial=-1)) + 1, -1, np.int64)
    index[values] = np.arange(len(values))
    present = np.flatnonzero(index >= 0)
    return present, index[present]


def _no_payloads() -> Payloads:
    nothing = np.empty(0, np.int64)
    return Payloads(nothing, nothing, np.empty(0, np.uint8), np.zeros(1, np.int64))


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
