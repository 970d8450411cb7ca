"""An object of a bucket, opened like a file. Each read requests a range of bytes."""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

PART_BYTES = 8 << 20
"""Largest number of bytes in one request. Requests have a time limit, and a slow link could not transfer more bytes within this limit."""
_GAP_BYTES = 64 << 10
"""Largest gap between two ranges that one request reads. Reading the gap is faster than another request."""


class ObjectFile(io.RawIOBase):
    """The `size` bytes of an object as a file for Arrow and `io.BufferedReader`. Each read sends a request, unless its bytes were fetched before."""

    def __init__(
        self, read: Callable[[int, int], bytes | memoryview], size: int, fetched: Sequence[tuple[int, bytes]] = ()
    ) -> None:
        """Args: read: returns bytes [start, stop). fetched: offset and content of each fetched range, ascending."""
        super().__init__()
        self._read_range, self._size, self._at = read, size, 0
        self._starts = [start for start, _ in fetched]
        self._contents = [content for _, content in fetched]

    def size(self) -> int:
        """Number of bytes of the object."""
        return self._size

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        """Return `num_bytes` bytes from `offset` on; fewer at the end of the object."""
        stop = min(offset + num_bytes, self._size)
        if stop <= offset:
            return b""
        # `place`: position of the last fetched range that begins at or before `offset`. The range is used only if it contains all bytes.
        place = bisect_right(self._starts, offset) - 1
        if place >= 0 and stop <= self._starts[place] + len(self._contents[place]):
            first = self._starts[place]
            return self._contents[place][offset - first : stop - first]
        return bytes(self._read_range(offset, stop))

    def read(self, num_bytes: int = -1) -> bytes:
        """Read `num_bytes` bytes from the current position on; -1: read to the end of the object."""
        content = self.read_at(self._size if num_bytes is None or num_bytes < 0 else num_bytes, self._at)
        self._at += len(content)
        return content

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read bytes into `buffer`, at most to the end of the object. Returns their number."""
        view = memoryview(buffer).cast("B")
        content = self.read(len(view))
        view[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read. Args: see `io.IOBase.seek`."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges [start, stop) with small gaps between them. Returns non-empty ranges in ascending order.

    >>> joined([(100, 200), (0, 10), (1 << 20, 2 << 20), (5, 5)])
    [(0, 200), (1048576, 2097152)]
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if stop <= start:
            continue
        if found and start <= found[-1][1] + _GAP_BYTES:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return found


def parts_of(start: int, stop: int, most: int = PART_BYTES) -> list[tuple[int, int]]:
    """Divide the range [start, stop) into ranges of at most `most` bytes.

    >>> parts_of(0, 20 << 20)
    [(0, 8388608), (8388608, 16777216), (16777216, 20971520)]
    """
    return [(at, min(at + most, stop)) for at in range(start, stop, most)]
