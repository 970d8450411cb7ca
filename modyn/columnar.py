"""Formats of all binary files of Modyn: immutable files of columns, and the head of append-only logs.

A file of columns (`write_columns`, `ColumnWriter`, `ColumnFile`) is little-endian. A file begins with a prefix of 64 bytes (magic, version, CRC-32 of
the header, position and size of the header). Then come the columns, each aligned to 64 bytes. The header at the end is JSON: `meta` (JSON values that
depend on the kind of file), and dtype, shape, position and CRC-32 of each column. A file is complete or absent, and is read through a memory map.

    KIND = FileKind(b"MODYNXYZ", 1, "file of samples", "delete it")
    write_columns(path, KIND, {"keys": keys, "weights": weights}, {"model": 3})
    file = ColumnFile.open(path, KIND)
    file.meta["model"], file.column("keys")

An append-only log (`LogHead`) starts with magic, version and one or two slots. A slot contains a few numbers, which define how many bytes of the
file are valid. The writer first makes appended data durable; then `LogHead.commit` makes the data valid.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modyn import _core
from modyn.atomic_write import replacing
from modyn.errors import CorruptStateError, NotFoundError, UnavailableError

Array = npt.NDArray[Any]

_START = struct.Struct("<8sI")
"""Magic and version. Every file begins with these fields."""
_PREFIX = struct.Struct("<8sIIQQ")
_ALIGNMENT = 64
_READ_BYTES = 1 << 20
_NUMBERS = "biuf"
"""Kinds of dtypes that a column may have: boolean, integer, float."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file. magic: 8 bytes. noun: name of the kind in errors. advice: what to do with a damaged file, in the imperative."""

    magic: bytes
    version: int
    noun: str
    advice: str

    def check(self, path: Path, start: bytes) -> None:
        """Check that the file `path` is of this kind and version. Args: start: first bytes of the file, at least 12. Raises: CorruptStateError."""
        if len(start) < _START.size or start[:8] != self.magic:
            raise CorruptStateError(f"{path} is not a {self.noun}; {self.advice}")
        if (version := _START.unpack_from(start)[1]) != self.version:
            raise CorruptStateError(
                f"{self.noun} {path} has version {version}, this Modyn reads version {self.version}; use the Modyn that wrote it, or "
                f"{self.advice}"
            )

    def corrupt(self, path: Path, what: str) -> CorruptStateError:
        """Return the error for a damaged file, without raising it. Args: what: description of the damage."""
        return CorruptStateError(f"the {self.noun} {path} is damaged: {what}; {self.advice}")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A complete file. digest: SHA-256 of the header, which includes the checksums of all columns, in hexadecimal."""

    num_bytes: int
    digest: str


def write_columns(path: Path, kind: FileKind, columns: Mapping[str, Array], meta: Mapping[str, Any] | None = None) -> WrittenFile:
    """Write a file of columns. The file is complete and durable on return.

    Args: columns: numeric arrays of any shape. meta: values that JSON can express, for the header.
    Raises: UnavailableError: the disk cannot be written to. ValueError: a column is not numeric.
    """
    with column_writer(path, kind, {name: (values.dtype, values.shape) for name, values in columns.items()}) as writer:
        writer.meta.update(meta or {})
        for name, values in columns.items():
            writer.append(name, values)
    return writer.written


@contextmanager
def column_writer(
    path: Path, kind: FileKind, columns: Mapping[str, tuple[npt.DTypeLike, int | tuple[int, ...]]]
) -> Iterator[ColumnWriter]:
    """Yield a writer of the file `path`. After the block, the file is complete and durable; if the block raises an error, `path` is unchanged.

    Args: columns: dtype (boolean, integer or float) and shape, or number of values, by name.
    Raises: UnavailableError: the disk cannot be written to. ValueError: a column has fewer or more values than announced.
    """
    try:
        with replacing(path) as file:
            writer = ColumnWriter(file.fileno(), columns)
            yield writer
            writer.complete(kind)
    except OSError as error:
        raise UnavailableError(
            f"cannot write the {kind.noun} {path}: {error.strerror or error}; make its folder writable for the service and check the space "
            "on its disk"
        ) from error


class ColumnWriter:
    """Writes columns of known shapes part by part, for content that is larger than memory. Use `column_writer` to make one."""

    def __init__(self, descriptor: int, columns: Mapping[str, tuple[npt.DTypeLike, int | tuple[int, ...]]]) -> None:
        """Raises: ValueError: a column is not numeric."""
        self._descriptor = descriptor
        self._columns: dict[str, dict[str, Any]] = {}
        self._written = dict.fromkeys(columns, 0)
        self._end = _ALIGNMENT
        for name, (given, shape) in columns.items():
            dtype = np.dtype(given)
            if dtype.kind not in _NUMBERS:
                raise ValueError(f"column {name} is {dtype}; only numbers can be written")
            sizes = [shape] if isinstance(shape, int) else list(shape)
            self._columns[name] = {"dtype": dtype.newbyteorder("<").str, "shape": sizes, "offset": self._end, "crc32": 0}
            num_bytes = _num_bytes(self._columns[name])
            self._end += num_bytes + -num_bytes % _ALIGNMENT
        self.meta: dict[str, Any] = {}
        """Values that `complete` writes into the header."""
        self.written: WrittenFile
        """Size and digest of the file; set when the file is complete."""

    def append(self, name: str, values: Array) -> None:
        """Write the next `values` of a column, cast to the column's dtype. Args: values: any shape. Raises: ValueError: there are more values than
        announced. OSError."""
        column, done = self._columns[name], self._written[name]
        stored = np.ascontiguousarray(values, column["dtype"]).reshape(-1).view(np.uint8).data
        self._written[name] += len(stored)
        if self._written[name] > _num_bytes(column):
            raise ValueError(f"column {name} has more values than the {column['shape']} that were announced")
        column["crc32"] = zlib.crc32(stored, column["crc32"])
        write_at(self._descriptor, stored, column["offset"] + done)

    def complete(self, kind: FileKind) -> None:
        """Write the header of a file of `kind` and set `written`. Raises: ValueError: values are missing. OSError."""
        for name, column in self._columns.items():
            if self._written[name] < _num_bytes(column):
                raise ValueError(f"column {name} has fewer values than the {column['shape']} that were announced")
        header = json.dumps({"meta": self.meta, "columns": self._columns}).encode()
        write_at(self._descriptor, header, self._end)
        write_at(self._descriptor, _PREFIX.pack(kind.magic, kind.version, zlib.crc32(header), self._end, len(header)), 0)
        self.written = WrittenFile(self._end + len(header), hashlib.sha256(header).hexdigest())


class ColumnFile:
    """An open, immutable file of columns. The memory map exists as long as this object or one of its arrays, even if the file is removed."""

    __slots__ = ("_columns", "_content", "kind", "meta", "path", "written")

    def __init__(self, path: Path, kind: FileKind, content: npt.NDArray[np.uint8]) -> None:
        """Args: content: all bytes of the file, uint8 (n,)."""
        kind.check(path, content[: _START.size].tobytes())
        self.path, self.kind, self._content = path, kind, content
        start = content[: _PREFIX.size].tobytes().ljust(_PREFIX.size, b"\0")
        _, _, checksum, position, size = _PREFIX.unpack(start)
        if len(content) != position + size:
            raise kind.corrupt(path, f"it has {len(content)} bytes, but its header promises {position + size}")
        raw = content[position:].tobytes()
        if zlib.crc32(raw) != checksum or content[_PREFIX.size : _ALIGNMENT].any():
            raise kind.corrupt(path, "its header does not match its checksum")
        self.written = WrittenFile(len(content), hashlib.sha256(raw).hexdigest())
        try:
            header = json.loads(raw)
            self.meta: dict[str, Any] = header["meta"]
            self._columns: dict[str, dict[str, Any]] = header["columns"]
            for name, column in self._columns.items():
                if np.dtype(column["dtype"]).kind not in _NUMBERS or column["offset"] + _num_bytes(column) > position:
                    raise kind.corrupt(path, f"its header promises a column {name} that cannot be")
        except (ValueError, KeyError, TypeError) as error:
            raise kind.corrupt(path, f"its header cannot be read: {error}") from error

    @classmethod
    def open(cls, path: Path, kind: FileKind) -> ColumnFile:
        """Map the file `path` into memory. The header and the size of the file are verified, but not the columns (see `verify`).

        Raises: NotFoundError: there is no file. CorruptStateError: the file is damaged or of another kind. UnavailableError: the file cannot be read
        now.
        """
        try:
            content = _core.map_file(path)
        except _core.FileVanishedError as error:
            raise NotFoundError(f"{kind.noun} {path} is missing; {kind.advice}") from error
        except _core.FileAccessError as error:
            raise UnavailableError(f"cannot open the {kind.noun}: {error}") from error
        return cls(path, kind, content)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def column(self, name: str) -> Array:
        """Return a column as a read-only view of the map, with its stored dtype (little-endian) and shape. Raises: CorruptStateError."""
        try:
            column = self._columns[name]
        except KeyError as error:
            raise self.kind.corrupt(self.path, f"it has no column {name}") from error
        stored = self._content[column["offset"] : column["offset"] + _num_bytes(column)]
        values: Array = stored.view(column["dtype"]).reshape(column["shape"])
        return values

    def verify(self) -> None:
        """Compare all columns with their checksums. Raises CorruptStateError, UnavailableError, NotFoundError.

        This method uses plain reads, because reads through the memory map would count as memory of the process.
        """
        try:
            with open(self.path, "rb", buffering=0) as file:
                for name, column in self._columns.items():
                    file.seek(column["offset"])
                    checksum, rest = 0, _num_bytes(column)
                    while rest and (data := file.read(min(rest, _READ_BYTES))):
                        checksum, rest = zlib.crc32(data, checksum), rest - len(data)
                    if checksum != column["crc32"] or rest:
                        raise self.kind.corrupt(self.path, f"its column {name} does not match its checksum")
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.kind.noun} {self.path} is missing; {self.kind.advice}") from error
        except OSError as error:
            raise UnavailableError(f"cannot read the {self.kind.noun} {self.path}: {error.strerror or error}") from error


def _num_bytes(column: Mapping[str, Any]) -> int:
    return int(math.prod(column["shape"]) * np.dtype(column["dtype"]).itemsize)


def write_at(descriptor: int, content: bytes | memoryview, position: int) -> None:
    """Write all bytes of `content` at a byte position. Raises OSError, for example if a full disk has accepted only a part.

    Args: descriptor: descriptor of a file that is open for writing.
    """
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, position)
        rest, position = rest[written:], position + written


@dataclass(frozen=True, slots=True)
class LogState:
    """The content of a log's head. number: number of the last commit; 0: there is no commit. fields: int64 numbers, which the kind of log defines."""

    number: int
    fields: tuple[int, ...]


class LogHead:
    """The head of append-only logs of one kind.

    With one slot, damage of the head is always detected, and a reader that reads during a commit must read again. With two slots in separate pages,
    the previous state survives if the machine stops during a commit.
    """

    def __init__(self, kind: FileKind, num_fields: int, slots: tuple[int, ...] = (_START.size,)) -> None:
        """Args: slots: positions of the slots in the file. The log's content begins after `size` bytes."""
        self._kind, self._num_fields, self._slots = kind, num_fields, slots
        self._slot = struct.Struct(f"<Q{num_fields}qI")
        page = slots[1] - slots[0] if len(slots) > 1 else self._slot.size
        self.size = slots[-1] + page

    def initial(self, *fields: int) -> bytes:
        """Return the head of a new log. Args: fields: numbers of the first commit; without fields, there is no commit yet."""
        head = bytearray(_START.pack(self._kind.magic, self._kind.version).ljust(self.size, b"\0"))
        if fields:
            self._slot.pack_into(head, self._slots[1 % len(self._slots)], *self._packed(LogState(1, fields)))
        return bytes(head)

    def parse(self, path: Path, content: bytes) -> LogState:
        """Return the last committed state of a log. Args: content: the first `size` bytes of the file. Raises: CorruptStateError: the state is
        lost."""
        self._kind.check(path, content)
        if len(content) < self.size:
            raise self._kind.corrupt(path, "it was cut in its head")
        found, torn = LogState(0, (0,) * self._num_fields), len(self._slots) == 1
        for slot in self._slots:
            number, *fields, checksum = self._slot.unpack_from(content, slot)
            if zlib.crc32(content[slot : slot + self._slot.size - 4]) != checksum or not number:
                torn = torn or any(content[slot : slot + self._slot.size])
            elif number > found.number:
                found = LogState(number, tuple(fields))
        # If one of two slots is torn, the state of the other slot counts. If no slot has a state, the torn slot was the only commit. Then the
        # content of the log must not be overwritten.
        if torn and not found.number:
            raise self._kind.corrupt(path, "its head no longer says how many of its bytes are valid")
        return found

    def commit(self, descriptor: int, before: LogState, *fields: int) -> LogState:
        """Durably replace the state `before` by a state with `fields`. The data that the new state makes valid must be durable already.

        Raises: OSError: the state is still `before`.
        """
        after = LogState(before.number + 1, fields)
        slot = self._slots[after.number % len(self._slots)]
        replaced = os.pread(descriptor, self._slot.size, slot)
        try:
            write_at(descriptor, self._slot.pack(*self._packed(after)), slot)
            os.fdatasync(descriptor)
        except OSError:
            # Otherwise a reader could accept a state that is not on the disk.
            with suppress(OSError):
                write_at(descriptor, replaced, slot)
            raise
        return after

    def _packed(self, state: LogState) -> tuple[int, ...]:
        body = self._slot.pack(state.number, *state.fields, 0)[:-4]
        return state.number, *state.fields, zlib.crc32(body)
