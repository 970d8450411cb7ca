"""A trigger set on disk: one immutable file, written whole or not at all, mapped for reading.

Layout, little-endian: a header of 128 bytes (`_HEADER`), the keys as int64, the weights as float32. Partition p holds positions
[p·size, (p+1)·size).
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modyn.atomic_write import replacing, sync
from modyn.errors import CorruptStateError, InvalidArgumentError, ModynError, NotFoundError, UnavailableError
from modyn.records import KeysAndWeights
from modyn.selector.window import Selection

_MAGIC = b"MODYNSET"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQ32s32s32s")
"""Magic, version, 0, number of keys, partition size, SHA-256 of the keys, of the weights, and of the header up to there."""
_DIGESTED = _HEADER.size - 32
_READ_BYTES = 1 << 20
_VERIFYING = tuple(threading.Lock() for _ in range(16))


@dataclass(frozen=True, slots=True)
class TriggerSetHeader:
    """The header of a trigger set."""

    num_keys: int
    partition_size: int
    keys_sha256: bytes
    weights_sha256: bytes

    @property
    def num_bytes(self) -> int:
        """Size of the whole file."""
        return _HEADER.size + 12 * self.num_keys

    def pack(self) -> bytes:
        fields = (self.num_keys, self.partition_size, self.keys_sha256, self.weights_sha256)
        digested = _HEADER.pack(_MAGIC, _VERSION, 0, *fields, b"")[:_DIGESTED]
        return digested + hashlib.sha256(digested).digest()


def partition_bounds(num_keys: int, partition_size: int, partition: int) -> tuple[int, int]:
    """Return the positions [start, stop) of a partition. Raises InvalidArgumentError for one that does not exist.

    >>> partition_bounds(10, 4, 2)
    (8, 10)
    """
    num_partitions = -(-num_keys // partition_size)
    if not 0 <= partition < num_partitions:
        raise InvalidArgumentError(
            f"there is no partition {partition}: the trigger set has {num_partitions} of {partition_size} keys"
        )
    first = partition * partition_size
    return first, min(first + partition_size, num_keys)


def temporary_path(path: Path) -> Path:
    """Return where a trigger set is written before it gets its name."""
    return path.with_name(f"{path.name}.tmp")


def write_trigger_set(path: Path, partition_size: int, selection: Selection) -> TriggerSetHeader:
    """Write the selection to `path`, part by part: afterwards the file is complete and on disk, or `path` is as before.

    Raises: UnavailableError: the disk refuses. ModynError: the policy yields another number of keys than it promised.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Also when the folder was there: an earlier attempt may have made it and got no further.
        sync(path.parent.parent)
        with replacing(path, temporary_path(path)) as file:
            header = _write(file.fileno(), partition_size, selection)
    except OSError as error:
        raise UnavailableError(
            f"cannot write the trigger set {path}: {error.strerror}; free or repair the disk and try again"
        ) from error
    return header


def _write(descriptor: int, partition_size: int, selection: Selection) -> TriggerSetHeader:
    keys_digest, weights_digest, done = hashlib.sha256(), hashlib.sha256(), 0
    for part in selection.parts:
        keys, weights = np.ascontiguousarray(part.keys, "<i8"), np.ascontiguousarray(part.weights, "<f4")
        if len(keys) != len(weights) or done + len(keys) > selection.num_keys:
            raise _broken_promise(selection.num_keys, f"{done + len(keys)} keys and {done + len(weights)} weights or more")
        write_at(descriptor, keys, _HEADER.size + 8 * done)
        write_at(descriptor, weights, _HEADER.size + 8 * selection.num_keys + 4 * done)
        keys_digest.update(keys.data)
        weights_digest.update(weights.data)
        done += len(keys)
    if done != selection.num_keys:
        raise _broken_promise(selection.num_keys, f"{done} keys")
    header = TriggerSetHeader(done, partition_size, keys_digest.digest(), weights_digest.digest())
    write_at(descriptor, np.frombuffer(header.pack(), np.uint8), 0)
    return header


def _broken_promise(promised: int, found: str) -> ModynError:
    return ModynError(f"the selection policy promised {promised} keys and yielded {found}; correct its num_keys")


def write_at(descriptor: int, array: npt.NDArray[np.generic], offset: int) -> None:
    """Write all bytes of a contiguous array at a byte offset."""
    rest = array.data.cast("B") if array.size else memoryview(b"")
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


class TriggerSet:
    """An open trigger set. `keys` int64 (n,) and `weights` float32 (n,) are read-only views into the mapped file.

    Checksums are verified once per file and process.
    Raises: NotFoundError: there is no such file. CorruptStateError: header, size or checksums are wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                self.header = _read_header(path, file.read(_HEADER.size), status.st_size)
                # One thread verifies a file; others that open it meanwhile wait for the result instead of reading it too.
                with _VERIFYING[hash(path) % len(_VERIFYING)]:
                    _verify(path, status.st_ino, status.st_mtime_ns, self.header)
                mapped = np.memmap(file, np.uint8, mode="r") if self.header.num_keys else np.empty(_HEADER.size, np.uint8)
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no trigger set {path}; trigger again") from error
        except OSError as error:
            raise UnavailableError(f"cannot read the trigger set {path}: {error.strerror}") from error
        middle = _HEADER.size + 8 * self.header.num_keys
        self.keys = mapped[_HEADER.size : middle].view("<i8")
        self.weights = mapped[middle:].view("<f4")

    def partition(self, partition: int, chunk_size: int) -> Iterator[KeysAndWeights]:
        """Return a partition in chunks of at most `chunk_size` keys. Raises InvalidArgumentError as `partition_bounds` does."""
        start, stop = partition_bounds(self.header.num_keys, self.header.partition_size, partition)
        cuts = pairwise((*range(start, stop, chunk_size), stop))
        return (KeysAndWeights(self.keys[first:last], self.weights[first:last]) for first, last in cuts)


def _read_header(path: Path, data: bytes, num_bytes: int) -> TriggerSetHeader:
    if len(data) < _HEADER.size or data[:8] != _MAGIC:
        raise _corrupt(path, "it is no trigger set")
    _, version, _, num_keys, partition_size, keys_sha256, weights_sha256, digest = _HEADER.unpack(data)
    if hashlib.sha256(data[:_DIGESTED]).digest() != digest:
        raise _corrupt(path, "its header does not match its checksum")
    if version != _VERSION:
        raise CorruptStateError(
            f"{path} has version {version}, this release reads version {_VERSION}; use the release that wrote it"
        )
    header = TriggerSetHeader(num_keys, partition_size, keys_sha256, weights_sha256)
    if num_bytes != header.num_bytes:
        raise _corrupt(path, f"it has {num_bytes} bytes, its header promises {header.num_bytes}")
    return header


@lru_cache(maxsize=4096)
def _verify(path: Path, _inode: int, _mtime_ns: int, header: TriggerSetHeader) -> None:
    # Plain reads, not the mapping: checking a large file must not make it part of the memory of the service.
    with open(path, "rb", buffering=0) as file:
        file.seek(_HEADER.size)
        for name, num_bytes, expected in (
            ("keys", 8 * header.num_keys, header.keys_sha256),
            ("weights", 4 * header.num_keys, header.weights_sha256),
        ):
            digest, rest = hashlib.sha256(), num_bytes
            while rest and (data := file.read(min(rest, _READ_BYTES))):
                digest.update(data)
                rest -= len(data)
            if digest.digest() != expected:
                raise _corrupt(path, f"its {name} do not match their checksum")


def _corrupt(path: Path, what: str) -> CorruptStateError:
    return CorruptStateError(
        f"the trigger set {path} is damaged: {what}; restore it from a backup, or delete the run and start it anew"
    )
