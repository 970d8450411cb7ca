"""Hashes are stable, the same in any array, and spread evenly."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from modyn.preprocessing.statistics.string_hash import bucket, combine, hash_strings, hash_text, mix

MASK = (1 << 64) - 1


def mixed(value: int) -> int:
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def by_definition(text: str) -> int:
    data = text.encode()
    total = sum((byte + 1) * mixed((at + 2) * 0x9E3779B97F4A7C15 & MASK) for at, byte in enumerate(data))
    return mixed((total + 0xBF58476D1CE4E5B9 * (len(data) + 1)) & MASK)


@given(texts=st.lists(st.text(max_size=20), max_size=10), cut=st.integers(0, 5))
def test_hashes_follow_the_definition_in_any_slice(texts: list[str], cut: int) -> None:
    expected = [by_definition(text) for text in texts]
    assert hash_strings(pa.array(texts, pa.string())).tolist() == expected
    assert hash_strings(pa.array(texts, pa.string())[cut:]).tolist() == expected[cut:]


def test_the_hashes_of_a_version_are_those_of_all_versions() -> None:
    assert hash_text("modyn").tolist() == [by_definition("modyn")]
    assert [f"{by_definition(text):016x}" for text in ("", "a")] == ["f2fea5823ed3a667", "3ff63b9fdfce4fd6"]


def test_similar_strings_spread_evenly() -> None:
    hashes = hash_strings(pa.array([f"id-{number}" for number in range(100_000)]))
    assert len(np.unique(hashes)) == 100_000
    counts = np.bincount(bucket(hashes, 100), minlength=100)
    assert 850 < counts.min() <= counts.max() < 1150
    assert abs(float((hashes & np.uint64(1)).mean()) - 0.5) < 0.01


def test_pairs_are_ordered() -> None:
    one, other = hash_text("one"), hash_text("other")
    assert combine(one, other) != combine(other, one)
    assert mix(np.array([0], np.uint64)) == 0
