"""Compression of model files, chunk by chunk. Unpacking stops soon after the original size, so that a damaged file cannot fill the disk."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import IO, Final

from modyn.errors import CorruptStateError
from modyn.model_storage.section import Algorithm
from modyn.zstd import zstd

_MEMBER: Final = "model"
"""Name of the member in a zip archive."""
_CHUNK_BYTES: Final = 1 << 20
_MAX_WINDOW_LOG: Final = 27
"""Binary logarithm of the largest memory, in bytes, that reading a zstd file may take."""


def compress(source: Path, target: Path, algorithm: Algorithm) -> None:
    """Write the new file `target`: a zip archive with one member, or a zstd frame."""
    with source.open("rb") as plain, target.open("xb") as packed:
        if algorithm == "zstd":
            # The zstd frame has a checksum, like a zip archive, so that a flipped bit outside of the weights is also detected.
            options: dict[int, int] = {zstd.CompressionParameter.compression_level: 3, zstd.CompressionParameter.checksum_flag: 1}
            with zstd.ZstdFile(packed, "w", options=options) as frame:
                _copy(plain, frame, source.stat().st_size)
            return
        # The member has no date, so that equal weights give equal files.
        member = zipfile.ZipInfo(_MEMBER, (1980, 1, 1, 0, 0, 0))
        member.compress_type = zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(packed, "w") as archive, archive.open(member, "w", force_zip64=True) as inside:
            _copy(plain, inside, source.stat().st_size)


def decompress(source: Path, target: Path, algorithm: Algorithm, num_bytes: int) -> None:
    """Write the new file `target` of exactly `num_bytes`. Raises CorruptStateError: `source` does not unpack to this number of bytes."""
    try:
        with source.open("rb") as packed, target.open("xb") as plain:
            if algorithm == "zstd":
                with zstd.ZstdFile(packed, options={zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}) as frame:
                    written = _copy(frame, plain, num_bytes)
            else:
                with zipfile.ZipFile(packed) as archive, archive.open(_MEMBER) as inside:
                    written = _copy(inside, plain, num_bytes)
    except (zipfile.BadZipFile, zlib.error, zstd.ZstdError, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise CorruptStateError(f"{source} cannot be unpacked: {error}") from error
    if written != num_bytes:
        raise CorruptStateError(
            f"{source} unpacks to {'more' if written > num_bytes else 'fewer'} than the {num_bytes} bytes that were compressed"
        )


def _copy(source: IO[bytes] | zstd.ZstdFile, target: IO[bytes] | zstd.ZstdFile, limit: int) -> int:
    """Copy up to the end of the source, but stop soon after `limit` bytes. Returns the number of copied bytes."""
    seen = 0
    while seen <= limit and (chunk := source.read(_CHUNK_BYTES)):
        target.write(chunk)
        seen += len(chunk)
    return seen
