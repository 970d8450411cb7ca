"""Files of tensors and plain values that one process writes and another reads back: complete or absent, with a checksum over every byte.

A file is what torch.save writes, then magic, CRC-32 and length of that. Reading verifies first and never runs code (`weights_only`).
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch

from modyn.atomic_write import make_folder, replacing
from modyn.errors import CorruptStateError, TrainingError

_MAGIC: Final = b"MODYNTST"
_TRAILER: Final = struct.Struct("<8sIQ")
_READ_BYTES: Final = 1 << 20


def write_state_file(
    path: Path, state: Mapping[str, Any], option: str = "training.checkpointing.path", *, durable: bool = True
) -> None:
    """Write `state` as the file `path`; after a crash the file is the old one or the new one.

    Args: option: the one of the pipeline that asks for the file. durable: as for `replacing`. Raises: TrainingError: the disk cannot be written to.
    """
    try:
        if durable or not path.parent.is_dir():
            make_folder(path.parent)
        with replacing(path, path.with_name(f".{path.name}.partial"), durable=durable) as file:
            content = _Checksummed(file)
            content.save(dict(state))
            file.write(_TRAILER.pack(_MAGIC, content.crc32, content.length))
    except OSError as error:
        raise TrainingError(
            f"{option}: cannot write {path}: {error.strerror or error}; free space there, or name another folder"
        ) from error


def read_state_file(path: Path) -> dict[str, Any]:
    """Read what `write_state_file` wrote. Raises CorruptStateError if the file differs from that, even in one bit."""
    try:
        with path.open("rb") as file:
            length = _verified_length(path, file)
            content = io.BufferedReader(_Content(file, length))
            _check_sizes(path, content, length)
            content.seek(0)
            state = torch.load(content, map_location="cpu", weights_only=True)
    except CorruptStateError:
        raise
    except Exception as error:  # damaged bytes raise errors of any class
        raise CorruptStateError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(state, dict):
        raise CorruptStateError(f"{path} holds a {type(state).__name__}, not a dictionary")
    return state


def _check_sizes(path: Path, content: BinaryIO, length: int) -> None:
    """Raise CorruptStateError if tensors have more bytes than the file, which a worker of another run may have made: torch.save compresses none."""
    with zipfile.ZipFile(content) as archive:
        members = archive.infolist()
    if (
        any(member.compress_type != zipfile.ZIP_STORED for member in members)
        or sum(member.file_size for member in members) > length
    ):
        raise CorruptStateError(f"{path} unpacks to more bytes than it has, so torch.save did not write it; remove it")


def _verified_length(path: Path, file: BinaryIO) -> int:
    """The number of bytes before the trailer. Raises CorruptStateError unless they have its checksum."""
    length = path.stat().st_size - _TRAILER.size
    file.seek(max(0, length))
    trailer = file.read()
    if len(trailer) != _TRAILER.size or trailer[:8] != _MAGIC:
        raise CorruptStateError(
            f"{path} is no state file of this version, or it was cut; go on with the Modyn that wrote it, or start anew without it"
        )
    _, expected, promised = _TRAILER.unpack(trailer)
    file.seek(0)
    checksum, rest = 0, length
    while rest and (data := file.read(min(rest, _READ_BYTES))):
        checksum, rest = zlib.crc32(data, checksum), rest - len(data)
    if rest or promised != length or checksum != expected:
        raise CorruptStateError(f"{path} does not match its checksum: it is damaged")
    return length


class _Checksummed:
    """A file that torch.save writes to; counts and checksums what passes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._failure: OSError | None = None
        self.crc32, self.length = 0, 0

    def save(self, state: dict[str, Any]) -> None:
        """Write `state`. Raises OSError; what torch makes of it would not say why."""
        try:
            torch.save(state, self)  # type: ignore[arg-type]
        except Exception:
            if self._failure is not None:
                raise self._failure from None
            raise

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`."""
        try:
            self._file.write(data)
        except OSError as error:
            self._failure = error
            raise
        self.crc32 = zlib.crc32(data, self.crc32)
        self.length += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing to do: the file is flushed once it is complete."""


class _Content(io.RawIOBase):
    """The first `length` bytes of a file, as a file."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file, self._length, self._position = file, length, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to `offset` from the start, the position or the end of the content."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as far as the content goes; return the number of bytes."""
        self._file.seek(self._position)
        data = self._file.read(min(len(buffer), max(0, self._length - self._position)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
