"""Sets of keys are read back as they were, and take about a bit for each sample of the dataset."""

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


def hostile(kind: int, first: int, count: int, content: bytes) -> tuple[KeySetId, bytes]:
    """What somebody who writes the shared state may put there, named as its content demands."""
    packed = bytes([kind]) + np.array([first, count], "<i8").tobytes() + content
    return KeySetId(hashlib.blake2b(packed, digest_size=16).digest(), len(packed)), packed


BOMB = zlib.compress(bytes(1 << 28), 9)
"""260 KB that unpack to 256 MiB."""


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (hostile(0, 0, 1, BOMB), "unpacks to more than its 1 keys have"),
        (hostile(1, 0, 1000, BOMB), "unpacks to more than its 1000 keys have"),
        (hostile(0, 0, 2**62, BOMB), "has 4611686018427387904 keys"),
        (hostile(0, 0, -1, BOMB), "has -1 keys"),
        (hostile(9, 0, 3, BOMB), "packed in way 9"),
        (hostile(4, 5, 3, zlib.compress(b"123")), "has 1 keys and says 3"),
        (hostile(0, 0, 3, zlib.compress(b"\xff")), "has 8 keys and says 3"),
        (hostile(0, 0, 3, b"no zlib"), "is damaged"),
        (hostile(0, 0, 3, b""), "has 0 keys and says 3"),
        ((KeySetId(hashlib.blake2b(b"x", digest_size=16).digest(), 1), b"x"), "1 bytes are not the set"),
    ],
)
def test_what_a_hostile_state_holds_is_refused_before_it_takes_memory(found: tuple[KeySetId, bytes], message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message):
            unpack(*found)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.sets(st.integers(0, 50), min_size=1), st.sets(st.integers(0, 50), min_size=1))
def test_common_keys(keys: set[int], others: set[int]) -> None:
    found = held(np.array(sorted(keys)), np.array(sorted(others)))
    assert np.array(sorted(keys))[found].tolist() == sorted(keys & others)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.01, 0.001])
def test_size(share: float) -> None:
    num_samples = 200_000
    keys = np.sort(np.random.default_rng(0).permutation(num_samples)[: int(share * num_samples)])
    assert len(pack(keys)[1]) <= num_samples / 8 + 200
