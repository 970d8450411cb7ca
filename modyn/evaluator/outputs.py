"""What a model gave for samples, kept in files, so that a later evaluation forwards only samples that no earlier one has.

A file is written once: prefix, JSON header, then the columns keys (sorted), timestamps, labels and outputs, one after the other. Files of
one model and one way of decoding have the same beginning of their names. The least recently used go first when the room is used up.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modyn.atomic_write import write_atomically
from modyn.errors import CorruptStateError, UnavailableError
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger

SUFFIX: Final = ".outputs"
SEGMENT_BYTES: Final = 64 * 2**20
"""Rows that wait in memory until they are written."""
MAX_SEGMENTS: Final = 256
"""Files of one model and decoding that are used, the newest ones: each takes a file descriptor."""

_MAGIC: Final = b"MODYNOUT"
_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<8sIII")
"""Magic, version, bytes of the header, CRC-32 of the header."""
_COLUMNS: Final = ("keys", "timestamps", "labels", "outputs")
_PLAIN: Final = "biuf"
"""Kinds of numbers that are kept: whole, real and boolean."""

Column = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """n samples and what the model gave for them. keys, timestamps: int64 (n,). labels: (n, …). outputs: (n, …), as the model gave them."""

    keys: Int64Array
    timestamps: Int64Array
    labels: Column
    outputs: Column

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.keys, self.timestamps, self.labels, self.outputs

    @property
    def num_bytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def take(self, positions: Int64Array) -> Rows:
        """Copies of these rows."""
        return Rows(*(column[positions] for column in self.columns))


def write_rows(path: Path, rows: Rows) -> None:
    """Raises UnavailableError."""
    ordered = rows.take(np.argsort(rows.keys, kind="stable"))
    content = [column.reshape(-1).view(np.uint8).data for column in ordered.columns]
    header = json.dumps(
        {
            "columns": {name: [c.dtype.str, list(c.shape)] for name, c in zip(_COLUMNS, ordered.columns, strict=True)},
            "crc32": _checksum(content),
        }
    ).encode()
    write_atomically(path, [_PREFIX.pack(_MAGIC, _VERSION, len(header), zlib.crc32(header)), header, *content])


def read_rows(path: Path) -> Rows:
    """Memory-mapped, read only. Raises CorruptStateError for what `write_rows` of this version did not write completely; OSError."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < _PREFIX.size:
            raise CorruptStateError(f"{path} is torn: it ends in its prefix; delete it")
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    magic, version, size, checksum = _PREFIX.unpack_from(content)
    header = bytes(content[_PREFIX.size : _PREFIX.size + size])
    if magic != _MAGIC or version != _VERSION or len(header) != size or zlib.crc32(header) != checksum:
        raise CorruptStateError(f"{path} is torn or of another version: its header is not one of version {_VERSION}; delete it")
    told = json.loads(header)
    start, parts, found = _PREFIX.size + size, [], []
    for name in _COLUMNS:
        kind, shape = np.dtype(told["columns"][name][0]), told["columns"][name][1]
        stop = start + int(np.prod(shape)) * kind.itemsize
        if stop > len(content):
            raise CorruptStateError(f"{path} is torn: it ends in its column {name}; delete it")
        parts.append(content[start:stop])
        found.append(np.frombuffer(parts[-1], kind).reshape(shape))
        start = stop
    if start != len(content) or _checksum(parts) != told["crc32"]:
        raise CorruptStateError(f"{path} is torn: its content does not fit its checksum; delete it")
    return Rows(*found)


@dataclass(frozen=True, slots=True)
class Room:
    """Where outputs are kept, and how many bytes of them in all."""

    folder: Path
    limit: int

    def prepare(self) -> None:
        """For the service, when it starts: nothing is there if the limit is 0, and no more than the limit otherwise."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._evict(self.limit)

    def publish(self, written: Iterable[Path], name: str) -> None:
        """Move complete files in, under names that begin with `name`; others give way, those first that were not used for longest."""
        files = list(written)
        with self._locked():
            self._evict(self.limit - sum(path.stat().st_size for path in files))
            for number, path in enumerate(files):
                os.replace(path, self.folder / f"{name}-{time.time_ns():020d}-{token_hex(4)}-{number:04d}{SUFFIX}")

    def remove(self, path: Path) -> None:
        """Nothing happens if it is gone."""
        with self._locked():
            path.unlink(missing_ok=True)

    def _evict(self, limit: int) -> None:
        files = [(path, path.stat()) for path in self.folder.glob(f"*{SUFFIX}")]
        total = sum(stat.st_size for _, stat in files)
        for path, stat in sorted(files, key=lambda file: (file[1].st_mtime_ns, file[0].name)):
            if total <= max(0, limit):
                return
            path.unlink()
            total -= stat.st_size

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time changes which files there are; those that read them need no lock."""
        with (self.folder / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class KeptOutputs:
    """The outputs of one model for samples that are decoded in one way, as one job uses them: those there were, and its own for later.

    What was there stays the same as long as this lives, whatever other jobs add or evict. What the job adds is written to `scratch` (an
    existing folder on the same file system) and seen by later jobs once it is published; more than the room holds is not kept.
    No failure to read or write here is an error of the evaluation. `add` and `publish` are for one thread, the others for any.
    """

    def __init__(self, room: Room, name: str, scratch: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._room = room
        self._name = name
        self._scratch = scratch
        self._segment_bytes = segment_bytes
        self._logger = get_logger("outputs")
        self._held: list[Rows] = []
        self._written: list[Path] = []
        self._num_bytes = 0
        self._kept = True
        self._segments = list(self._read())

    def _read(self) -> Iterator[Rows]:
        for path in sorted(self._room.folder.glob(f"{self._name}-*{SUFFIX}"))[-MAX_SEGMENTS:]:
            try:
                try:
                    rows = read_rows(path)
                except CorruptStateError as error:
                    self._logger.warning("outputs_made_anew", error=error.message)
                    self._room.remove(path)
                    continue
                os.utime(path)
            except OSError as error:  # evicted since it was listed, or not to be read: as if it were not there
                self._logger.info("outputs_not_read", path=str(path), error=str(error))
            else:
                yield rows

    def __bool__(self) -> bool:
        """Whether there was anything."""
        return bool(self._segments)

    def has(self, keys: Int64Array, timestamps: Int64Array) -> NDArray[np.bool_]:
        """For each sample, whether its output was there. A key with another timestamp is another sample."""
        found = np.zeros(len(keys), np.bool_)
        for segment in self._segments:
            found |= _where(segment, keys, timestamps)[1]
        return found

    def rows(self, keys: Int64Array, timestamps: Int64Array, at_most: int) -> Iterator[Rows]:
        """Those of the samples that were there, each once, so many at a time."""
        left = np.ones(len(keys), np.bool_)
        for segment in self._segments:
            positions, here = _where(segment, keys, timestamps)
            wanted = positions[here & left]
            left &= ~here
            for start in range(0, len(wanted), at_most):
                yield segment.take(wanted[start : start + at_most])

    def add(self, rows: Rows | None) -> None:
        """Rows of samples that were not there. None: they cannot be kept, and so nothing of this job is."""
        if not self._kept or (rows is not None and not len(rows)):
            return
        if rows is None or not self._fits(rows):
            self._give_up()
            return
        self._held.append(rows)
        self._num_bytes += rows.num_bytes
        if sum(held.num_bytes for held in self._held) >= self._segment_bytes:
            self._write()

    def publish(self) -> None:
        """From now on later jobs find what was added."""
        self._write()
        size = sum(path.stat().st_size for path in self._written)
        if not self._written or size > self._room.limit:
            return
        try:
            self._room.publish(self._written, self._name)
        except OSError as error:
            self._logger.warning("outputs_not_kept", error=str(error))
        self._written = []

    def _fits(self, rows: Rows) -> bool:
        first = self._held[0] if self._held else rows
        same = all(a.dtype == b.dtype and a.shape[1:] == b.shape[1:] for a, b in zip(first.columns, rows.columns, strict=True))
        plain = all(column.dtype.kind in _PLAIN and column.size for column in rows.columns)
        return same and plain and self._num_bytes + rows.num_bytes <= self._room.limit

    def _write(self) -> None:
        if not self._held:
            return
        path = self._scratch / f"outputs-{len(self._written)}"
        try:
            write_rows(path, Rows(*(np.concatenate(parts) for parts in zip(*(rows.columns for rows in self._held), strict=True))))
        except UnavailableError as error:
            self._logger.warning("outputs_not_kept", error=error.message)
            self._give_up()
        else:
            self._written.append(path)
            self._held = []

    def _give_up(self) -> None:
        for path in self._written:
            path.unlink(missing_ok=True)
        self._kept, self._held, self._written = False, [], []


def _where(segment: Rows, keys: Int64Array, timestamps: Int64Array) -> tuple[Int64Array, NDArray[np.bool_]]:
    """For each sample a position in the segment, and whether it is the sample's."""
    positions = np.minimum(np.searchsorted(segment.keys, keys), len(segment) - 1).astype(np.int64)
    return positions, (segment.keys[positions] == keys) & (segment.timestamps[positions] == timestamps)


def _checksum(parts: Iterable[memoryview]) -> int:
    found = 0
    for part in parts:
        found = zlib.crc32(part, found)
    return found
