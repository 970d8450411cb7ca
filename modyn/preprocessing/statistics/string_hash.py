"""Stable hashes of strings, computed for all strings of an Arrow array at once.

Rule: h(s) = mix(Σ m_i · (s_i + 1) + m · (length + 1)) mod 2^64 over the bytes s_i of the UTF-8 text, with fixed 64-bit multipliers m_i from
SplitMix64. The upper half of the sum is strongly universal for random multipliers, so that two strings have the same upper half with a probability of
2^-32. The same string has the same hash in every process, on every machine and in every version of Modyn: models depend on it.

Source: Lemire and Kaser, Strongly Universal String Hashing is Fast, 2014, section 3 (multilinear); Steele, Lea and Flood, Fast Splittable
Pseudorandom Number Generators, 2014 (SplitMix64).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from modyn import _core
from modyn.records import Int64Array

UInt64Array = npt.NDArray[np.uint64]

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(values: UInt64Array) -> UInt64Array:
    """Apply the finalizer of SplitMix64, a fixed permutation of the 64-bit numbers. Args: values: uint64 of any shape."""
    mixed = (values ^ (values >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


def combine(left: UInt64Array, right: UInt64Array) -> UInt64Array:
    """Hash ordered pairs. Args: left, right: uint64, of shapes that broadcast; at least one dimension."""
    return mix(left * _GAMMA + mix(right + _GAMMA))


def hash_strings(strings: pa.StringArray) -> UInt64Array:
    """Hash each string. A missing string has the hash of an empty string.

    Args: strings: n values. Returns: uint64 (n,).

    >>> [f"{number:016x}" for number in hash_strings(pa.array(["", "a", "ab"]))]
    ['f2fea5823ed3a667', '3ff63b9fdfce4fd6', 'aef102c953a4f69b']
    """
    return _core.hash_strings(*_buffers(strings))


def encode_strings(strings: pa.StringArray) -> tuple[Int64Array, Int64Array, UInt64Array]:
    """Return the distinct strings, numbered in the order of first appearance.

    Returns: the number of each string, int64 (n,), -1 if missing; the first row of each distinct string, int64 (m,); their hashes, uint64 (m,).
    """
    valid = strings.buffers()[0] if strings.null_count else None
    return _core.encode_strings(*_buffers(strings), None if valid is None else np.frombuffer(valid, np.uint8), strings.offset)


def _buffers(strings: pa.StringArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the offsets of n strings, int32 (n + 1,), and the bytes of the strings."""
    _, bounds, data = strings.buffers()
    if bounds is None or not len(strings):
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    return np.frombuffer(bounds, np.int32, len(strings) + 1, 4 * strings.offset), np.frombuffer(data or b"", np.uint8)


def hash_text(text: str) -> UInt64Array:
    """Hash one string like `hash_strings`, uint64 (1,)."""
    encoded = text.encode()
    return _core.hash_strings(np.array([0, len(encoded)], np.int32), np.frombuffer(encoded, np.uint8))


def bucket(hashes: UInt64Array, num_buckets: int) -> npt.NDArray[np.int64]:
    """Distribute hashes over `num_buckets` buckets, at most 2^31, by the upper halves of the hashes. Returns: int64 of the same shape, in [0,
    num_buckets).
    """
    return (((hashes >> np.uint64(32)) * np.uint64(num_buckets)) >> np.uint64(32)).astype(np.int64)
