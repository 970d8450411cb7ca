"""The Flight flow: make batches whose payloads are fetched from a payload server ahead of use.

    PartitionRead → keys (prefetched) → fetch slices of bounded size → payloads (prefetched) → one or more Chunks for each batch slice

A fetch slice contains the rows of a partition read that one request fetches, so that memory is bounded for a partition of any size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from modyn.dataset.cached.sample_cache import SampleCache
from modyn.dataset.chunks import (
    Chunk,
    GatheredSamples,
    KeyStream,
    PayloadBuffer,
    ReadOptions,
    concatenate_payloads,
    fill_in,
    join,
    no_payloads,
    select_payloads,
    spread,
)
from modyn.dataset.order.batch_plan import BatchSlice, PartitionRead
from modyn.dataset.prefetch import Prefetcher
from modyn.errors import ModynError
from modyn.records import Float32Array, Int64Array, KeysAndWeights
from modyn.storage.payloads import PayloadClient, Payloads, PayloadStream


@dataclass(frozen=True, slots=True, eq=False)
class _FetchSlice:
    """Rows [start, stop) of a partition read, with their keys and weights in the order of the rows."""

    read: PartitionRead
    start: int
    stop: int
    wanted: KeysAndWeights


@dataclass(frozen=True, slots=True, eq=False)
class _ArrivedSamples:
    """Samples that have arrived. Sample rows[i] of `payloads` (sample i, if rows is None) is row where[i] of the partition read.

    where: int64 (k,), ascending. weights: float32 (k,). upto: a row; all rows before it have arrived or are deleted.
    """

    where: Int64Array
    rows: Int64Array | None
    weights: Float32Array
    payloads: Payloads
    upto: int

    def chunk(self, batch_slice: BatchSlice) -> Chunk[Payloads]:
        """Return the samples of a batch slice that have arrived, possibly none."""
        first, last = np.searchsorted(self.where, (batch_slice.start, batch_slice.stop)).tolist()
        rows = slice(first, last) if self.rows is None else self.rows[first:last]
        complete = batch_slice.last and self.upto >= batch_slice.stop
        return Chunk(batch_slice.epoch, batch_slice.index, complete, self.payloads, rows, self.weights[first:last])


class FlightBatches:
    """Turns the partition reads of `keys` into chunks of payloads. Up to `options.ahead` fetch slices are fetched beyond the one in use.

    Two fetches run at once, so that a fetch begins while the previous fetch ends. A client that can use more of the network opens more streams for
    each fetch. Shuffled slices are requested in stored order, the fastest order for disks, row groups and networks. A shuffled slice is put in order
    when it is complete. Other slices are used as soon as they arrive.
    """

    def __init__(
        self, keys: KeyStream, payloads: PayloadClient, dataset: str, options: ReadOptions, cache: SampleCache | None = None
    ) -> None:
        self._keys = keys
        self._payloads = payloads
        self._dataset = dataset
        self._options = options
        self._cache = cache
        self._fetch_size: int | None = None
        self._empty: set[int] = set()
        """Keys of samples that arrived without bytes because they are empty. Adding and looking up a key are atomic operations."""
        self._fetches: set[PayloadStream] = set()
        self._stopped = False
        load = self._load_sorted if options.shuffled else self._load_in_order
        self._prefetcher = Prefetcher(self._fetch_slices(), load, ahead=options.ahead, threads=2, name="prefetch-payloads")

    def chunks(self) -> Iterator[Chunk[Payloads]]:
        """Yield the samples of each batch slice, in order, as soon as they arrive. Starts the threads."""
        slices: deque[BatchSlice] = deque()
        for fetch_slice, answers in self._prefetcher:
            if fetch_slice.start == 0:
                slices.extend(fetch_slice.read.slices)
            for answer in answers:
                while slices:
                    chunk = answer.chunk(slices[0])
                    if chunk.last or len(chunk):
                        yield chunk
                    if answer.upto < slices[0].stop:
                        break
                    slices.popleft()
                if answer.upto == fetch_slice.stop:
                    break
            else:
                return  # The prefetcher was stopped; otherwise the fetch slice would be complete.

    def gather(self, batches: Sequence[Sequence[Chunk[Payloads]]]) -> list[GatheredSamples]:
        """Put the samples of each batch into a buffer. Samples in the cache are read from there. Thread-safe."""
        return [self._gather(chunks) for chunks in batches]

    def _gather(self, chunks: Sequence[Chunk[Payloads]]) -> GatheredSamples:
        parts = [(select_payloads(chunk.source, chunk.rows), chunk.weights) for chunk in chunks if len(chunk)]
        weights = join([weights for _, weights in parts if weights is not None] or [np.empty(0, np.float32)])
        payloads = concatenate_payloads([payloads for payloads, _ in parts])
        if self._cache is None:
            return GatheredSamples(payloads, weights)
        needed = np.diff(payloads.offsets) == 0
        if self._empty:
            needed &= [key not in self._empty for key in payloads.keys.tolist()]
        found = self._cache.find(payloads.keys, needed)
        # The cache has lost these samples since `_fetch` looked them up.
        rows = found.missing(needed)
        late = concatenate_payloads([answer for answer, _ in self._read(payloads.keys[rows])]) if len(rows) else no_payloads()
        came = rows[align(payloads.keys[rows], 0, late.keys)]
        payloads = fill_in(payloads, {row: np.frombuffer(late.payload(i), np.uint8) for i, row in enumerate(came.tolist())})
        gathered = found.gathered(payloads, weights)
        return (
            gathered
            if len(came) == len(rows)
            else gathered.take(np.setdiff1d(np.arange(len(payloads)), np.setdiff1d(rows, came)))
        )

    def stop(self) -> None:
        """End `chunks` in its thread, and cancel the fetches.

        Prefetchers stop before their fetches are cancelled, so that the CancelledError of a fetch does not count as a failure. `_stopped` is set
        first. A fetch that begins at the same time is then either in the copy of the set, or sees `_stopped` and cancels itself in `_read`.
        """
        self._stopped = True
        self._keys.stop()
        self._prefetcher.stop()
        for fetched in list(self._fetches):
            fetched.cancel()

    def join(self) -> None:
        """Wait for the threads, after `stop`. Wait first for the threads that wait for keys, then for the threads that fetch keys."""
        self._prefetcher.join()
        self._keys.join()

    def _fetch_slices(self) -> Iterator[_FetchSlice]:
        for read, arrived in self._keys:
            rows = read.rows()  # made while the keys are fetched
            first = min(self._options.limits.first_fetch, max(1, read.slices[0].stop - read.slices[0].start))
            for keys in arrived:
                start = stop = -1
                while stop < len(rows):  # yields once for an empty read
                    start = max(stop, 0)
                    stop = min(start + (self._fetch_size or first), len(rows))
                    yield _FetchSlice(read, start, stop, keys.look_up(rows[start:stop]))

    def _fetch(self, asked: Int64Array) -> Iterator[tuple[Payloads, Int64Array]]:
        """Yield answers, each with the positions of its samples in `asked`. Samples in the cache come without bytes. `gather` reads them from the
        cache.
        """
        held = self._cache.holds(asked) if self._cache is not None else np.zeros(0, np.bool_)
        if not held.any():
            yield from self._note_sizes(self._read(asked))
            return
        # Only storage knows the labels of the samples, and which samples are deleted.
        known = concatenate_payloads([answer for answer, _ in self._read(asked, with_bytes=False)] or [no_payloads()])
        where = align(asked, 0, known.keys)
        needed = np.flatnonzero(~held[where])
        answers = [answer for answer, _ in self._note_sizes(self._read(known.keys[needed]))] if len(needed) else []
        read = concatenate_payloads([select_payloads(answer, slice(0, len(answer))) for answer in answers] or [no_payloads()])
        came = needed[align(known.keys[needed], 0, read.keys)]
        payloads = spread(read, came, known.keys, known.labels)
        if len(came) < len(needed):  # deleted in the meantime
            kept = np.setdiff1d(np.arange(len(where)), np.setdiff1d(needed, came))
            payloads, where = select_payloads(payloads, kept), where[kept]
        yield payloads, where

    def _read(self, asked: Int64Array, *, with_bytes: bool = True) -> Iterator[tuple[Payloads, Int64Array]]:
        """Yield answers of the payload servers, each with the positions of its samples in `asked`."""
        done = 0
        fetched = self._payloads.fetch(
            self._dataset, asked, self._options.on_missing, identity=self._options.identity, with_bytes=with_bytes
        )
        # Adding to, discarding from and copying a set are atomic under the interpreter's lock; see `stop`.
        self._fetches.add(fetched)
        if self._stopped:
            fetched.cancel()
        try:
            for payloads in fetched:
                where = align(asked, done, payloads.keys)
                done = int(where[-1]) + 1 if len(where) else done
                yield payloads, where
        finally:
            self._fetches.discard(fetched)

    def _note_sizes(self, answers: Iterator[tuple[Payloads, Int64Array]]) -> Iterator[tuple[Payloads, Int64Array]]:
        """Yield the answers to a fetch slice. The size of the next slices is computed from the sizes of these answers. With a cache, empty
        samples do not count, and their keys are remembered.
        """
        num_samples, num_bytes, limits = 0, 0, self._options.limits
        for payloads, where in answers:
            num_samples += len(payloads)
            num_bytes += int(payloads.offsets[-1] - payloads.offsets[0])
            if self._cache is not None:
                empty = payloads.keys[np.diff(payloads.offsets) == 0].tolist()
                self._empty.update(empty)
                # The cache may hold all samples but the empty ones, whose size says nothing about the next slices.
                num_samples -= len(empty)
            yield payloads, where
        if num_samples:
            self._fetch_size = max(1, min(limits.fetch_samples, limits.fetch_bytes * num_samples // max(num_bytes, 1)))

    def _load_in_order(self, fetch_slice: _FetchSlice) -> Iterator[_ArrivedSamples]:
        done, weights = fetch_slice.start, fetch_slice.wanted.weights
        for payloads, where in self._fetch(fetch_slice.wanted.keys):
            if len(where):
                done = fetch_slice.start + int(where[-1]) + 1
                yield _ArrivedSamples(where + fetch_slice.start, None, weights[where], payloads, done)
        if done < fetch_slice.stop or not len(weights):
            yield _ArrivedSamples(np.empty(0, np.int64), None, np.empty(0, np.float32), no_payloads(), fetch_slice.stop)

    def _load_sorted(self, fetch_slice: _FetchSlice) -> Iterator[_ArrivedSamples]:
        order = _inverse(fetch_slice.read.rows()[fetch_slice.start : fetch_slice.stop])[1]
        collected, present = PayloadBuffer(len(order), self._options.limits.fetch_bytes), [np.empty(0, np.int64)]
        for payloads, where in self._fetch(fetch_slice.wanted.keys[order]):
            collected.add(payloads)
            present.append(where)
        # Row k of the answer belongs to row order[present[k]] of the fetch slice.
        where, rows = _inverse(order[np.concatenate(present)])
        yield _ArrivedSamples(
            where + fetch_slice.start, rows, fetch_slice.wanted.weights[where], collected.payloads(), fetch_slice.stop
        )


def align(asked: Int64Array, start: int, arrived: Int64Array) -> Int64Array:
    """Return the positions of the keys `arrived` in `asked`, from `start` on. The keys arrive in order; some may be absent.

    Args: asked, arrived: int64, (n,) and (m,). Returns: int64 (m,), ascending.
    Raises: ModynError: a key was not requested, or not in this order.

    >>> align(np.array([5, 3, 9, 3, 4]), 1, np.array([9, 4])).tolist()
    [2, 4]
    """
    positions = np.empty(len(arrived), np.int64)
    done = 0
    while done < len(arrived):
        same = _prefix_length(asked[start:], arrived[done:], equal=True)
        positions[done : done + same] = np.arange(start, start + same)
        done, start = done + same, start + same
        if done < len(arrived):
            rest = asked[start:]
            start += _prefix_length(rest, np.broadcast_to(arrived[done], len(rest)), equal=False)
            if start == len(asked):
                raise ModynError(
                    f"storage answered key {arrived[done]}, which was not asked for or not in this order; use workers, storage and its "
                    "replicas of one version of Modyn, and report it if they are"
                )
    return positions


def _prefix_length(a: Int64Array, b: Int64Array, *, equal: bool) -> int:
    """Return the number of leading values that are equal in both arrays, or that differ in both."""
    start, size, num = 0, 64, min(len(a), len(b))
    while start < num:
        stop = min(start + size, num)
        holds = (a[start:stop] == b[start:stop]) == equal
        if not holds.all():
            return start + int(holds.argmin())
        start, size = stop, 4 * size
    return num


def _inverse(values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Sort distinct, non-negative `values` in linear time. Returns them in ascending order, and the index of each in `values`.

    >>> [column.tolist() for column in _inverse(np.array([3, 0, 2]))]
    [[0, 2, 3], [1, 2, 0]]
    """
    index = np.full(int(values.max(initial=-1)) + 1, -1, np.int64)
    index[values] = np.arange(len(values))
    present = np.flatnonzero(index >= 0)
    return present, index[present]
