"""Fingerprints of files: a change of bytes that are indexed is noticed without reading all of a large file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from modyn.storage.files.file_system import FileSystem

if TYPE_CHECKING:
    import pyarrow as pa

_FINGERPRINT_BYTES = 1 << 16
"""At each end of the file."""
_FINGERPRINT_BLOCKS, _FINGERPRINT_BLOCK_BYTES = 64, 1 << 12
"""Evenly spread between the ends."""


def fingerprint(folder: FileSystem, path: str, num_bytes: int) -> str:
    """Hash the first `num_bytes` bytes of a file: all of them, or of many bytes the first and the last 64 KiB and 64 blocks of 4 KiB between.

    Raises: DataError, UnavailableError.
    """
    with folder.reading(path), folder.open(path) as file:
        return fingerprint_of(file, num_bytes)


def fingerprint_of(file: pa.NativeFile, num_bytes: int) -> str:
    """As `fingerprint`, of an open file. Raises: OSError."""
    digest = hashlib.sha256(num_bytes.to_bytes(8, "little"))
    ends, blocks = 2 * _FINGERPRINT_BYTES, _FINGERPRINT_BLOCKS * _FINGERPRINT_BLOCK_BYTES
    parts = [(0, num_bytes)]
    if num_bytes > ends + blocks:
        # The last block ends where the last 64 KiB begin.
        between = num_bytes - ends - _FINGERPRINT_BLOCK_BYTES
        starts = (_FINGERPRINT_BYTES + between * number // (_FINGERPRINT_BLOCKS - 1) for number in range(_FINGERPRINT_BLOCKS))
        middle = [(start, _FINGERPRINT_BLOCK_BYTES) for start in starts]
        parts = [(0, _FINGERPRINT_BYTES), *middle, (num_bytes - _FINGERPRINT_BYTES, _FINGERPRINT_BYTES)]
    for start, size in parts:
        digest.update(file.read_at(size, start))
    return digest.hexdigest()
