"""How the payloads of a stream of units reach this process: as answers of storage, or read here, by the short cut.

Either way a unit comes as chunks, of which a batch takes its parts; `gather` makes the parts of one batch one buffer. It may be called by
several threads at once, and is where the short cut reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from modyn.dataset.connections import PayloadReader
from modyn.dataset.order.plan import Piece, Unit
from modyn.dataset.partition_keys import PartitionKeys
from modyn.dataset.payload_rows import Collected, concatenated, neighbours, no_payloads, taken
from modyn.dataset.prefetch import Prefetcher
from modyn.errors import ModynError
from modyn.records import Float32Array, Int64Array, KeysAndWeights
from modyn.storage.flight.client import OnMissing, PayloadClient, Payloads, PayloadStream

if TYPE_CHECKING:
    from modyn.storage.read.local_reads import LocalPayloads

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)

WINDOW_SAMPLES = 262_144
"""Most samples of a partition that are asked for at once."""
WINDOW_BYTES = 64 * 2**20
"""Most bytes of payloads that are asked for at once, as far as can be told from the samples before, unless one sample is larger."""
FIRST_WINDOW = 256
"""Most samples asked for as long as nothing is known of their size, and no more than a batch: one sample may be a film."""


class Chunk(Protocol[P_co]):
    """Arrived samples of a unit. Positions below `upto` have arrived, or are no longer there."""

    @property
    def upto(self) -> int: ...

    def part(self, start: int, stop: int) -> P_co | None:
        """Its samples at positions [start, stop) of the unit; None if it has none there."""


class Arrivals(Protocol[P]):
    def units(self) -> Iterator[tuple[Unit, Iterator[Chunk[P]]]]:
        """All units, in order. Starts the threads."""

    def gather(self, parts: Sequence[P]) -> tuple[Payloads, Float32Array]:
        """The samples of a batch in one buffer, whose offsets begin with 0, and their weights, float32 (n,)."""

    def stop(self) -> None:
        """Makes `units` end, whichever thread is in it."""

    def join(self) -> None:
        """Waits for the threads, once stopped."""


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Rows of a partition whose keys have arrived: a chunk of the short cut. Looked up when a batch is made, by whoever makes it: in random
    order that takes a while for a whole partition, for which the first batch would have to wait."""

    partition: PartitionKeys
    rows: Int64Array

    @property
    def upto(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> Wanted | None:
        rows = self.rows[start:stop]
        return Wanted(self.partition, rows) if len(rows) else None

    def look_up(self) -> KeysAndWeights:
        return self.partition.look_up(self.rows)


KeyStream = Prefetcher[Unit, Wanted]
"""Units, each with its rows as its only chunk."""


class ReadHere:
    """Arrivals by the short cut: what arrives are keys, whose payloads are looked up and read once a batch needs them. So no payload waits
    in memory but those of the batches that are being made, however large a partition is, and a batch is one buffer from the beginning."""

    def __init__(self, keys: KeyStream, payloads: LocalPayloads, dataset: str, on_missing: OnMissing) -> None:
        self._keys = keys
        self._payloads = payloads
        self._dataset = dataset
        self._on_missing = on_missing

    def units(self) -> Iterator[tuple[Unit, Iterator[Chunk[Wanted]]]]:
        for unit, found in self._keys:
            unit.make_rows()  # while the keys are on their way
            yield unit, found

    def gather(self, parts: Sequence[Wanted]) -> tuple[Payloads, Float32Array]:
        found = [part.look_up() for part in parts]
        keys = _joined([part.keys for part in found], np.int64)
        weights = _joined([part.weights for part in found], np.float32)
        if not len(keys):
            return no_payloads(), weights
        located = self._payloads.locate(self._dataset, keys, self._on_missing)
        payloads = located.take(slice(None))
        return payloads, weights if len(located) == len(keys) else weights[located.where]

    def stop(self) -> None:
        self._keys.stop()

    def join(self) -> None:
        self._keys.join()


class Streamed:
    """Arrivals from a service, up to `ahead` fetches beyond the one in use. A fetch is for a unit, or for a window of it where units are
    large, so that memory is bounded whatever a partition holds. Two run at once, so that one begins while the other ends: a client that is
    to use more of the network opens more streams for each.

    shuffled: rows of a unit are in random order. Then payloads are asked for in stored order, which is how they are read fastest from
    disks, row groups and over networks, and put in order once the window is complete; else they are used as soon as they arrive.
    """

    def __init__(
        self,
        keys: KeyStream,
        payloads: PayloadClient,
        dataset: str,
        on_missing: OnMissing,
        *,
        shuffled: bool,
        ahead: int,
    ) -> None:
        self._keys = keys
        self._payloads = payloads
        self._dataset = dataset
        self._on_missing = on_missing
        self._shuffled = shuffled
        self._window: int | None = None
        self._fetches: set[PayloadStream] = set()
        self._stopped = False
        self._prefetcher: Prefetcher[_Window, _Arrived] = Prefetcher(
            self._windows(), self._load, ahead=ahead, threads=2, name="prefetch-payloads"
        )

    def units(self) -> Iterator[tuple[Unit, Iterator[Chunk[Part]]]]:
        for window, chunks in self._prefetcher:
            yield window.unit, chunks

    def gather(self, parts: Sequence[Part]) -> tuple[Payloads, Float32Array]:
        weights = _joined([part.weights for part in parts], np.float32)
        return concatenated([part.payloads for part in parts]), weights

    def stop(self) -> None:
        self._stopped = True
        self._keys.stop()
        self._prefetcher.stop()
        for fetched in list(self._fetches):
            fetched.cancel()

    def join(self) -> None:
        self._prefetcher.join()
        self._keys.join()

    def _windows(self) -> Iterator[_Window]:
        for unit, found in self._keys:
            unit.make_rows()  # as above
            for wanted in found:
                for window in windows(unit, lambda: self._window or _first_window(unit)):  # noqa: B023  (used up at once)
                    yield _Window(window, Wanted(wanted.partition, window.rows).look_up())

    def _load(self, window: _Window) -> Iterator[_Arrived]:
        return self._load_sorted(window) if self._shuffled else self._load_in_order(window.wanted)

    def _fetch(self, asked: Int64Array) -> Iterator[tuple[Payloads, Int64Array]]:
        """Answers, each with the positions in `asked` of its samples."""
        done, num_bytes = 0, 0
        fetched = self._payloads.fetch(self._dataset, asked, self._on_missing)
        self._fetches.add(fetched)
        if self._stopped:  # after this is set, `stop` looks once at what runs
            fetched.cancel()
        try:
            for arrived in fetched:
                where = align(asked, done, arrived.keys)
                done = int(where[-1]) + 1 if len(where) else done
                num_bytes += int(arrived.offsets[-1] - arrived.offsets[0])
                yield arrived, where
        finally:
            self._fetches.discard(fetched)
        if done:
            self._window = max(1, min(WINDOW_SAMPLES, WINDOW_BYTES * done // max(num_bytes, 1)))

    def _load_in_order(self, wanted: KeysAndWeights) -> Iterator[_Arrived]:
        done = 0
        for arrived, where in self._fetch(wanted.keys):
            if len(where):
                done = int(where[-1]) + 1
                yield _Arrived(where, None, wanted.weights[where], arrived, done)
        if done < len(wanted) or not len(wanted):
            yield _nothing(len(wanted))

    def _load_sorted(self, window: _Window) -> Iterator[_Arrived]:
        wanted = window.wanted
        order = _inverse(window.unit.rows)[1]
        collected, present = Collected(len(order), WINDOW_BYTES), [np.empty(0, np.int64)]
        for arrived, where in self._fetch(wanted.keys[order]):
            collected.add(arrived)
            present.append(where)
        # Row k of the answer belongs to position order[present[k]] of the window.
        where, rows = _inverse(order[np.concatenate(present)])
        yield _Arrived(where, rows, wanted.weights[where], collected.payloads(), len(wanted))


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    unit: Unit
    wanted: KeysAndWeights


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Samples of a batch that have arrived. Gathered when the batch is made, not when it is planned."""

    source: Payloads
    rows: Int64Array | slice
    weights: Float32Array

    @property
    def payloads(self) -> Payloads:
        if isinstance(self.rows, slice):
            return neighbours(self.source, self.rows.start, self.rows.stop)
        return taken(self.source, self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Arrived:
    """Sample rows[i] of `payloads` (or i, without rows) is position where[i] of the unit. where: int64 (k,), ascending."""

    where: Int64Array
    rows: Int64Array | None
    weights: Float32Array
    payloads: Payloads
    upto: int

    def part(self, start: int, stop: int) -> Part | None:
        first, last = np.searchsorted(self.where, (start, stop)).tolist()
        if first == last:
            return None
        rows = slice(first, last) if self.rows is None else self.rows[first:last]
        return Part(self.payloads, rows, self.weights[first:last])


def _nothing(upto: int) -> _Arrived:
    return _Arrived(np.empty(0, np.int64), None, np.empty(0, np.float32), no_payloads(), upto)


def _first_window(unit: Unit) -> int:
    piece = unit.pieces[0]
    return min(FIRST_WINDOW, max(1, piece.stop - piece.start))


def arrivals(
    keys: KeyStream, payloads: PayloadReader, dataset: str, on_missing: OnMissing, *, shuffled: bool, ahead: int
) -> Arrivals[Any]:
    """Arrivals of `keys`: by the short cut where `payloads` is one, as a stream otherwise."""
    if isinstance(payloads, PayloadClient):
        return Streamed(keys, payloads, dataset, on_missing, shuffled=shuffled, ahead=ahead)
    return ReadHere(keys, payloads, dataset, on_missing)


def windows(unit: Unit, size: Callable[[], int]) -> Iterator[Unit]:
    """The unit in parts of at most `size()` rows; an empty unit is its only part."""
    pieces = deque(unit.pieces)
    start = 0
    while start < len(unit.rows) or (start == 0 and pieces):
        stop = min(start + size(), len(unit.rows))
        inside: list[Piece] = []
        while pieces and (pieces[0].start < stop or not len(unit.rows)):
            piece = pieces.popleft()
            if piece.stop > stop:
                pieces.appendleft(replace(piece, start=stop))
                piece = replace(piece, stop=stop, last=False)
            inside.append(replace(piece, start=piece.start - start, stop=piece.stop - start))
        yield Unit(unit.partition, unit.rows[start:stop], tuple(inside))
        start = stop


def align(asked: Int64Array, start: int, arrived: Int64Array) -> Int64Array:
    """Positions in `asked`, from `start` on, of the keys `arrived`: those asked for, in order, some perhaps left out.

    >>> align(np.array([5, 3, 9, 3, 4]), 1, np.array([9, 4])).tolist()
    [2, 4]
    """
    positions = np.empty(len(arrived), np.int64)
    done = 0
    while done < len(arrived):
        same = _run(asked[start:], arrived[done:], equal=True)
        positions[done : done + same] = np.arange(start, start + same)
        done, start = done + same, start + same
        if done < len(arrived):
            rest = asked[start:]
            start += _run(rest, np.broadcast_to(arrived[done], len(rest)), equal=False)
            if start == len(asked):
                raise ModynError(f"storage answered key {arrived[done]}, which was not asked for or not in this order")
    return positions


def _run(a: Int64Array, b: Int64Array, *, equal: bool) -> int:
    """How many values at the beginning of both are equal, or all different: looked at in pieces that grow."""
    start, size, num = 0, 64, min(len(a), len(b))
    while start < num:
        stop = min(start + size, num)
        holds = (a[start:stop] == b[start:stop]) == equal
        if not holds.all():
            return start + int(holds.argmin())
        start, size = stop, 4 * size
    return num


def _inverse(values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The distinct, non-negative `values` in ascending order, and the index at which each stands: a sort in linear time.

    >>> [column.tolist() for column in _inverse(np.array([3, 0, 2]))]
    [[0, 2, 3], [1, 2, 0]]
    """
    index = np.full(int(values.max(initial=-1)) + 1, -1, np.int64)
    index[values] = np.arange(len(values))
    present = np.flatnonzero(index >= 0)
    return present, index[present]


def _joined(parts: Sequence[Any], dtype: type[np.int64] | type[np.float32]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.empty(0, dtype), *parts])
