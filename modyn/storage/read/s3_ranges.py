"""Ranges of objects, read with few requests: neighbours are one, and several are under way at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from modyn.errors import DataError
from modyn.records import Int64Array
from modyn.storage.files.s3 import PART_BYTES, in_parallel, unreadable_object, written_ns
from modyn.storage.read.lru_cache import LRUCache
from modyn.storage.read.row_groups import changed

if TYPE_CHECKING:
    from modyn._core import PathTable
    from modyn.storage.model.samples import UInt8Array, UInt32Array

T = TypeVar("T")

_OPEN_OBJECTS = 4096


@dataclass(frozen=True, slots=True)
class RangeLimits:
    """Which ranges share a request."""

    gap_bytes: int = 64 << 10
    """Most bytes between two samples that are read along, which takes less time than another request."""
    gap_samples: int = 64
    """But at most so many times the bytes of the sample behind them: what is read stays in proportion to what is wanted."""
    part_bytes: int = PART_BYTES
    """Most bytes of one request, unless a single sample is larger."""


_LIMITS = RangeLimits()


@dataclass(frozen=True, slots=True)
class _ObjectRange:
    """Bytes [start, stop) of one object, for the samples at positions [first, last) of the sorted question."""

    file_id: int
    start: int
    stop: int
    first: int
    last: int


class S3RangeReader:
    """A `RecordReader` of objects whose samples are ranges of their bytes."""

    def __init__(
        self,
        open_object: Callable[[str], pa.NativeFile],
        requests: ThreadPoolExecutor,
        paths: PathTable,
        limits: RangeLimits = _LIMITS,
    ) -> None:
        """Args: open_object: opens the object at a full path; raises OSError. Called by the threads of `requests`. requests: threads of the
        file system, shared with its other readers. paths: full path by file id.
        """
        self._open, self._requests, self._paths, self._limits = open_object, requests, paths, limits
        self._objects = LRUCache[pa.NativeFile](_OPEN_OBJECTS, lambda _: 1)

    def gather(self, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int) -> tuple[UInt8Array, Int64Array]:
        """As `RecordReader.gather`, which names `file_ids`, `offsets` and `lengths`. Raises also: UnavailableError: no server answers."""
        sizes = np.broadcast_to(np.asarray(lengths, np.int64), len(file_ids))
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        data = np.empty(int(bounds[-1]), np.uint8)
        order = np.lexsort((offsets, file_ids))
        order = order[sizes[order] > 0]
        begins, ends = offsets[order], offsets[order] + sizes[order]
        planned = plan(file_ids[order], begins, ends, self._limits)
        calls = [(asked.stop - asked.start, partial(self._read, asked)) for asked in planned]
        answers = in_parallel(self._requests, calls)
        for asked, answer in zip(planned, answers, strict=True):
            for at in range(asked.first, asked.last):
                to, begin = int(bounds[order[at]]), int(begins[at]) - asked.start
                size = int(ends[at] - begins[at])
                data[to : to + size] = answer[begin : begin + size]
        return data, bounds

    def _read(self, asked: _ObjectRange) -> UInt8Array:
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

    def _opened(self, asked: _ObjectRange) -> pa.NativeFile:
        """Open the object of a range. Raises FileChangedError if it is not the one that was indexed; a later replacement is not noticed."""
        path = self._paths[asked.file_id]
        opened = self._open(path)
        stamp = self._paths.stamp(asked.file_id)
        if stamp is not None:
            size, at_ns = int(opened.size()), written_ns(opened, stamp[1])
            if not self._paths.may_be(asked.file_id, size, at_ns):
                raise changed(path, asked.start, f"byte {asked.start}")
        return opened


def plan(file_ids: UInt32Array, begins: Int64Array, ends: Int64Array, limits: RangeLimits = _LIMITS) -> list[_ObjectRange]:
    """The requests for n byte ranges [begin, end), sorted by file and begin: neighbours share one as far as `limits` allow.

    Args: file_ids: uint32 (n,). begins, ends: int64 (n,), bytes.
    """
    requests: list[_ObjectRange] = []
    ranges = zip(file_ids.tolist(), begins.tolist(), ends.tolist(), strict=True)
    first = start = stop = 0
    current: int | None = None
    for at, (file_id, begin, end) in enumerate(ranges):
        gap = min(limits.gap_bytes, limits.gap_samples * (end - begin))
        if file_id != current or begin > stop + gap or end > start + limits.part_bytes:
            if current is not None:
                requests.append(_ObjectRange(current, start, stop, first, at))
            current, first, start, stop = file_id, at, begin, end
        stop = max(stop, end)
    if current is not None:
        requests.append(_ObjectRange(current, start, stop, first, len(begins)))
    return requests
