"""Rows of payloads: chosen, shuffled, joined."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from modyn.dataset.payload_rows import Collected, concatenated, neighbours, taken
from modyn.storage.flight.client import Payloads


def payloads(parts: list[bytes], first_key: int = 0, before: int = 0) -> Payloads:
    """Keys from `first_key` on; `before` bytes of others stand before the first sample."""
    offsets = before + np.cumsum([0, *map(len, parts)]).astype(np.int64)
    keys = np.arange(first_key, first_key + len(parts))
    return Payloads(keys, keys % 3, np.frombuffer(bytes(before) + b"".join(parts), np.uint8), offsets)


def content(found: Payloads) -> list[tuple[int, int, bytes]]:
    samples = zip(found.keys.tolist(), found.labels.tolist(), strict=True)
    return [(key, label, bytes(found.payload(i))) for i, (key, label) in enumerate(samples)]


SAMPLES = st.one_of(st.lists(st.binary(max_size=5), max_size=12), st.lists(st.binary(min_size=3, max_size=3), max_size=12))


@given(SAMPLES, st.integers(0, 3), st.data())
def test_chosen_rows(samples: list[bytes], before: int, data: st.DataObject) -> None:
    whole = payloads(samples, 10, before)
    rows = data.draw(st.lists(st.sampled_from(range(len(samples))), max_size=20)) if samples else []
    found = taken(whole, np.array(rows, np.int64))
    assert content(found) == [content(whole)[row] for row in rows]
    assert (found.offsets[0], found.offsets[-1]) == (0, len(found.data))
    start, stop = sorted((data.draw(st.integers(0, len(samples))), data.draw(st.integers(0, len(samples)))))
    found = neighbours(whole, start, stop)
    assert content(found) == content(whole)[start:stop]
    assert (found.offsets[0], found.offsets[-1]) == (0, len(found.data))
    assert np.shares_memory(found.data, whole.data) or not len(found.data)


@given(st.lists(st.tuples(SAMPLES, st.integers(0, 3)), max_size=4))
def test_joined_parts(parts: list[tuple[list[bytes], int]]) -> None:
    arrived = [payloads(samples, 100 * i, before) for i, (samples, before) in enumerate(parts)]
    assert content(concatenated(arrived)) == [sample for part in arrived for sample in content(part)]


@given(st.lists(st.tuples(SAMPLES, st.integers(0, 3)), max_size=4), st.integers(0, 5), st.integers(0, 50))
def test_collected_answers(parts: list[tuple[list[bytes], int]], more: int, usual_bytes: int) -> None:
    arrived = [payloads(samples, 100 * i, before) for i, (samples, before) in enumerate(parts)]
    collected = Collected(sum(map(len, arrived)) + more, usual_bytes)
    for part in arrived:
        collected.add(replace(part, record_size=part.common_size))
    found, expected = collected.payloads(), concatenated(arrived)
    assert content(found) == content(expected)
    assert found.offsets.tolist() == (expected.offsets - expected.offsets[0]).tolist()
    assert found.labels.dtype == expected.labels.dtype
    assert len(found.data) == found.offsets[-1]
    assert found.common_size in (expected.common_size, None)


def test_answers_of_one_size_are_put_where_they_stay() -> None:
    collected = Collected(30, 1000)
    collected.add(payloads([b"abcd"] * 10))
    room = collected.payloads().data
    for first in (10, 20):
        collected.add(payloads([b"efgh"] * 10, first))
    assert np.shares_memory(collected.payloads().data, room)
    assert bytes(collected.payloads().data) == b"abcd" * 10 + b"efgh" * 20


def test_a_large_first_sample_says_little_of_the_others() -> None:
    collected = Collected(262_144, 64 * 2**20)
    collected.add(payloads([bytes(2**20)]))
    assert len(collected.payloads()) == 1


@given(SAMPLES)
def test_record_size(samples: list[bytes]) -> None:
    expected = len(samples[0]) if samples and all(len(a) == len(b) for a, b in pairwise(samples)) else None
    whole = payloads(samples)
    assert whole.common_size == expected
    if samples:
        assert replace(whole, record_size=77).common_size == 77, "what is known already is not looked up"
