"""Which keys of a dataset are deleted: a set in memory, and on disk a log to which each deletion adds the keys that it brought.

Layout: a head (magic, version, CRC-32 of the rest of the head, bytes that count, number of deleted keys), then blocks (size, CRC-32, keys in
the form of `_core.KeySet`, compressed). A block counts once the head says so, and the head changes when the block is on the disk: what a kill
in the middle leaves behind the bytes that count was never acknowledged, and is overwritten. When the log has doubled, one block takes
the place of all in a new file.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zstandard

from modyn._core import KeySet
from modyn.atomic_write import write_atomically
from modyn.errors import CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.records import Int64Array

BoolArray = npt.NDArray[np.bool_]

_MAGIC = b"MODYNDEL"
_VERSION = 2
_HEAD = struct.Struct("<8sIIqq")
_HEAD_CHECKED = struct.Struct("<qq")
"""The part of the head that its checksum is of."""
_BLOCK = struct.Struct("<III")
"""Size of what follows, CRC-32 of it, its size when it is decompressed."""
_MIN_LOG_BYTES = 1 << 16
"""A log is not made one block again before it has grown by so much."""
_VERSION_1_CHUNK_BYTES = 1 << 13


@dataclass(frozen=True, slots=True)
class _State:
    """keys: all that are deleted. num_bytes: of the file, that count; 0 makes the next `add` write a new file. compact_bytes: when it was
    one block."""

    keys: KeySet
    num_bytes: int = 0
    compact_bytes: int = 0


class Tombstones:
    """Deleted keys of one dataset, in memory and in `path`. Any number of threads; one process writes.

    A reader sees the state before or after an `add`, never between. In other processes, `path` has another size or inode after each `add`
    that returned: look at both with fstat before reading, and open again when they have changed.
    """

    def __init__(self, path: Path, state: _State) -> None:
        self._path = path
        self._state = state
        self._writing = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> Tombstones:
        """Read `path`; a missing file means that nothing is deleted. Raises CorruptStateError, UnavailableError."""
        try:
            content = path.read_bytes()
            if not _head_is_whole(content):
                # The head may have been written while it was read; that is not so twice in a row.
                content = path.read_bytes()
        except FileNotFoundError:
            return cls(path, _State(_key_set([])))
        except OSError as error:
            raise UnavailableError(f"cannot read {path}: {error.strerror or error}; make it readable for the service") from error
        return cls(path, _decode(path, content))

    def announce(self) -> None:
        """Make readers in other processes look again. For the process that writes, when it starts: the one before it may have been killed
        when its last keys counted already and the file had not changed its size yet."""
        if not self._state.num_bytes:
            return  # There is no log yet.
        try:
            with self._writing, open(self._path, "r+b", buffering=0) as file:
                file.truncate(os.fstat(file.fileno()).st_size + 1)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"cannot write {self._path}: {error.strerror or error}; make it writable for the service and check the space on its disk"
        )

    @property
    def count(self) -> int:
        """Number of deleted keys."""
        return len(self._state.keys)

    def add(self, keys: Int64Array) -> int:
        """Delete `keys` (any order, duplicates allowed, all >= 0); return how many were not deleted before. Durable on return."""
        if len(keys) and int(keys.min()) < 0:
            raise InvalidArgumentError(f"keys are not negative, but {int(keys.min())} was given")
        with self._writing:
            before = self._state
            new = np.unique(keys[~before.keys.contains(keys)])
            if not len(new):
                return 0
            added = KeySet(new)
            after = before.keys.united(added)
            if before.num_bytes <= _MIN_LOG_BYTES + 2 * before.compact_bytes and before.num_bytes:
                block = _encode(added)
                self._append(block, before.num_bytes, len(after))
                self._state = _State(after, before.num_bytes + len(block), before.compact_bytes)
            else:
                block = _encode(after)
                num_bytes = _HEAD.size + len(block)
                write_atomically(self._path, [_head(num_bytes, len(after)), block])
                self._state = _State(after, num_bytes, num_bytes)
        return len(new)

    def _append(self, block: bytes, end: int, count: int) -> None:
        """Write `block` behind the `end` bytes that count, and make it count: `count` keys are deleted then."""
        try:
            with open(self._path, "r+b", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size < end:
                    raise CorruptStateError(f"{self._path} was cut; {_ADVICE}")
                try:
                    _write_all(file, end, block)
                except OSError:
                    # Nothing counts of it, but it may be all that the disk had left.
                    with suppress(OSError):
                        file.truncate(size)
                    raise
                os.fsync(file.fileno())
                _write_all(file, 0, _head(end + len(block), count))
                os.fsync(file.fileno())
                # Whoever saw the size before the head was written looks again. It only grows: times are too coarse to tell a change.
                file.truncate(max(size, end + len(block)) + 1)
        except OSError as error:
            raise self._cannot_write(error) from error

    def contains(self, keys: Int64Array) -> BoolArray:
        """For each key, whether it is deleted: bool (n,)."""
        return self._state.keys.contains(keys)

    def keys_between(self, first: int, end: int) -> Int64Array:
        """Deleted keys in [first, end), ascending: int64 (m,)."""
        return self._state.keys.between(first, end)

    def count_between(self, first: int, end: int) -> int:
        """Number of deleted keys in [first, end)."""
        return len(self.keys_between(first, end))


def _write_all(file: FileIO, position: int, content: bytes) -> None:
    """At `position`. A disk that fills takes a part, and says so only when it is asked for the rest. Raises OSError."""
    file.seek(position)
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) or 0 :]


def _key_set(keys: list[int] | Int64Array) -> KeySet:
    return KeySet(np.asarray(keys, np.int64))


def _head(num_bytes: int, count: int) -> bytes:
    return _HEAD.pack(_MAGIC, _VERSION, zlib.crc32(_HEAD_CHECKED.pack(num_bytes, count)), num_bytes, count)


def _head_is_whole(content: bytes) -> bool:
    if len(content) < _HEAD.size or content[:8] != _MAGIC:
        return False
    _, version, checksum, num_bytes, count = _HEAD.unpack_from(content)
    return bool(version != _VERSION or zlib.crc32(_HEAD_CHECKED.pack(num_bytes, count)) == checksum)


def _encode(keys: KeySet) -> bytes:
    content = keys.serialized()
    body = zstandard.ZstdCompressor(level=1).compress(content)
    return _BLOCK.pack(len(body), zlib.crc32(body), len(content)) + body


_ADVICE = "restore it from a backup; without it, deleted samples come back"


def _decode(path: Path, content: bytes) -> _State:
    if len(content) < _HEAD.size or content[:8] != _MAGIC:
        raise CorruptStateError(f"{path} is not a file of deleted keys; {_ADVICE}")
    _, version, checksum, num_bytes, count = _HEAD.unpack_from(content)
    if version == 1:
        return _State(_decode_version_1(path, content, checksum, num_chunks=num_bytes))
    if version != _VERSION:
        raise CorruptStateError(
            f"{path} has version {version}, this Modyn reads versions 1 to {_VERSION}; use the Modyn that wrote it"
        )
    if not _head_is_whole(content) or len(content) < num_bytes:
        raise CorruptStateError(f"{path} was cut, or its head is damaged; {_ADVICE}")
    keys, position, compact_bytes = _key_set([]), _HEAD.size, 0
    while position < num_bytes:
        size, block_checksum, raw_size = _BLOCK.unpack(content[position : position + _BLOCK.size].ljust(_BLOCK.size, b"\0"))
        body = content[position + _BLOCK.size : position + _BLOCK.size + size]
        if position + _BLOCK.size + size > num_bytes or zlib.crc32(body) != block_checksum:
            raise CorruptStateError(f"{path} is damaged at byte {position}; {_ADVICE}")
        try:
            keys = keys.united(KeySet.parsed(_decompressed(path, body, raw_size)))
        except InvalidArgumentError as error:
            raise CorruptStateError(f"{path} is damaged at byte {position}: {error}; {_ADVICE}") from error
        position += _BLOCK.size + size
        compact_bytes = compact_bytes or position
    if len(keys) != count:
        raise CorruptStateError(f"{path} has {len(keys)} keys, but its head promises {count}; {_ADVICE}")
    return _State(keys, num_bytes, compact_bytes)


def _decompressed(path: Path, body: bytes, num_bytes: int) -> bytes:
    try:
        # Through a stream, so that a damaged frame cannot ask for more memory than what stands before it promises.
        content: bytes = zstandard.ZstdDecompressor().stream_reader(body).read(num_bytes + 1)
    except zstandard.ZstdError as error:
        raise CorruptStateError(f"{path} cannot be decompressed: {error}; {_ADVICE}") from error
    if len(content) != num_bytes:
        raise CorruptStateError(f"{path} does not have the content that it promises; {_ADVICE}")
    return content


def _decode_version_1(path: Path, content: bytes, checksum: int, num_chunks: int) -> KeySet:
    """One compressed block: the numbers of all chunks of 65,536 keys in which some are deleted, then their bits, the lowest first."""
    body = _decompressed(path, content[_HEAD.size :], num_chunks * (8 + _VERSION_1_CHUNK_BYTES))
    if zlib.crc32(body) != checksum:
        raise CorruptStateError(f"{path} does not have the content that its checksum promises; {_ADVICE}")
    keys = _key_set([])
    for number, chunk in enumerate(np.frombuffer(body, np.int64, num_chunks).tolist()):
        bits = np.frombuffer(body, np.uint8, _VERSION_1_CHUNK_BYTES, offset=8 * num_chunks + number * _VERSION_1_CHUNK_BYTES)
        keys = keys.united(_key_set((chunk << 16) + np.flatnonzero(np.unpackbits(bits, bitorder="little"))))
    return keys
