"""The deleted keys of a dataset: a set in memory, and a log on disk to which each deletion appends its new keys.

Layout: a `LogHead` (number of valid bytes, number of deleted keys), then blocks (size, CRC-32, decompressed size, keys in the form of `_core.KeySet`,
compressed). A block is valid if the head counts it. The head changes only after the block is on the disk. Bytes after the valid blocks were never
acknowledged, and are overwritten. When the log has doubled, a new file with all keys in one block replaces it.

The file is a log of `modyn.columnar`, not a file of columns. A file of columns is written once, so a deletion of ten keys would write all keys again.
A block contains its size and checksum, because compressed sets of keys differ in length.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np

from modyn._core import KeySet
from modyn.atomic_write import sync, write_atomically
from modyn.columnar import FileKind, LogHead, LogState, write_at
from modyn.errors import CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.records import Int64Array
from modyn.zstd import zstd

_KIND = FileKind(b"MODYNDEL", 3, "file of deleted keys", "restore it from a backup; without it, deleted samples come back")
_HEAD = LogHead(_KIND, num_fields=2)
_NO_LOG = LogState(0, (0, 0))
_BLOCK = struct.Struct("<III")
_MIN_LOG_BYTES = 1 << 16
"""Smallest growth in bytes after which a log is rewritten as one block."""


class Tombstones:
    """Deleted keys of one dataset, in memory and in `path`. Thread-safe. Only one process writes.

    A reader sees the state before or after an `add`, never a state between the two. After each `add` that returned, `path` has another size or inode.
    Before a reader in another process reads, it compares size and inode by `fstat`, and if they have changed, it opens the file again.
    """

    def __init__(self, path: Path, keys: KeySet, log: LogState = _NO_LOG, compact_bytes: int = 0) -> None:
        """Args: log: the head of the file; number 0 makes the next `add` write a new file. compact_bytes: size of the file when it was one
        block.
        """
        self._path = path
        self.keys = keys
        """All deleted keys. An addition assigns a new set and never changes the old set, so that readers need no lock."""
        self._log, self._compact_bytes = log, compact_bytes
        self._writing = threading.Lock()
        """Lets one addition run at a time, because the file, `keys` and the known head must change together."""

    @classmethod
    def open(cls, path: Path, num_published: int = 0, may_lag: bool = False) -> Tombstones:
        """Read `path`. A missing file means that nothing is deleted.

        Args: num_published: number of deleted keys in the newest publication, which is written after the file. may_lag: whether this process may
        read an older state of the file, because another machine writes the file.
        Raises: CorruptStateError: the file is damaged, or has fewer keys than `num_published`, because it is missing or older. UnavailableError: the
        file cannot be read, or has fewer keys and `may_lag` is set.
        """
        found = cls._read(path)
        if len(found.keys) < num_published:
            state = f"it has {len(found.keys):,} keys" if found._log.number else "it is missing"
            reason = f"{state}, but {num_published:,} or more were deleted"
            if may_lag:
                raise UnavailableError(
                    f"{path} is older here than storage's, or is damaged: {reason}; another payload server may have it, and `modyn data scrub` "
                    "finds whether it is damaged"
                )
            raise _KIND.corrupt(path, reason)
        return found

    @classmethod
    def _read(cls, path: Path) -> Tombstones:
        try:
            content = path.read_bytes()
            try:
                log = _HEAD.parse(path, content)
            except CorruptStateError:
                # The head may have been written during the first read. This does not happen twice in succession.
                content = path.read_bytes()
                log = _HEAD.parse(path, content)
        except FileNotFoundError:
            return cls(path, KeySet(np.zeros(0, np.int64)))
        except OSError as error:
            raise UnavailableError(f"cannot read {path}: {error.strerror or error}; make it readable for the service") from error
        return cls(path, *_decode(path, content, log))

    def announce(self) -> None:
        """Make readers in other processes read the file again, and make the keys that are in the file durable. The process that writes the file calls
        this method when it starts. The previous process may have been killed after its last commit, before the file grew or was synced. Raises:
        UnavailableError: the file cannot be written to.
        """
        if not self._log.number:
            return  # There is no log yet.
        try:
            with self._writing, open(self._path, "r+b", buffering=0) as file:
                file.truncate(os.fstat(file.fileno()).st_size + 1)
                os.fsync(file.fileno())
            sync(self._path.parent)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"cannot write {self._path}: {error.strerror or error}; make it writable for the service and check the space on its disk"
        )

    def add(self, keys: Int64Array) -> int:
        """Delete `keys` (int64 (n,), any order, duplicates allowed). Return the number of keys that were not deleted before. When the method returns,
        the deletion is durable.

        Raises: InvalidArgumentError: a key is negative. UnavailableError: the disk cannot be written to.
        """
        if len(keys) and int(keys.min()) < 0:
            raise InvalidArgumentError(f"keys are not negative, but {int(keys.min())} was given")
        with self._writing:
            new = np.unique(keys[~self.keys.contains(keys)])
            if not len(new):
                return 0
            added = KeySet(new)
            after = self.keys.united(added)
            if self._log.number and self._log.fields[0] <= _MIN_LOG_BYTES + 2 * self._compact_bytes:
                self._log = self._append(_encode(added), len(after))
            else:
                block = _encode(after)
                fields = (_HEAD.size + len(block), len(after))
                write_atomically(self._path, [_HEAD.initial(*fields), block])
                self._log, self._compact_bytes = LogState(1, fields), fields[0]
            self.keys = after
        return len(new)

    def _append(self, block: bytes, count: int) -> LogState:
        """Write `block` after the valid bytes, and make the block valid. Args: count: number of deleted keys afterwards."""
        start = self._log.fields[0]
        end = start + len(block)
        try:
            with open(self._path, "r+b", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size < start:
                    raise _KIND.corrupt(self._path, "it was cut")
                try:
                    write_at(file.fileno(), block, start)
                except OSError:
                    # The written bytes are not valid, but would take disk space.
                    with suppress(OSError):
                        file.truncate(size)
                    raise
                # The block must be on the disk before the head counts it.
                os.fsync(file.fileno())
                after = _HEAD.commit(file.fileno(), self._log, end, count)
                # The new size makes readers that saw the size before the commit read the file again. Times are too coarse to show a change.
                file.truncate(max(size, end) + 1)
                return after
        except OSError as error:
            raise self._cannot_write(error) from error


def _encode(keys: KeySet) -> bytes:
    content = keys.serialized()
    body = zstd.compress(content, level=1)
    return _BLOCK.pack(len(body), zlib.crc32(body), len(content)) + body


def _decode(path: Path, content: bytes, log: LogState) -> tuple[KeySet, LogState, int]:
    """Return keys, head, and the size of the file when it was one block. Raises CorruptStateError."""
    num_bytes, count = log.fields
    if len(content) < num_bytes:
        raise _KIND.corrupt(path, "it was cut")
    keys, position, compact_bytes = KeySet(np.zeros(0, np.int64)), _HEAD.size, 0
    while position < num_bytes:
        size, checksum, raw_size = _BLOCK.unpack(content[position : position + _BLOCK.size].ljust(_BLOCK.size, b"\0"))
        body = content[position + _BLOCK.size : position + _BLOCK.size + size]
        if position + _BLOCK.size + size > num_bytes or zlib.crc32(body) != checksum:
            raise _KIND.corrupt(path, f"the block at byte {position} does not match its checksum")
        try:
            # The size is limited, so that a damaged frame cannot allocate more memory than its header states.
            raw = zstd.ZstdDecompressor().decompress(body, raw_size + 1)
            if len(raw) != raw_size:
                raise InvalidArgumentError("it has another size than promised")
            keys = keys.united(KeySet.parsed(raw))
        except (zstd.ZstdError, InvalidArgumentError) as error:
            raise _KIND.corrupt(path, f"the block at byte {position} cannot be read: {error}") from error
        position += _BLOCK.size + size
        compact_bytes = compact_bytes or position
    if len(keys) != count:
        raise _KIND.corrupt(path, f"it has {len(keys)} keys, but its head promises {count}")
    return keys, log, compact_bytes
