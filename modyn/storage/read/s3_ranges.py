"""Ranges of objects, read with few requests: neighbours are one, and several are under way at once."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from modyn.errors import DataError, ModynError, UnavailableError
from modyn.records import Int64Array
from modyn.storage.formats.base import UnusableNowError
from modyn.storage.read.lru_cache import LRUCache
from modyn.storage.read.row_groups import changed

if TYPE_CHECKING:
    from modyn._core import PathTable
    from modyn.storage.model.samples import UInt8Array, UInt32Array

T = TypeVar("T")

GAP_BYTES = 64 << 10
"""Most bytes between two samples that are read along, which takes less time than another request."""
GAP_SAMPLES = 64
"""But at most so many times the bytes of the sample behind them: what is read stays in proportion to what is wanted."""
PART_BYTES = 8 << 20
"""Most bytes of one request, unless a single sample is larger."""
_READS_AHEAD = 32
"""Most requests that are under way or whose answers wait to be taken, for each call."""
_BYTES_AHEAD = 64 << 20
"""Most bytes of their answers, unless a single one is larger."""
_OPEN_OBJECTS = 4096

_TROUBLE = (
    "NETWORK_CONNECTION",
    "SLOW_DOWN",
    "SERVICE_UNAVAILABLE",
    "INTERNAL_FAILURE",
    "THROTTLING",
    "REQUEST_TIMEOUT",
    "curlCode",
)
"""Words of the client's errors that speak of the server and not of the object."""


@dataclass(frozen=True, slots=True)
class _Request:
    """Bytes [start, stop) of one object, for the samples at positions [first, last) of the sorted question."""

    file_id: int
    start: int
    stop: int
    first: int
    last: int


class S3RangeReader:
    """A `RecordReader` of objects whose samples are ranges of their bytes."""

    def __init__(self, open_object: Callable[[str], pa.NativeFile], requests: ThreadPoolExecutor, paths: PathTable) -> None:
        self._open, self._requests, self._paths = open_object, requests, paths
        self._objects = LRUCache[pa.NativeFile](_OPEN_OBJECTS, lambda _: 1)

    def gather(self, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int) -> tuple[UInt8Array, Int64Array]:
        """As `RecordReader` says. Raises UnavailableError if the server cannot be reached."""
        sizes = np.broadcast_to(np.asarray(lengths, np.int64), len(file_ids))
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        data = np.empty(int(bounds[-1]), np.uint8)
        order = np.lexsort((offsets, file_ids))
        order = order[sizes[order] > 0]
        begins, ends = offsets[order], offsets[order] + sizes[order]
        planned = plan(file_ids[order], begins, ends)
        calls = [(asked.stop - asked.start, partial(self._read, asked)) for asked in planned]
        answers = in_parallel(self._requests, calls)
        for asked, answer in zip(planned, answers, strict=True):
            for at in range(asked.first, asked.last):
                to, begin = int(bounds[order[at]]), int(begins[at]) - asked.start
                size = int(ends[at] - begins[at])
                data[to : to + size] = answer[begin : begin + size]
        return data, bounds

    def _read(self, asked: _Request) -> UInt8Array:
        path, wanted = self._paths[asked.file_id], asked.stop - asked.start
        try:
            for _ in range(2):
                # An object that was looked at again by storage has another stamp, and is opened again.
                key = asked.file_id, self._paths.stamp(asked.file_id)
                content = self._objects.get(key, lambda: self._opened(asked)).read_at(wanted, asked.start)
                if len(content) == wanted:
                    return np.frombuffer(content, np.uint8)
                # An object that grew is seen with the size that it had when it was opened.
                self._objects.forget(key)
        except OSError as error:
            raise unreadable_object(path, asked.start, error) from error
        raise DataError(
            f"{path} was cut: {wanted} bytes wanted at byte {asked.start}, {len(content)} are there; restore the object or delete its samples"
        )

    def _opened(self, asked: _Request) -> pa.NativeFile:
        """Raises FileChangedError if the object is not the one that was indexed. One that is replaced later is not noticed here."""
        path = self._paths[asked.file_id]
        opened = self._open(path)
        stamp = self._paths.stamp(asked.file_id)
        if stamp is not None:
            size, at_ns = int(opened.size()), written_ns(opened, stamp[1])
            if not self._paths.may_be(asked.file_id, size, at_ns):
                raise changed(path, asked.start, f"byte {asked.start}")
        return opened


def written_ns(opened: pa.NativeFile, indexed_ns: int) -> int:
    """When the object was written. `indexed_ns` where the server tells no more than that: its answer is in whole seconds, if there is one."""
    text = {str(name): value for name, value in opened.metadata().items()}.get("Last-Modified")
    if text is None:
        return indexed_ns
    seconds = int(datetime.fromisoformat(text.decode() if isinstance(text, bytes) else text).timestamp())
    return indexed_ns if seconds == indexed_ns // 10**9 else seconds * 10**9


def plan(file_ids: UInt32Array, begins: Int64Array, ends: Int64Array) -> list[_Request]:
    """The requests for ranges that are sorted by file and begin: those at most GAP_BYTES, or GAP_SAMPLES times their size, apart share one
    of at most PART_BYTES."""
    requests: list[_Request] = []
    ranges = zip(file_ids.tolist(), begins.tolist(), ends.tolist(), strict=True)
    first = start = stop = 0
    current: int | None = None
    for at, (file_id, begin, end) in enumerate(ranges):
        gap = min(GAP_BYTES, GAP_SAMPLES * (end - begin))
        if file_id != current or begin > stop + gap or end > start + PART_BYTES:
            if current is not None:
                requests.append(_Request(current, start, stop, first, at))
            current, first, start, stop = file_id, at, begin, end
        stop = max(stop, end)
    if current is not None:
        requests.append(_Request(current, start, stop, first, len(begins)))
    return requests


def in_parallel(pool: ThreadPoolExecutor, calls: Sequence[tuple[int, Callable[[], T]]]) -> Iterator[T]:
    """Results in order, a bounded number of calls and bytes ahead of whoever takes them. Each call comes with the bytes of its result. Not
    to be used by a call itself."""
    running: deque[tuple[int, Future[T]]] = deque()
    ahead = 0
    try:
        for size, call in calls:
            while running and (len(running) >= _READS_AHEAD or ahead + size > _BYTES_AHEAD):
                ahead -= running[0][0]
                yield running.popleft()[1].result()
            running.append((size, pool.submit(call)))
            ahead += size
        while running:
            yield running.popleft()[1].result()
    finally:
        for _, future in running:
            future.cancel()


def key_of(path: str) -> str:
    """Bucket and key of `s3://BUCKET/KEY`."""
    return path.removeprefix("s3://")


def unreadable_object(path: str, offset: int, error: OSError) -> ModynError:
    """What an OSError on an object means: something is wrong with the object, or the server is not to be had."""
    if isinstance(error, FileNotFoundError):
        return DataError(f"cannot read {path} at byte {offset}: there is no such object; put it back or delete its samples")
    if error.errno == errno.ENOSPC:
        return UnusableNowError(
            f"cannot copy {path}: there is no room for it in the temporary folder; set TMPDIR to a larger one"
        )
    return outage(path, offset, error) or UnusableNowError(
        f"cannot read {path} at byte {offset}: {error}; make the object readable for storage"
    )


def outage(path: str, offset: int, error: OSError) -> UnavailableError | None:
    """The server is not to be had: trying again helps."""
    if any(word in str(error) for word in _TROUBLE):
        return UnavailableError(f"cannot read {path} at byte {offset}: {error}")
    return None
