"""Reads ranges of objects with few requests. Neighbouring ranges share a request, and several requests run at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from modyn.records import Int64Array
from modyn.storage.files.bucket import BucketFiles, in_parallel
from modyn.storage.files.file_system import IndexedVersion
from modyn.storage.files.object_file import PART_BYTES, parts_of

if TYPE_CHECKING:
    from modyn._core import PathTable
    from modyn.storage.model.samples import RecordReader, UInt8Array, UInt32Array


@dataclass(frozen=True, slots=True)
class RangeLimits:
    """Limits of ranges that share a request."""

    gap_bytes: int = 64 << 10
    """Largest gap in bytes between two samples of one request. Reading a smaller gap is faster than another request."""
    gap_samples: int = 64
    """Largest gap as a multiple of the size of the next sample, so that the number of unneeded bytes stays in proportion to the needed bytes."""
    part_bytes: int = PART_BYTES
    """Largest number of bytes of one request. A larger sample is read with several requests."""


_LIMITS = RangeLimits()


@dataclass(frozen=True, slots=True)
class _ObjectRange:
    """Bytes [start, stop) of one object, for the samples at positions [first, last) of the sorted request."""

    file_id: int
    start: int
    stop: int
    first: int
    last: int


class BucketRangeReader:
    """A `RecordReader` of objects whose samples are ranges of their bytes."""

    def __init__(self, folder: BucketFiles, paths: PathTable, limits: RangeLimits = _LIMITS) -> None:
        """Args: folder: folder of the dataset, whose threads send the requests. paths: full path by file id."""
        self._folder, self._paths, self._limits = folder, paths, limits

    def gather(self, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int) -> tuple[UInt8Array, Int64Array]:
        """See `RecordReader.gather` for `file_ids`, `offsets` and `lengths`.

        Raises: FileChangedError: an object has another version than the indexed object. DataError. UnavailableError: the server does not respond.
        """
        sizes = np.broadcast_to(np.asarray(lengths, np.int64), len(file_ids))
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        data = np.empty(int(bounds[-1]), np.uint8)
        order = np.lexsort((offsets, file_ids))
        # Samples without bytes need no request.
        order = order[sizes[order] > 0]
        begins, ends = offsets[order], offsets[order] + sizes[order]
        planned = plan(file_ids[order], begins, ends, self._limits)
        parts = [(asked, *part) for asked in planned for part in parts_of(asked.start, asked.stop, self._limits.part_bytes)]
        calls = [(stop - start, partial(self._read, asked.file_id, start, stop)) for asked, start, stop in parts]
        answers = in_parallel(self._folder.requests, calls) if calls else iter(())
        for (asked, start, stop), answer in zip(parts, answers, strict=True):
            for at in range(asked.first, asked.last):
                # A sample may extend over several parts of a range, and a part may contain bytes of several samples.
                begin, end = max(int(begins[at]), start), min(int(ends[at]), stop)
                if begin < end:
                    to = int(bounds[order[at]]) + begin - int(begins[at])
                    data[to : to + end - begin] = answer[begin - start : end - start]
        return data, bounds

    def _read(self, file_id: int, start: int, stop: int) -> UInt8Array:
        # The version that storage has published last, which changes when storage examines the object again.
        indexed = IndexedVersion.of(self._paths, file_id)
        return np.frombuffer(self._folder.read(self._paths[file_id], start, stop, indexed), np.uint8)


class PackedObjectReader:
    """A `RecordReader` of objects, some of them compressed. Samples of compressed objects are read from unpacked copies on this machine."""

    def __init__(self, objects: RecordReader, copies: RecordReader, paths: PathTable) -> None:
        """Args: objects, copies: readers of objects, and of the copies. paths: full path by file id."""
        self._objects, self._copies, self._paths = objects, copies, paths

    def gather(self, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int) -> tuple[UInt8Array, Int64Array]:
        """See `RecordReader.gather`."""
        ids, places = np.unique(file_ids, return_inverse=True)
        has_copy = np.array([self._paths.copy(file_id) is not None for file_id in ids.tolist()], np.bool_)[places]
        if not has_copy.any():
            return self._objects.gather(file_ids, offsets, lengths)
        sizes = np.ascontiguousarray(np.broadcast_to(np.asarray(lengths, np.int64), len(file_ids)))
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        data = np.empty(int(bounds[-1]), np.uint8)
        for reader, chosen in ((self._copies, np.flatnonzero(has_copy)), (self._objects, np.flatnonzero(~has_copy))):
            found, ends = reader.gather(file_ids[chosen], offsets[chosen], sizes[chosen])
            for at, start, stop in zip(chosen.tolist(), ends[:-1].tolist(), ends[1:].tolist(), strict=True):
                data[bounds[at] : bounds[at + 1]] = found[start:stop]
        return data, bounds


def plan(file_ids: UInt32Array, begins: Int64Array, ends: Int64Array, limits: RangeLimits = _LIMITS) -> list[_ObjectRange]:
    """Return the requests for n byte ranges [begin, end), sorted by file and begin. Neighbours share a request if `limits` allow it.

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
        # Ranges may overlap, so `stop` is the largest end so far.
        stop = max(stop, end)
    if current is not None:
        requests.append(_ObjectRange(current, start, stop, first, len(begins)))
    return requests
