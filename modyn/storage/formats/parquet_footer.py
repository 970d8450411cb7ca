"""The footer of a Parquet file, looked at before Arrow is: Arrow ends the process at the metadata of a column that is encrypted."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from modyn.errors import DataError
from modyn.storage.formats.base import OpenedFile

_READ_AHEAD = 1 << 16
"""Bytes of the end of a file that are read at first, as Arrow does."""
_SIGNATURE_BYTES = 28
"""The end of a footer whose metadata are not encrypted, though columns are."""


def read_footer(file: OpenedFile) -> pq.FileMetaData:
    """Read the metadata of a file, with as many requests as Arrow makes.

    Raises: DataError: the file is encrypted, wholly or in some columns. OSError, pa.ArrowException: also if the file does not end with a footer.
    """
    tail = _last_bytes(file, _READ_AHEAD)
    encrypted = DataError(
        f"{file.path} is encrypted Parquet, wholly or in some columns, and Modyn has no keys; write it again without encryption"
    )
    if tail.endswith(b"PARE"):
        raise encrypted
    length = int.from_bytes(tail[-8:-4], "little")
    if not tail.endswith(b"PAR1") or not 0 < length <= file.size - 12:
        return pq.read_metadata(file.source)  # Arrow says what is wrong.
    if len(tail) < length + 8:
        tail = _last_bytes(file, length + 8)
    metadata = pq.read_metadata(pa.BufferReader(tail[-length - 8 :]))
    if length == metadata.serialized_size + _SIGNATURE_BYTES:
        raise encrypted
    return metadata


def _last_bytes(file: OpenedFile, size: int) -> bytes:
    file.source.seek(max(0, file.size - size))
    found: bytes = file.source.read(min(file.size, size))
    return found
