"""Compression of a file, chunk by chunk; decompression never writes more bytes than were compressed."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import IO, Final, Literal

import zstandard

from modyn.errors import CorruptStateError

Algorithm = Literal["ZIP_DEFLATED", "zstd"]

_MEMBER: Final = "model"
_CHUNK_BYTES: Final = 1 << 20
_MAX_WINDOW_BYTES: Final = 1 << 27
"""Memory that a zstd file may ask for when it is read."""


def compress(source: Path, target: Path, algorithm: Algorithm) -> None:
    """Write the new file `target`: a zip archive with one member, or a zstd frame."""
    with source.open("rb") as plain, target.open("xb") as packed:
        if algorithm == "zstd":
            zstandard.ZstdCompressor(level=3).copy_stream(plain, packed, size=source.stat().st_size)
            return
        # Without a date: equal weights give equal files.
        member = zipfile.ZipInfo(_MEMBER, (1980, 1, 1, 0, 0, 0))
        member.compress_type = zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(packed, "w") as archive, archive.open(member, "w", force_zip64=True) as inside:
            _copy(plain, inside, source.stat().st_size)


def decompress(source: Path, target: Path, algorithm: Algorithm, num_bytes: int) -> None:
    """Write the new file `target` of exactly `num_bytes`. Raises CorruptStateError if `source` does not unpack to that many."""
    try:
        with source.open("rb") as packed, target.open("xb") as plain:
            if algorithm == "zstd":
                reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(packed)
                with reader:
                    written = _copy(reader, plain, num_bytes)
            else:
                with zipfile.ZipFile(packed) as archive, archive.open(_MEMBER) as inside:
                    written = _copy(inside, plain, num_bytes)
    except (zipfile.BadZipFile, zlib.error, zstandard.ZstdError, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise CorruptStateError(f"{source} cannot be unpacked: {error}") from error
    if written != num_bytes:
        raise CorruptStateError(
            f"{source} unpacks to {'more' if written > num_bytes else 'fewer'} than the {num_bytes} bytes that were compressed"
        )


def _copy(source: IO[bytes] | zstandard.ZstdDecompressionReader, target: IO[bytes], limit: int) -> int:
    """Copy until the end or soon after `limit`, so that a bomb does not fill the disk; return the bytes copied."""
    seen = 0
    while seen <= limit and (chunk := source.read(_CHUNK_BYTES)):
        target.write(chunk)
        seen += len(chunk)
    return seen
