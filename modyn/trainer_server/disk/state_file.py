"""Files of tensors and plain values that one process writes and another reads: complete or absent, with a checksum over every byte.

A file is the output of torch.save, followed by a magic number, a CRC-32 and the length. The reader first verifies the file, and never runs pickled
code (`weights_only`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch

from modyn.atomic_write import make_folder, replacing
from modyn.errors import CorruptStateError, TrainingError
from modyn.trainer_server.disk.safe_load import load_safely

_MAGIC: Final = b"MODYNTST"
_TRAILER: Final = struct.Struct("<8sIQ")
_READ_BYTES: Final = 1 << 20


def write_state_file(
    path: Path, state: Mapping[str, Any], option: str = "training.checkpointing.path", *, durable: bool = True
) -> None:
    """Write `state` as the file `path`. After a crash the file is either the old file or the new file.

    Args: option: the pipeline's option that asks for the file. durable: see `replacing`. Raises: TrainingError: the disk cannot be written to.
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
    """Read a file that `write_state_file` wrote. Raises CorruptStateError if a bit differs from the written file."""
    try:
        with path.open("rb") as file:
            state = load_safely(path, file, _verified_length(path, file))
    except CorruptStateError:
        raise
    except Exception as error:  # damaged bytes raise errors of any class
        raise CorruptStateError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(state, dict):
        raise CorruptStateError(f"{path} holds a {type(state).__name__}, not a dictionary")
    return state


def _verified_length(path: Path, file: BinaryIO) -> int:
    """Return the number of bytes before the trailer. Raises CorruptStateError if the checksum of these bytes is wrong."""
    length = path.stat().st_size - _TRAILER.size
    file.seek(max(0, length))
    trailer = file.read()
    if len(trailer) != _TRAILER.size or trailer[:8] != _MAGIC:
        raise CorruptStateError(
            f"{path} is not a state file of this version, or it was cut; use the Modyn that wrote it, or start again without it"
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
    """A file object that torch.save writes to; counts and checksums the bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._failure: OSError | None = None
        self.crc32, self.length = 0, 0

    def save(self, state: dict[str, Any]) -> None:
        """Write `state`. Raises the OSError of the file, which torch would replace by an error that hides the cause."""
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
        """Do nothing, because `write_state_file` flushes the complete file."""
