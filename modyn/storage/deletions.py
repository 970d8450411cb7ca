"""Which keys of a dataset are deleted: one bit a key, in chunks of 65,536 keys, compressed on disk.

Chunks exist only where something is deleted, so memory is at most one bit for each key of the dataset. A reader sees the state before
or after an `add`, never between.
"""

from __future__ import annotations

import struct
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zstandard

from modyn.durable import write_atomically
from modyn.errors import CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.records import Int64Array

BoolArray = npt.NDArray[np.bool_]

_CHUNK_KEYS = 1 << 16
_CHUNK_BYTES = _CHUNK_KEYS // 8
_MAGIC = b"MODYNDEL"
_VERSION = 1
_HEADER = struct.Struct("<8sIIqq")
"""Magic, version, CRC-32 of what follows the header (uncompressed), number of chunks, number of deleted keys."""


@dataclass(frozen=True, slots=True, eq=False)
class _Bits:
    """ids: int64 (c,), ascending numbers of the chunks that exist. bits: uint8 (c, 8192), the lowest bit first. count: bits that are set."""

    ids: Int64Array
    bits: npt.NDArray[np.uint8]
    count: int

    @staticmethod
    def empty() -> _Bits:
        return _Bits(np.empty(0, np.int64), np.empty((0, _CHUNK_BYTES), np.uint8), 0)

    def contains(self, keys: Int64Array) -> BoolArray:
        if not len(self.ids):
            return np.zeros(len(keys), np.bool_)
        chunks = keys >> 16
        rows = np.minimum(np.searchsorted(self.ids, chunks), len(self.ids) - 1)
        bits = (self.bits[rows, (keys >> 3) & (_CHUNK_BYTES - 1)] >> (keys & 7).astype(np.uint8)) & 1
        found: BoolArray = np.logical_and(self.ids[rows] == chunks, bits)
        return found

    def with_keys(self, keys: Int64Array) -> _Bits:
        """A copy in which `keys` (ascending, not empty, none of them set here) are set."""
        ids = np.union1d(self.ids, keys >> 16)
        bits = np.zeros((len(ids), _CHUNK_BYTES), np.uint8)
        bits[np.searchsorted(ids, self.ids)] = self.bits
        # Ascending keys that share a byte are neighbours.
        starts = np.flatnonzero(np.diff(keys >> 3, prepend=-1))
        values = np.bitwise_or.reduceat(np.left_shift(1, keys & 7).astype(np.uint8), starts)
        first = keys[starts]
        bits[np.searchsorted(ids, first >> 16), (first >> 3) & (_CHUNK_BYTES - 1)] |= values
        return _Bits(ids, bits, self.count + len(keys))

    def keys_between(self, first: int, end: int) -> Int64Array:
        rows = range(int(np.searchsorted(self.ids, first >> 16)), int(np.searchsorted(self.ids, (end - 1) >> 16, "right")))
        found = [
            (int(self.ids[row]) << 16) + np.flatnonzero(np.unpackbits(self.bits[row], bitorder="little")).astype(np.int64)
            for row in rows
        ]
        keys = np.concatenate(found) if found else np.empty(0, np.int64)
        return keys[(keys >= first) & (keys < end)]


class Deletions:
    """Deleted keys of one dataset, in memory and in `path`. Any number of threads; one process writes."""

    def __init__(self, path: Path, bits: _Bits) -> None:
        self._path = path
        self._bits = bits
        self._writing = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> Deletions:
        """Read `path`; a missing file means that nothing is deleted. Raises CorruptStateError, UnavailableError."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return cls(path, _Bits.empty())
        except OSError as error:
            raise UnavailableError(f"cannot read {path}: {error.strerror or error}; make it readable for the service") from error
        return cls(path, _decode(path, content))

    @property
    def count(self) -> int:
        """Number of deleted keys."""
        return self._bits.count

    def add(self, keys: Int64Array) -> int:
        """Delete `keys` (any order, duplicates allowed, all >= 0); return how many were not deleted before. Durable on return."""
        if len(keys) and int(keys.min()) < 0:
            raise InvalidArgumentError(f"keys are not negative, but {int(keys.min())} was given")
        with self._writing:
            before = self._bits
            new = np.unique(keys[~before.contains(keys)])
            if not len(new):
                return 0
            after = before.with_keys(new)
            write_atomically(self._path, [_encode(after)])
            self._bits = after
        return len(new)

    def contains(self, keys: Int64Array) -> BoolArray:
        """For each key, whether it is deleted: bool (n,)."""
        return self._bits.contains(keys)

    def keys_between(self, first: int, end: int) -> Int64Array:
        """Deleted keys in [first, end), ascending: int64 (m,)."""
        return self._bits.keys_between(first, end) if first < end else np.empty(0, np.int64)

    def count_between(self, first: int, end: int) -> int:
        """Number of deleted keys in [first, end)."""
        return len(self.keys_between(first, end))


def _encode(bits: _Bits) -> bytes:
    body = bits.ids.tobytes() + bits.bits.tobytes()
    header = _HEADER.pack(_MAGIC, _VERSION, zlib.crc32(body), len(bits.ids), bits.count)
    return header + zstandard.ZstdCompressor(level=1).compress(body)


def _decode(path: Path, content: bytes) -> _Bits:
    advice = "restore it from a backup; without it, deleted samples come back"
    if len(content) < _HEADER.size or content[:8] != _MAGIC:
        raise CorruptStateError(f"{path} is not a file of deleted keys; {advice}")
    _, version, checksum, num_chunks, count = _HEADER.unpack_from(content)
    if version != _VERSION:
        raise CorruptStateError(f"{path} has version {version}, this Modyn reads version {_VERSION}; use the Modyn that wrote it")
    num_bytes = num_chunks * (8 + _CHUNK_BYTES)
    try:
        # Through a stream, so that a damaged frame cannot ask for more memory than the header promises.
        body = zstandard.ZstdDecompressor().stream_reader(content[_HEADER.size :]).read(num_bytes + 1)
    except zstandard.ZstdError as error:
        raise CorruptStateError(f"{path} cannot be decompressed: {error}; {advice}") from error
    if len(body) != num_bytes or zlib.crc32(body) != checksum:
        raise CorruptStateError(f"{path} does not have the content that its checksum promises; {advice}")
    ids = np.frombuffer(body, np.int64, num_chunks)
    return _Bits(ids, np.frombuffer(body, np.uint8, offset=8 * num_chunks).reshape(num_chunks, _CHUNK_BYTES), count)
