"""Sets of sample keys, packed for other jobs to read: about a bit for each sample of the dataset, or less."""

from __future__ import annotations

import hashlib
import zlib
from typing import Final

import numpy as np

from modyn.cache.sharing.state import KeySetId
from modyn.cache.tier import BoolArray
from modyn.records import Int64Array

_BITS, _GAPS = 0, 1
"""Ways to pack: a bit for each key between the first and the last; how far each key is from the one before."""
_SPARSE: Final = 16
"""Keys for each one of the set, above which gaps are shorter than bits."""

_HEAD_BYTES: Final = 17
MOST_KEYS: Final = 1 << 26
"""Of a set of another job that is looked at, unless the job's own one is nearly as large: it comes from a state that others write, and one that says
more would take memory for nothing."""


def pack(keys: Int64Array) -> tuple[KeySetId, bytes]:
    """Pack keys. Args: keys: ascending, none twice, at least one. Equal sets have equal names.

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
        kind, content = _GAPS + width.itemsize.bit_length() - 1, gaps.astype(width).tobytes()
    packed = bytes([kind]) + np.array([first, len(keys)], "<i8").tobytes() + zlib.compress(content, 1)
    return KeySetId(hashlib.blake2b(packed, digest_size=16).digest(), len(packed)), packed


def unpack(key_set: KeySetId, packed: bytes, most_keys: int = MOST_KEYS) -> Int64Array:
    """Return the keys, ascending. Raises ValueError: it is another set, or has more keys, by which what is unpacked is bounded."""
    if len(packed) < _HEAD_BYTES or hashlib.blake2b(packed, digest_size=16).digest() != key_set.digest:
        raise ValueError(f"{len(packed)} bytes are not the set of keys {key_set.digest.hex()}")
    kind, (first, count) = packed[0], np.frombuffer(packed, "<i8", 2, 1).tolist()
    if not 0 < count <= most_keys or kind > _GAPS + 3:
        raise ValueError(f"the set of keys {key_set.digest.hex()} has {count} keys, packed in way {kind}")
    most_bytes = _SPARSE * count // 8 if kind == _BITS else (count - 1) << (kind - _GAPS)
    try:
        content = zlib.decompressobj().decompress(packed[_HEAD_BYTES:], most_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"the set of keys {key_set.digest.hex()} is damaged: {error}") from error
    if len(content) > most_bytes:
        raise ValueError(f"the set of keys {key_set.digest.hex()} unpacks to more than its {count} keys have")
    if kind == _BITS:
        keys = np.int64(first) + np.flatnonzero(np.unpackbits(np.frombuffer(content, np.uint8)))
    else:
        gaps = np.frombuffer(content[: len(content) >> (kind - _GAPS) << (kind - _GAPS)], f"<u{1 << (kind - _GAPS)}")
        keys = first + np.concatenate([[0], np.cumsum(gaps.astype(np.int64))])
    if len(keys) != count:
        raise ValueError(f"the set of keys {key_set.digest.hex()} has {len(keys)} keys and says {count}")
    return keys


def held(keys: Int64Array, others: Int64Array) -> BoolArray:
    """Which of some keys are among others, both ascending and not empty.

    >>> held(np.array([1, 5]), np.array([5, 6])).tolist()
    [False, True]
    """
    found: BoolArray = others[np.minimum(np.searchsorted(others, keys), len(others) - 1)] == keys
    return found
