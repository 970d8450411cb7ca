"""Checks that the indexed bytes of a file are unchanged, by fingerprints, and by checksums of all bytes or of the last bytes."""

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
"""Number of bytes that a fingerprint reads at each end of the file."""
_FINGERPRINT_BLOCKS, _FINGERPRINT_BLOCK_BYTES = 64, 1 << 12
"""Number of evenly spaced blocks that a fingerprint reads between the two ends of the file, and bytes of each block."""
_TAIL_BYTES = 1 << 12
"""Number of last bytes of a file whose CRC-32 is `FileRow.tail`. The C++ core uses the same number (`checksum_of_tail`)."""
_READ_BYTES = 1 << 20
"""Number of bytes that are read at once when a whole file is read."""


def fingerprint(folder: FileSystem, path: str, num_bytes: int, version: IndexedVersion | None = None) -> str:
    """Hash the first `num_bytes` bytes of a file. If there are more than 384 KiB, hash only the first and last 64 KiB, and 64 blocks of 4 KiB between
    them.

    Args: path: full path. version: version of an object to read.
    Raises: DataError, UnavailableError.
    """
    ranges = [(start, start + size) for start, size in _fingerprint_parts(num_bytes)]
    with folder.reading(path), folder.open(path, version, ranges) as file:
        return fingerprint_of(file, num_bytes)


def fingerprint_of(file: pa.NativeFile | ObjectFile, num_bytes: int) -> str:
    """Compute the `fingerprint` of an open file. Raises: OSError."""
    # The hash includes the number of bytes, because the hashed blocks may be equal for two sizes, for example in a file of zeros.
    digest = hashlib.sha256(num_bytes.to_bytes(8, "little"))
    for start, size in _fingerprint_parts(num_bytes):
        digest.update(file.read_at(size, start))
    return digest.hexdigest()


def _fingerprint_parts(num_bytes: int) -> list[tuple[int, int]]:
    """Return offset and size of each block that a fingerprint reads."""
    ends, blocks = 2 * _FINGERPRINT_BYTES, _FINGERPRINT_BLOCKS * _FINGERPRINT_BLOCK_BYTES
    parts = [(0, num_bytes)]
    if num_bytes > ends + blocks:
        # The last block of 4 KiB ends at the beginning of the last 64 KiB.
        between = num_bytes - ends - _FINGERPRINT_BLOCK_BYTES
        starts = (_FINGERPRINT_BYTES + between * number // (_FINGERPRINT_BLOCKS - 1) for number in range(_FINGERPRINT_BLOCKS))
        middle = [(start, _FINGERPRINT_BLOCK_BYTES) for start in starts]
        parts = [(0, _FINGERPRINT_BYTES), *middle, (num_bytes - _FINGERPRINT_BYTES, _FINGERPRINT_BYTES)]
    return parts


def tail_of(folder: FileSystem, file_format: FileFormat, seen: SeenFile) -> int:
    """Return `FileRow.tail` of the file `seen`: the CRC-32 of the last bytes if the file can grow, else the tag of its version.

    Raises: DataError, UnavailableError: the file cannot be read.
    """
    if not (file_format.can_grow and folder.appends):
        return seen.tag
    path = folder.full_path(seen.path)
    with folder.reading(path), folder.open(path) as file:
        first = max(0, seen.size - _TAIL_BYTES)
        return zlib.crc32(file.read_at(seen.size - first, first))


def check_unchanged(folder: FileSystem, path: str, indexed: FormatResume, version: IndexedVersion | None = None) -> None:
    """Check that the indexed bytes of `path` still match their fingerprint.

    Args: version: version of an object to read.
    Raises: DataError: the bytes are missing, different or not readable.
    """
    ranges = [(start, start + size) for start, size in _fingerprint_parts(indexed.end)]
    with folder.reading(path), folder.open(path, version, ranges if version and version.size >= indexed.end else ()) as file:
        size = file.size()
        same = size >= indexed.end and fingerprint_of(file, indexed.end) == indexed.fingerprint
    if not same:
        raise _rewritten(path, indexed.end, size)


def compared_checksum(folder: FileSystem, path: str, known: Checksum, num_bytes: int) -> Checksum:
    """Compute the checksum of the first `num_bytes` bytes of the local file `path`, and compare the file with `known`, the checksum of the same or
    fewer bytes. The file is not mapped: the kernel frees the pages of plain reads first. Raises: DataError: the bytes are missing, differ from
    `known`, or are not readable.
    """
    crc32 = at = 0
    with folder.reading(path), folder.open(path) as file:
        # The CRC of the known bytes is an intermediate result of the CRC of all bytes, so the file is read once.
        for end in (known.num_bytes, num_bytes):
            while at < end and (data := file.read(min(end - at, _READ_BYTES))):
                crc32, at = zlib.crc32(data, crc32), at + len(data)
            if at < end or (end == known.num_bytes and crc32 != known.crc32):
                raise _rewritten(path, end, file.size())
    return Checksum(num_bytes, crc32)


def _rewritten(path: str, indexed_end: int, size: int) -> DataError:
    """Return the error for a file whose first `indexed_end` bytes have changed. Args: size: current size."""
    cut = f"cut: {indexed_end} bytes of it are indexed, it has {size} now. Samples in it can no longer be read"
    other = f"rewritten: its first {indexed_end} bytes, which are indexed, are not the same any more"
    what = cut if size < indexed_end else other
    return DataError(f"{path} was {what}. Restore the file, or index what it contains now with `modyn data reindex`")
