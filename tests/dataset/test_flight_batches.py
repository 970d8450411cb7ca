"""Reads are fetched in windows of bounded size; answers are matched with the keys asked for; a fetch that waits is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.dataset.chunks import PayloadBuffer, ReadLimits, concatenate_payloads, select_payloads
from modyn.dataset.config import DataConfig, RecordLayout
from modyn.dataset.connections import DatasetClients
from modyn.dataset.flight_batches import align
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.batch_plan import Plan
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.errors import ModynError
from modyn.storage.model.samples import Payloads
from modyn.testing.waiting import PATIENCE_S
from tests.support.fake_dataset import FakeTriggerSet, StuckPayloadClient

BYTES = DataConfig(dataset_id="fake", record_layout=RecordLayout(dtype="int64"))


@given(st.lists(st.integers(0, 9), max_size=300), st.sets(st.integers(0, 9)), st.integers(0, 5))
def test_answers_are_aligned_with_what_was_asked(keys: list[int], deleted: set[int], start: int) -> None:
    asked, start = np.array(keys, np.int64), min(start, len(keys))
    there = np.array([i for i in range(start, len(keys)) if keys[i] not in deleted], np.int64)
    assert align(asked, start, asked[there]).tolist() == there.tolist()


def test_an_answer_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(ModynError, match="key 4, which was not asked for or not in this order; use workers, storage"):
        align(np.array([4, 5, 6]), 1, np.array([5, 4]))


@pytest.mark.parametrize("shuffle", [False, True])
def test_large_samples_are_asked_for_in_small_windows(shuffle: bool) -> None:
    asked: list[int] = []
    keys = FakeTriggerSet(np.arange(200), 200, before_fetch=lambda keys: asked.append(len(keys)))
    limits = ReadLimits(first_fetch=5, fetch_bytes=8 * 20)
    options = LoadOptions(16, drop_last=False, shuffle=shuffle, seed=0, limits=limits)
    with BatchLoader(TriggerSetDataset(keys.info, BYTES, keys, options)) as loader:
        found = [key for batch in loader for key in batch.keys.tolist()]
    assert sorted(found) == list(range(200))
    assert sum(asked) == 200
    assert asked[0] == 5
    assert max(asked) == 20
    options = replace(options, limits=replace(limits, first_fetch=50))
    asked.clear()
    with BatchLoader(TriggerSetDataset(keys.info, BYTES, keys, options)) as loader:
        next(iter(loader))
    assert asked[0] == 16, "no more than a batch, as long as nothing is known of the samples' size"


@given(
    num_keys=st.integers(1, 80),
    partition_size=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    limits=st.builds(
        ReadLimits, fetch_samples=st.integers(1, 30), fetch_bytes=st.integers(1, 300), first_fetch=st.integers(1, 20)
    ),
    shuffle=st.booleans(),
)
def test_windows_tile_their_partition_read(
    num_keys: int, partition_size: int, batch_size: int, limits: ReadLimits, *, shuffle: bool
) -> None:
    """Every row once, in the order of the rows, and none above the limits."""
    asked: list[list[int]] = []
    fake = FakeTriggerSet(np.arange(num_keys), partition_size, before_fetch=lambda keys: asked.append(keys.tolist()))
    plan = Plan(num_keys, partition_size, batch_size, shuffle=shuffle, seed=1)
    options = LoadOptions(batch_size, drop_last=False, shuffle=shuffle, seed=1, limits=limits)
    with BatchLoader(TriggerSetDataset(fake.info, BYTES, fake, options)) as loader:
        served = [key for batch in loader for key in batch.keys.tolist()]
    reads = list(plan.reads(epochs=1))
    keys_of = [(read.partition * partition_size + read.rows()).tolist() for read in reads]
    assert served == [key for keys in keys_of for key in keys]
    for read, keys in zip(reads, keys_of, strict=True):
        windows = [[keys.index(key) for key in window] for window in asked if window[0] // partition_size == read.partition]
        windows.sort(key=min)  # Two threads ask for them.
        assert [row for window in windows for row in sorted(window)] == list(range(len(keys)))
    assert sum(map(len, asked)) == num_keys
    known_size = max(1, min(limits.fetch_samples, limits.fetch_bytes // 8))
    assert max(map(len, asked)) <= max(known_size, min(limits.first_fetch, batch_size))


def test_closing_calls_off_a_fetch_that_waits() -> None:
    keys = FakeTriggerSet(np.arange(40), 10)
    client = StuckPayloadClient(keys.storage(), stuck_key=10)
    dataset = TriggerSetDataset(keys.info, BYTES, lambda: DatasetClients(keys().selector, client), LoadOptions(10))
    batches: Iterator[object] = iter(loader := BatchLoader(dataset))
    next(batches)
    assert client.started.wait(PATIENCE_S)
    loader.close()
    assert client.called_off.is_set()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("prefetch", "serve"))]


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
    found = select_payloads(whole, np.array(rows, np.int64))
    assert content(found) == [content(whole)[row] for row in rows]
    assert (found.offsets[0], found.offsets[-1]) == (0, len(found.data))
    start, stop = sorted((data.draw(st.integers(0, len(samples))), data.draw(st.integers(0, len(samples)))))
    found = select_payloads(whole, slice(start, stop))
    assert content(found) == content(whole)[start:stop]
    assert (found.offsets[0], found.offsets[-1]) == (0, len(found.data))
    assert np.shares_memory(found.data, whole.data) or not len(found.data)


@given(st.lists(st.tuples(SAMPLES, st.integers(0, 3)), max_size=4))
def test_joined_parts(parts: list[tuple[list[bytes], int]]) -> None:
    arrived = [payloads(samples, 100 * i, before) for i, (samples, before) in enumerate(parts)]
    assert content(concatenate_payloads(arrived)) == [sample for part in arrived for sample in content(part)]


@given(st.lists(st.tuples(SAMPLES, st.integers(0, 3)), max_size=4), st.integers(0, 5), st.integers(0, 50))
def test_collected_answers(parts: list[tuple[list[bytes], int]], more: int, usual_bytes: int) -> None:
    arrived = [payloads(samples, 100 * i, before) for i, (samples, before) in enumerate(parts)]
    collected = PayloadBuffer(sum(map(len, arrived)) + more, usual_bytes)
    for part in arrived:
        collected.add(replace(part, record_size=part.common_size))
    found, expected = collected.payloads(), concatenate_payloads(arrived)
    assert content(found) == content(expected)
    assert found.offsets.tolist() == (expected.offsets - expected.offsets[0]).tolist()
    assert found.labels.dtype == expected.labels.dtype
    assert len(found.data) == found.offsets[-1]
    assert found.common_size in (expected.common_size, None)


def test_answers_of_one_size_are_put_where_they_stay() -> None:
    collected = PayloadBuffer(30, 1000)
    collected.add(payloads([b"abcd"] * 10))
    room = collected.payloads().data
    for first in (10, 20):
        collected.add(payloads([b"efgh"] * 10, first))
    assert np.shares_memory(collected.payloads().data, room)
    assert bytes(collected.payloads().data) == b"abcd" * 10 + b"efgh" * 20


def test_a_large_first_sample_says_little_of_the_others() -> None:
    collected = PayloadBuffer(262_144, 64 * 2**20)
    collected.add(payloads([bytes(2**20)]))
    assert len(collected.payloads()) == 1


@given(SAMPLES)
def test_record_size(samples: list[bytes]) -> None:
    expected = len(samples[0]) if samples and all(len(a) == len(b) for a, b in pairwise(samples)) else None
    whole = payloads(samples)
    assert whole.common_size == expected
    if samples:
        assert replace(whole, record_size=77).common_size == 77, "what is known already is not looked up"
