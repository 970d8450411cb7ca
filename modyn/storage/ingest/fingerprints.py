"""What tells later whether the indexed bytes of a file are the same: fingerprints, and checksums of all and of the last ones."""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING

from modyn.errors import DataError
from modyn.storage.files.file_system import FileSystem, IndexedVersion, SeenFile
from modyn.storage.formats.base import FileFormat, FormatResume
from modyn.storage.model.file_table import Checksum

if TYPE_CHECKING:
    import pyarrow as pa

    from modyn.storage.files.object_file import ObjectFile

_FINGERPRINT_BYTES = 1 << 16
"""Bytes of each end of the file that a fingerprint reads."""
_FINGERPRINT_BLOCKS, _FINGERPRINT_BLOCK_BYTES = 64, 1 << 12
"""Blocks between the ends that a fingerprint reads, evenly spread, and their size."""
_TAIL_BYTES = 1 << 12
"""Bytes at the end of a file whose CRC-32 is `FileRow.tail`. The C++ core reads as many (`checksum_of_tail`)."""
_READ_BYTES = 1 << 20
"""Bytes that are read at once where a whole file is read."""


def fingerprint(folder: FileSystem, path: str, num_bytes: int, version: IndexedVersion | None = None) -> str:
    """Hash the first `num_bytes` bytes of a file: all of them, or of many bytes the first and the last 64 KiB and 64 blocks of 4 KiB between.

    Args: path: full path. version: of an object, the one that is read.
    Raises: DataError, UnavailableError.
    """
    ranges = [(start, start + size) for start, size in _fingerprint_parts(num_bytes)]
    with folder.reading(path), folder.open(path, version, ranges) as file:
        return fingerprint_of(file, num_bytes)


def fingerprint_of(file: pa.NativeFile | ObjectFile, num_bytes: int) -> str:
    """Compute the `fingerprint` of an open file. Raises: OSError."""
    digest = hashlib.sha256(num_bytes.to_bytes(8, "little"))
    for start, size in _fingerprint_parts(num_bytes):
        digest.update(file.read_at(size, start))
    return digest.hexdigest()


def _fingerprint_parts(num_bytes: int) -> list[tuple[int, int]]:
    """First bytes and sizes of what a fingerprint is made of."""
    ends, blocks = 2 * _FINGERPRINT_BYTES, _FINGERPRINT_BLOCKS * _FINGERPRINT_BLOCK_BYTES
    parts = [(0, num_bytes)]
    if num_bytes > ends + blocks:
        # The last block ends where the last 64 KiB begin.
        between = num_bytes - ends - _FINGERPRINT_BLOCK_BYTES
        starts = (_FINGERPRINT_BYTES + between * number // (_FINGERPRINT_BLOCKS - 1) for number in range(_FINGERPRINT_BLOCKS))
        middle = [(start, _FINGERPRINT_BLOCK_BYTES) for start in starts]
        parts = [(0, _FINGERPRINT_BYTES), *middle, (num_bytes - _FINGERPRINT_BYTES, _FINGERPRINT_BYTES)]
    return parts


def tail_of(folder: FileSystem, file_format: FileFormat, seen: SeenFile) -> int:
    """Find `FileRow.tail` of the file `seen`: of one that can grow the CRC-32 of its last bytes, else the tag of its version.

    Raises: DataError, UnavailableError: it cannot be read.
    """
    if not (file_format.can_grow and folder.appends):
        return seen.tag
    path = folder.full_path(seen.path)
    with folder.reading(path), folder.open(path) as file:
        first = max(0, seen.size - _TAIL_BYTES)
        return zlib.crc32(file.read_at(seen.size - first, first))


def check_unchanged(folder: FileSystem, path: str, indexed: FormatResume, version: IndexedVersion | None = None) -> None:
    """Compare the indexed bytes of `path`, of an object in this `version`, with their fingerprint.

    Raises DataError if they are missing, different or not readable.
    """
    ranges = [(start, start + size) for start, size in _fingerprint_parts(indexed.end)]
    with folder.reading(path), folder.open(path, version, ranges if version and version.size >= indexed.end else ()) as file:
        size = file.size()
        same = size >= indexed.end and fingerprint_of(file, indexed.end) == indexed.fingerprint
    if not same:
        raise _rewritten(path, indexed.end, size)


def compared_checksum(folder: FileSystem, path: str, known: Checksum, num_bytes: int) -> Checksum:
    """Compute the checksum of the first `num_bytes` bytes of `path`, a file of this machine; `known` is that of them or of fewer.

    With plain reads, whose pages the kernel gives up first. Raises DataError if the bytes are missing, not those of `known`, or not readable.
    """
    crc32 = at = 0
    with folder.reading(path), folder.open(path) as file:
        for end in (known.num_bytes, num_bytes):
            while at < end and (data := file.read(min(end - at, _READ_BYTES))):
                crc32, at = zlib.crc32(data, crc32), at + len(data)
            if at < end or (end == known.num_bytes and crc32 != known.crc32):
                raise _rewritten(path, end, file.size())
    return Checksum(num_bytes, crc32)


def _rewritten(path: str, indexed_end: int, size: int) -> DataError:
    """The error of a file whose first `indexed_end` bytes are not as they were. size: that it has now."""
    cut = f"cut: {indexed_end} bytes of it are indexed, it has {size} now. Samples in it can no longer be read"
    other = f"rewritten: its first {indexed_end} bytes, which are indexed, are not the same any more"
    what = cut if size < indexed_end else other
    return DataError(f"{path} was {what}. Restore the file, or take what it holds now with `modyn data reindex`")
