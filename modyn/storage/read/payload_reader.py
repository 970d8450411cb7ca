"""From keys to bytes: look up where the samples are, and read them, all at once or in chunks of bounded size, one chunk ahead."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import Counter

from modyn._core import FileChangedError
from modyn.errors import DataError, NotFoundError
from modyn.records import Int64Array, LabelArray
from modyn.storage.index.segment_index import Entries, Locations
from modyn.storage.model.samples import OnMissing, Payloads
from modyn.storage.read.snapshot import DatasetSnapshot

PAYLOAD_BYTES = Counter("modyn_storage_payload_bytes_total", "Bytes of payloads that were read", ["dataset"])


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """Limits of what a `ChunkReader` reads at once."""

    rows: int = 65_536
    bytes: int = 8 * 2**20
    """Of payloads, unless a single sample is larger."""
    at_once: int = 8
    """Chunks of one dataset, for all requests together."""
    poll_s: float = 1.0
    """Seconds after which a caller that waits for a chunk gets None, since a read on a dead mount may never end."""


@dataclass(frozen=True, slots=True, eq=False)
class LocatedSamples:
    """Samples whose places are known and whose bytes are not read yet, in the order asked.

    keys: int64 (n,), those asked that are there. where: int64 (n,), their positions in the question. labels: int64 or float64 (n,).
    """

    keys: Int64Array
    where: Int64Array
    labels: LabelArray
    locations: Locations
    identity: str
    """Identity of the registration that the keys were looked up in."""
    snapshot: Callable[[], DatasetSnapshot]
    """The dataset as it is now: what becomes unreadable after the look-up is not read."""

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Int64Array | slice) -> Payloads:
        """Reads these rows now, in this order, duplicates allowed. From any thread; the GIL is released while it reads.

        Raises DataError naming file and offset of what cannot be read, NotFoundError if the dataset was deleted.
        """
        now, keys = self.snapshot(), self.keys[rows]
        now.refuse_other(self.identity)
        file_ids, offsets = self.locations.file_ids[rows], self.locations.offsets[rows]
        if (row := now.first_altered(file_ids)) is not None:
            raise DataError(
                f"{now.paths[int(file_ids[row])]} was changed after it was indexed, so the sample with key {keys[row]} at byte "
                f"{offsets[row]} of it cannot be read; `modyn data problems {now.name}` says why"
            )
        lengths = self.locations.lengths
        size = lengths if isinstance(lengths, int) else None
        try:
            data, bounds = now.reader.gather(file_ids, offsets, lengths if isinstance(lengths, int) else lengths[rows])
        except FileChangedError as error:
            found = (i for i in np.flatnonzero(offsets == error.offset).tolist() if now.paths[int(file_ids[i])] == error.path)
            named = "".join(f"the sample with key {keys[i]} cannot be read: " for i in itertools.islice(found, 1))
            raise FileChangedError(f"{named}{error.message}: `modyn data ingest {now.name}`") from error
        except DataError as error:
            raise DataError(f"{error.message} (`modyn data problems {now.name}` lists all files that are set aside)") from error
        PAYLOAD_BYTES.labels(now.name).inc(data.nbytes)
        return Payloads(keys, self.labels[rows], data, bounds, size)


def locate(snapshot: Callable[[], DatasetSnapshot], keys: Int64Array, on_missing: OnMissing) -> LocatedSamples:
    """Where the samples of `keys` are, in the order asked, duplicates included. Reads no data file.

    Keys that do not exist or were deleted raise NotFoundError that names the first of them, or are left out with on_missing="skip".
    """
    now = snapshot()
    where, entries = np.arange(len(keys)), _entries_of_all(now, keys)
    if entries is None:
        if on_missing == "raise":
            now.refuse_missing(keys)
        where = np.flatnonzero(~now.missing(keys))
        keys = keys[where]
        entries = now.index.entries(keys)
    return LocatedSamples(keys, where, entries.labels, entries.locations, now.identity, snapshot)


def _entries_of_all(snapshot: DatasetSnapshot, keys: Int64Array) -> Entries | None:
    """None: some of the keys are missing. One pass over them where none is, which is the rule."""
    try:
        entries = snapshot.index.entries(keys)
    except NotFoundError:
        return None
    return None if snapshot.tombstones.count and snapshot.tombstones.contains(keys).any() else entries


@dataclass(slots=True, eq=False)
class _Pool:
    """The threads that read one dataset, and what they have not ended."""

    threads: ThreadPoolExecutor
    running: list[Future[Payloads]] = field(default_factory=list)


class ChunkReader:
    """Reads payloads for all requests of a process, one chunk of each ahead of its caller. Thread-safe.

    Each dataset is read by threads of its own: one on a dead mount, where reads hang, does not hold up the others.
    """

    def __init__(self, limits: ChunkLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()  # Protects the pools: none is dropped while a chunk is submitted to it.
        self._pools: dict[str, _Pool] = {}

    def close(self) -> None:
        """Drop the chunks that have not begun, and do not wait for the others."""
        with self._lock:
            for pool in self._pools.values():
                pool.threads.shutdown(wait=False, cancel_futures=True)

    def read(
        self, snapshot: Callable[[], DatasetSnapshot], keys: Int64Array, on_missing: OnMissing
    ) -> Iterator[tuple[Payloads, int] | None]:
        """Yield chunks in the order asked, each with the number of `keys` that are answered after it; at least one chunk.

        All keys are looked up first. None is yielded whenever a chunk takes longer than `ChunkLimits.poll_s`.
        Raises: as `locate` and `LocatedSamples.take`.
        """
        located = locate(snapshot, keys, on_missing)
        ranges = cut(located.locations.lengths, len(located), self._limits.bytes, self._limits.rows)
        upto = [int(located.where[start]) for start, _ in ranges[1:]] + [len(keys)]
        chunk = self._start(located, ranges[0])
        try:
            for number, done in enumerate(upto, start=1):
                while not wait([chunk], self._limits.poll_s).done:
                    yield None
                payloads = chunk.result()
                if number < len(ranges):
                    chunk = self._start(located, ranges[number])
                yield payloads, done
        finally:
            chunk.cancel()

    def _start(self, located: LocatedSamples, rows: tuple[int, int]) -> Future[Payloads]:
        with self._lock:
            pool = self._pools.get(located.identity)
            if pool is None:
                self._drop_idle()
                pool = _Pool(ThreadPoolExecutor(self._limits.at_once, thread_name_prefix="gather"))
                self._pools[located.identity] = pool
            started = pool.threads.submit(located.take, slice(*rows))
            pool.running = [*(other for other in pool.running if not other.done()), started]
            return started

    def _drop_idle(self) -> None:
        """End the threads of datasets that are not read now: there may be many in the life of a server."""
        for identity, pool in list(self._pools.items()):
            if all(chunk.done() for chunk in pool.running):
                self._pools.pop(identity).threads.shutdown(wait=False)


def cut(lengths: Int64Array | int, num_samples: int, max_bytes: int, max_rows: int) -> list[tuple[int, int]]:
    """Ranges [start, stop) over the samples, each of at most `max_rows`, and of at most `max_bytes` or one sample. One empty range if there
    are no samples.

    >>> cut(np.array([3, 3, 3, 20, 1]), 5, 6, 9), cut(4, 5, 8, 9), cut(4, 5, 99, 3), cut(1, 0, 8, 9)
    ([(0, 2), (2, 3), (3, 4), (4, 5)], [(0, 2), (2, 4), (4, 5)], [(0, 3), (3, 5)], [(0, 0)])
    """
    if isinstance(lengths, int):
        step = max(1, min(max_rows, max_bytes // lengths)) if lengths else max_rows
        return [(start, min(start + step, num_samples)) for start in range(0, max(num_samples, 1), step)]
    ends = np.cumsum(lengths)
    ranges: list[tuple[int, int]] = []
    start = 0
    while start < num_samples:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
        ranges.append((start, min(stop, start + max_rows)))
        start = ranges[-1][1]
    return ranges or [(0, 0)]
