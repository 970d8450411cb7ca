"""Sets of sample keys, packed for other jobs to read. A set takes at most about 1 bit per sample of the dataset."""

from __future__ import annotations

import hashlib
import zlib
from typing import Final

import numpy as np

from modyn.cache.sharing.state import KeySetId
from modyn.records import BoolArray, Int64Array

_BITS, _GAPS = 0, 1
"""Two ways to pack: a bit for each key between the first and the last, or the differences of successive keys."""
_SPARSE: Final = 16
"""Mean difference of successive keys above which packed differences are shorter than bits."""

MOST_KEYS: Final = 1 << 28
"""Largest number of keys; a larger number means damage. A comparison takes eight bytes for each key."""


def pack(keys: Int64Array) -> tuple[KeySetId, bytes]:
    """Pack keys. Args: keys: ascending, unique, at least one. Equal sets get equal ids.

    >>> keys = np.array([5, 6, 9])
    >>> unpack(*pack(keys)).tolist()
    [5, 6, 9]
    """
    first, last = int(keys[0]), int(keys[-1])
    if last - first < _SPARSE * len(keys):
        bits = np.zeros(last - first + 1, np.bool_)
        bits[keys - first] = True
        kind, content = _BITS, np.packbits(bits).tobytes()
    else:
        gaps = np.diff(keys)
        width = np.min_scalar_type(int(gaps.max())).newbyteorder("<")
        # The kind also encodes the width of the differences: 1, 2, 4 or 8 bytes.
        kind, content = _GAPS + width.itemsize.bit_length() - 1, gaps.astype(width).tobytes()
    packed = bytes([kind]) + np.array([first, len(keys)], "<i8").tobytes() + zlib.compress(content, 1)
    return KeySetId(hashlib.blake2b(packed, digest_size=16).digest(), len(packed)), packed


def unpack(key_set: KeySetId, packed: bytes) -> Int64Array:
    """Return the keys, ascending. Raises ValueError: the bytes do not match the id, or do not contain a set."""
    if hashlib.blake2b(packed, digest_size=16).digest() != key_set.digest:
        raise ValueError(f"{len(packed)} bytes are not the set of keys {key_set.digest.hex()}")
    first, count = np.frombuffer(packed, "<i8", 2, 1).tolist()
    is_bits, width = packed[0] == _BITS, 1 << max(0, packed[0] - _GAPS)
    if not 0 < count <= MOST_KEYS or width > 8:
        raise ValueError(f"{len(packed)} bytes hold no set of keys")
    content = _decompress(packed[17:], count * _SPARSE // 8 if is_bits else (count - 1) * width)
    if is_bits:
        keys = np.int64(first) + np.flatnonzero(np.unpackbits(np.frombuffer(content, np.uint8)))
    else:
        gaps = np.frombuffer(content, f"<u{width}")
        keys = np.concatenate([np.zeros(1, np.int64), np.cumsum(gaps.astype(np.int64))]) + np.int64(first)
    if len(keys) != count:
        raise ValueError(f"{len(packed)} bytes hold {len(keys)} keys and not {count}")
    return keys


def _decompress(packed: bytes, most_bytes: int) -> bytes:
    """Unpack at most `most_bytes` bytes. Without this bound, data of another program could fill this job's memory. Raises: ValueError: the data is
    longer, or damaged."""
    reader = zlib.decompressobj()
    try:
        # One byte more than allowed shows that the content is too long.
        content = reader.decompress(packed, most_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"the content of a set of keys is damaged: {error}") from error
    if not reader.eof or len(content) > most_bytes:
        raise ValueError(f"a set of keys is cut, or unpacks to more than {most_bytes:,} bytes")
    return content


def held(keys: Int64Array, others: Int64Array) -> BoolArray:
    """Return which `keys` are among others. Both arrays are ascending and not empty.

    >>> held(np.array([1, 5]), np.array([5, 6])).tolist()
    [False, True]
    """
    found: BoolArray = others[np.minimum(np.searchsorted(others, keys), len(others) - 1)] == keys
    return found
