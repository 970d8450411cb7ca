"""Convert one sample's value to a buffer and back. Only workers import this module, because it imports torch.

A buffer is a header, the layout of the value (`value_layout.py`), and its bytes, compressed or not:

    XXH64 of the value's identity and of all that follows: 8 bytes, then b"MDC", version: 1, compression: 1, unused: 1, size of the layout: 2, size of
    the bytes before compression: 8; layout; 0 up to a multiple of 16; bytes

Integers are little endian. The identity (`keys.value_identity`) is not written, because the reader knows the identity that it expects. A reader
treats a buffer as missing if the buffer is damaged, belongs to another value or version, or needs a decompressor that is not installed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Literal, get_args

import numpy as np

from modyn._core import checksum
from modyn.cache.keys import CODEC_VERSION
from modyn.cache.tiers.tier import Buffer, PartedBuffer
from modyn.cache.value_layout import ALIGNMENT, ByteArray, ValuePlan, plan_of_text, take_apart
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.zstd import zstd

Compression = Literal["none", "zstd", "lz4"]
_COMPRESSIONS: Final = get_args(Compression)
"""Kinds of compression. A buffer stores the position of its kind in this tuple."""
ZSTD_LEVEL: Final = 1
"""Level of zstd: the fastest one, because a cached value must be faster to read than to decode again."""

MOST_UNPACKED_BYTES: Final = 1 << 30
"""Largest size of an unpacked value in bytes. Without this bound, a few bytes that another program wrote could unpack to more than the memory."""

_HEADER: Final = struct.Struct("<Q3sBBxHQ")
_CHECKED: Final = 8
"""Offset of the first byte that the checksum covers."""
_MAGIC: Final = b"MDC"


class SampleCodec:
    """Encodes with one compression, and decodes buffers of any compression. Thread-safe."""

    def __init__(self, compression: Compression = "none") -> None:
        """Raises: ConfigError: the package is missing."""
        if compression == "lz4" and _lz4() is None:
            raise ConfigError(
                "compression 'lz4' needs the package lz4, which is not installed: pip install 'modyn[lz4]', or write zstd, which is always there"
            )
        self._compression = _COMPRESSIONS.index(compression)

    def encode(self, value: object, identity: bytes = b"") -> bytes:
        """Encode one value: a tensor, an array, a number, bytes, or a tuple or dict of such values. The memory of the value is copied.

        Raises: InvalidArgumentError: the value cannot be kept (sparse, quantized, of objects, of another type …); the message names the part.
        """
        return bytes(self.encode_parts(value, identity))

    def encode_parts(self, value: object, identity: bytes = b"") -> PartedBuffer:
        """Encode like `encode`, but without a copy: the buffer shares the memory of the value. Without compression, the value's bytes are read only
        when the buffer is written to a tier."""
        plan, leaves = take_apart(value)
        if self._compression and plan.num_bytes > MOST_UNPACKED_BYTES:
            raise InvalidArgumentError(
                f"the sample has {plan.num_bytes:,} bytes: more than {MOST_UNPACKED_BYTES:,} are not compressed"
            )
        parts: list[Buffer] = []
        end = 0
        for leaf, (start, stop) in zip(leaves, plan.spans, strict=True):
            # Zeros up to the multiple of ALIGNMENT at which the leaf begins.
            parts += [part for part in (bytes(start - end), leaf.data) if len(part)]
            end = stop
        head = self._head(plan)
        if self._compression:
            parts = [_compress(self._compression, b"".join(parts))]
        return PartedBuffer(len(head) + sum(map(len, parts)), partial(_seal, identity, head, parts))

    def decode(self, buffer: Buffer | None, identity: bytes = b"") -> Any:
        """Decode one value. The value is writable. If the buffer is writable and aligned, the value shares its memory; otherwise the value is copied.

        Args: buffer: result of `encode`, or None. identity: see `keys.value_identity`. Returns: the value; None: the buffer is missing, damaged, or
        of another value.
        """
        opened = None if buffer is None else _open(buffer, identity)
        if opened is None:
            return None
        plan, content = opened
        # NumPy and PyTorch would read unaligned memory slowly or not at all, and values must be writable.
        is_shared = content.flags.writeable and content.ctypes.data % ALIGNMENT == 0
        try:
            return plan.value(content if is_shared else content.copy())
        except Exception:  # noqa: BLE001  (the checksum matches, so another program wrote this layout; NumPy, PyTorch or PIL refuse it)
            return None

    def _head(self, plan: ValuePlan) -> bytes:
        """Return all bytes before the bytes of the value, with 0 as the checksum."""
        if len(plan.text) > 0xFFFF:
            raise InvalidArgumentError(
                f"the sample has {len(plan.leaves)} parts, and their names and shapes take more than 65,535 bytes: the cache cannot keep it"
            )
        header = _HEADER.pack(0, _MAGIC, CODEC_VERSION, self._compression, len(plan.text), plan.num_bytes)
        # Zeros, so that the bytes of the value begin at a multiple of ALIGNMENT.
        return header + plan.text + bytes(-(len(header) + len(plan.text)) % ALIGNMENT)


def _seal(identity: bytes, head: bytes, parts: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return the pieces of a buffer, the checksum first. Args: head: result of `_head`. parts: the bytes of the value."""
    checked = head[_CHECKED:]
    return [checksum(identity, checked, *parts).to_bytes(_CHECKED, "little") + checked, *parts]


def _open(buffer: Buffer, identity: bytes) -> tuple[ValuePlan, ByteArray] | None:
    """Return the layout of a buffer's value and its bytes, which share the buffer if they are not compressed. None: the buffer is damaged."""
    if len(buffer) < _HEADER.size:
        return None
    expected, magic, version, compression, size, num_bytes = _HEADER.unpack_from(buffer)
    if (magic, version) != (_MAGIC, CODEC_VERSION) or checksum(identity, memoryview(buffer)[_CHECKED:]) != expected:
        return None
    stop = _HEADER.size + size
    plan = plan_of_text(bytes(buffer[_HEADER.size : stop]))
    if plan is None or plan.num_bytes != num_bytes:
        return None
    stored = memoryview(buffer)[stop + -stop % ALIGNMENT :]
    if compression:
        # Another program may have written the size, so it is checked before memory is allocated.
        if num_bytes > MOST_UNPACKED_BYTES:
            return None
        unpacked = _decompress(compression, stored, num_bytes)
        if unpacked is None:
            return None
        stored = memoryview(unpacked)
    return (plan, np.frombuffer(stored, np.uint8)) if len(stored) == num_bytes else None


@cache
def _lz4() -> Any:
    return import_module("lz4.block") if find_spec("lz4") else None


def _compress(compression: int, content: bytes) -> bytes:
    packed: bytes = (
        zstd.compress(content, level=ZSTD_LEVEL)
        if _COMPRESSIONS[compression] == "zstd"
        else _lz4().compress(content, store_size=False)
    )
    return packed


def _decompress(compression: int, stored: memoryview, num_bytes: int) -> bytes | None:
    """Decompress to the expected number of bytes; None: the number differs, or the library is not installed."""
    name = _COMPRESSIONS[compression] if compression < len(_COMPRESSIONS) else ""
    if name == "zstd":
        reader = zstd.ZstdDecompressor()
        try:
            # One byte more than expected: a longer content is noticed without unpacking all of it.
            content: bytes = reader.decompress(stored, max_length=num_bytes + 1)
        except zstd.ZstdError:
            return None
        return content if reader.eof else None
    if name != "lz4" or _lz4() is None:
        return None
    try:
        unpacked: bytes = _lz4().decompress(stored, uncompressed_size=num_bytes)
    except _lz4().LZ4BlockError:
        return None
    return unpacked
