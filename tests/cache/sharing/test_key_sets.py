"""Stored sets of keys are read back unchanged, and take about one bit for each sample of the dataset."""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.cache.sharing.key_sets import held, pack, unpack
from modyn.cache.sharing.state import KeySetId


@given(st.sets(st.one_of(st.integers(0, 300), st.integers(0, 10**6), st.integers(0, 2**62)), min_size=1))
def test_round_trip(keys: set[int]) -> None:
    array = np.array(sorted(keys))
    key_set, packed = pack(array)
    assert key_set.num_bytes == len(packed)
    assert unpack(key_set, packed).tolist() == array.tolist()
    with pytest.raises(ValueError, match="not the set"):
        unpack(key_set, packed[:-1])


@given(st.sets(st.integers(0, 50), min_size=1), st.sets(st.integers(0, 50), min_size=1))
def test_common_keys(keys: set[int], others: set[int]) -> None:
    found = held(np.array(sorted(keys)), np.array(sorted(others)))
    assert np.array(sorted(keys))[found].tolist() == sorted(keys & others)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.01, 0.001])
def test_size(share: float) -> None:
    num_samples = 200_000
    keys = np.sort(np.random.default_rng(0).permutation(num_samples)[: int(share * num_samples)])
    assert len(pack(keys)[1]) <= num_samples / 8 + 200


def forged(kind: int, count: int, content: bytes) -> tuple[KeySetId, bytes]:
    packed = bytes([kind]) + np.array([0, count], "<i8").tobytes() + content
    return KeySetId(hashlib.blake2b(packed, digest_size=16).digest(), len(packed)), packed


BOMB = zlib.compress(bytes(32 << 20), 9)


@pytest.mark.parametrize(
    ("kind", "count", "content", "reason"),
    [
        (0, 1000, BOMB, "unpacks to more than 2,000 bytes"),
        (1, 1000, BOMB, "unpacks to more than 999 bytes"),
        (4, 1000, BOMB, "unpacks to more than 7,992 bytes"),
        (0, 2**40, BOMB, "hold no set of keys"),
        (1, -1, BOMB, "hold no set of keys"),
        (9, 1000, BOMB, "hold no set of keys"),
        (0, 1000, BOMB[:100], "is cut, or unpacks to more"),
        (0, 1000, b"no such thing", "is damaged"),
        (1, 1000, zlib.compress(bytes(10)), "hold 11 keys and not 1000"),
        (0, 1000, zlib.compress(bytes(10)), "hold 0 keys and not 1000"),
    ],
)
def test_bytes_of_another_writer_are_not_accepted_as_a_set_and_take_no_memory(
    kind: int, count: int, content: bytes, reason: str
) -> None:
    key_set, packed = forged(kind, count, content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=reason):
            unpack(key_set, packed)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
