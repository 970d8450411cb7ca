"""One sample's value as one buffer, and back. In workers only: imports torch.

A buffer is a header, the layout of the value (`value_layout.py`), and its bytes, compressed or not:

    XXH64 of the value's identity and of all that follows: 8 bytes, then b"MDC", version: 1, compression: 1, unused: 1, size of the layout: 2, size of
    the bytes before compression: 8; layout; 0 up to a multiple of 16; bytes

Integers are little endian. The identity (`keys.value_identity`) is not written: whoever reads a value says which one it must be. A buffer that is
damaged, of another value or version, or compressed by what is not installed counts as not found.
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
from modyn.cache.tier import Buffer, PartedBuffer
from modyn.cache.value_layout import ALIGNMENT, ByteArray, ValuePlan, plan_of_text, take_apart
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.zstd import zstd

Compression = Literal["none", "zstd", "lz4"]
_COMPRESSIONS: Final = get_args(Compression)
"""A buffer holds the position in it."""
ZSTD_LEVEL: Final = 1
"""The fastest: what is slower to read than to decode again is of no use in a cache."""

MOST_UNPACKED_BYTES: Final = 1 << 30
"""Largest size of a value once it is unpacked: another program may write a few bytes that unpack to more than the memory."""

_HEADER: Final = struct.Struct("<Q3sBBxHQ")
_CHECKED: Final = 8
"""Bytes from here on are checked."""
_MAGIC: Final = b"MDC"


class SampleCodec:
    """Encodes with one compression, and decodes what any was used for. For any thread."""

    def __init__(self, compression: Compression = "none") -> None:
        """Raises: ConfigError: the package is missing."""
        if compression == "lz4" and _lz4() is None:
            raise ConfigError(
                "compression 'lz4' needs the package lz4, which is not installed: pip install 'modyn[lz4]', or write zstd, which is always there"
            )
        self._compression = _COMPRESSIONS.index(compression)

    def encode(self, value: object, identity: bytes = b"") -> bytes:
        """Write one value: a tensor, an array, a number, bytes, or a tuple or dict of such. Its memory is copied.

        Raises: InvalidArgumentError: it cannot be kept (sparse, quantized, of objects, of another type …); names what and where it is.
        """
        return bytes(self.encode_parts(value, identity))

    def encode_parts(self, value: object, identity: bytes = b"") -> PartedBuffer:
        """As `encode`, without copying: the buffer shares the memory of the value. Not compressed, its bytes are read only when it is written."""
        plan, leaves = take_apart(value)
        if self._compression and plan.num_bytes > MOST_UNPACKED_BYTES:
            raise InvalidArgumentError(
                f"the sample has {plan.num_bytes:,} bytes: more than {MOST_UNPACKED_BYTES:,} are not compressed"
            )
        parts: list[Buffer] = []
        end = 0
        for leaf, (start, stop) in zip(leaves, plan.spans, strict=True):
            parts += [part for part in (bytes(start - end), leaf.data) if len(part)]
            end = stop
        head = self._head(plan)
        if self._compression:
            parts = [_compress(self._compression, b"".join(parts))]
        return PartedBuffer(len(head) + sum(map(len, parts)), partial(_seal, identity, head, parts))

    def decode(self, buffer: Buffer | None, identity: bytes = b"") -> Any:
        """Read one value, which may be written to: it shares the buffer where that may be, and is copied otherwise.

        Args: buffer: of `encode`; None: there is none. identity: as of `encode`. Returns: the value; None: there is none, it is damaged, or it is
        another one.
        """
        opened = None if buffer is None else _open(buffer, identity)
        if opened is None:
            return None
        plan, content = opened
        is_shared = content.flags.writeable and content.ctypes.data % ALIGNMENT == 0
        try:
            return plan.value(content if is_shared else content.copy())
        except Exception:  # noqa: BLE001  (its checksum is right: others have made it so, and NumPy, PyTorch or PIL do not take what it says)
            return None

    def _head(self, plan: ValuePlan) -> bytes:
        """All before the bytes of a value, with 0 for the checksum."""
        if len(plan.text) > 0xFFFF:
            raise InvalidArgumentError(
                f"the sample has {len(plan.leaves)} parts, and their names and shapes take more than 65,535 bytes: the cache cannot keep it"
            )
        header = _HEADER.pack(0, _MAGIC, CODEC_VERSION, self._compression, len(plan.text), plan.num_bytes)
        return header + plan.text + bytes(-(len(header) + len(plan.text)) % ALIGNMENT)


def _seal(identity: bytes, head: bytes, parts: Sequence[Buffer]) -> Sequence[Buffer]:
    """The pieces of a buffer. Args: head: of `_head`. parts: the bytes of the value."""
    checked = head[_CHECKED:]
    return [checksum(identity, checked, *parts).to_bytes(_CHECKED, "little") + checked, *parts]


def _open(buffer: Buffer, identity: bytes) -> tuple[ValuePlan, ByteArray] | None:
    """How the value of a buffer is laid out, and its bytes, shared where they are not compressed. None: it is damaged."""
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
    """At most the bytes that there must be; None: there are others, or what reads them is not installed."""
    name = _COMPRESSIONS[compression] if compression < len(_COMPRESSIONS) else ""
    if name == "zstd":
        reader = zstd.ZstdDecompressor()
        try:
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
