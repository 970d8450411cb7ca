"""Reads files that torch.save wrote. No pickled code runs, and no file unpacks to more bytes than it has. Imports torch: for workers only."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from modyn.errors import CorruptStateError


def load_safely(path: Path, file: BinaryIO, length: int) -> Any:
    """Load the first `length` bytes of `file` with torch's option `weights_only`: tensors, numbers, text and collections of these, on the CPU.

    Args: path: path of the file, for errors. Raises: CorruptStateError: the content unpacks to more than `length` bytes. Damaged bytes can raise any
    error.
    """
    content = io.BufferedReader(_Content(file, length))
    _check_sizes(path, content, length)
    content.seek(0)
    return torch.load(content, map_location="cpu", weights_only=True)


def _check_sizes(path: Path, content: BinaryIO, length: int) -> None:
    """Raise CorruptStateError if the content unpacks to more than `length` bytes. torch.save compresses nothing, but user code may have written the
    file."""
    with zipfile.ZipFile(content) as archive:
        members = archive.infolist()
    if (
        any(member.compress_type != zipfile.ZIP_STORED for member in members)
        or sum(member.file_size for member in members) > length
    ):
        raise CorruptStateError(f"{path} unpacks to more bytes than it has, so torch.save did not write it; remove it")


class _Content(io.RawIOBase):
    """The first `length` bytes of a file, as a file object."""

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
        """Fill `buffer`, at most to the end of the content; return the number of bytes."""
        self._file.seek(self._position)
        data = self._file.read(min(len(buffer), max(0, self._length - self._position)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
