"""Look-ups and merges of idempotency keys against a dictionary, digests with equal first words among them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import CorruptStateError
from modyn.storage.formats.record_file import ENTRY, Entries
from modyn.storage.records.key_index import KeyIndex, UInt64Array

WORDS = st.sampled_from([0, 1, 2, 2**63, 2**64 - 2, 2**64 - 1])


def entries_of(digests: UInt64Array) -> Entries:
    entries = np.zeros(len(digests), ENTRY)
    entries["digest"] = digests
    entries["content"] = digests[:, 1] ^ np.uint64(5)
    return entries


@given(
    digests=st.lists(st.tuples(WORDS, WORDS), unique=True, max_size=36),
    cuts=st.lists(st.integers(0, 36), max_size=20),
    wanted=st.lists(st.tuples(WORDS, WORDS), max_size=20),
)
def test_it_finds_what_a_dictionary_finds(
    digests: list[tuple[int, int]], cuts: list[int], wanted: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    index, known = KeyIndex.open(folder, folder / "quarantine"), {digest: key for key, digest in enumerate(digests)}
    places = sorted({0, len(digests), *(cut for cut in cuts if cut <= len(digests))})
    for start, end in pairwise(places):
        index.add(entries_of(np.array(digests[start:end], np.uint64)))
        if end != len(digests):
            index.flush()
    asked = np.array(wanted or [(7, 7)], np.uint64).reshape(-1, 2)
    expected = [known.get((int(high), int(low)), -1) for high, low in asked]
    for _ in range(2):
        found = index.find(asked)
        assert found.keys.tolist() == expected
        assert [content for content, key in zip(found.contents.tolist(), expected, strict=True) if key >= 0] == [
            int(low) ^ 5 for (_, low), key in zip(asked.tolist(), expected, strict=True) if key >= 0
        ]
        index.merge()
        index.flush()
    assert index.num_runs < 16 or len(digests) < 16
    again = KeyIndex.open(folder, folder / "quarantine")
    assert again.end == len(digests)
    assert again.find(asked).keys.tolist() == expected


def test_a_merge_in_slices_is_sorted(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    digests = random.integers(0, 2**64, (3_200, 2), np.uint64)
    index = KeyIndex.open(tmp_path, tmp_path / "quarantine")
    for first in range(0, 3_200, 200):
        index.add(entries_of(digests[first : first + 200]))
        index.flush()
    assert index.num_runs == 16
    index.merge(slice_rows=500)
    assert index.num_runs == 1
    order = random.permutation(3_200)
    assert (index.find(digests[order]).keys == order).all()
    assert len(list(tmp_path.glob("*.keys"))) == 1


def test_merges_at_once_lose_no_run_that_is_added_meanwhile(tmp_path: Path) -> None:
    """The thread that makes samples merges, and so do calls that need samples at once."""
    digests = np.random.default_rng(4).integers(0, 2**64, (600, 2), np.uint64)
    index = KeyIndex.open(tmp_path, tmp_path / "quarantine")
    is_over = threading.Event()

    def merge() -> None:
        while not is_over.is_set():
            index.merge()

    with ThreadPoolExecutor(2) as pool:
        merging = [pool.submit(merge) for _ in range(2)]
        for start in range(0, len(digests), 5):
            index.add(entries_of(digests[start : start + 5]))
            index.flush()
        is_over.set()
        for thread in merging:
            thread.result()
    assert index.end == len(digests)
    assert index.find(digests).keys.tolist() == list(range(len(digests)))


def test_a_key_that_is_known_is_not_added(tmp_path: Path) -> None:
    index = KeyIndex.open(tmp_path, tmp_path / "quarantine")
    entries = entries_of(np.array([[1, 2]], np.uint64))
    index.add(entries)
    with pytest.raises(CorruptStateError, match="an idempotency key twice"):
        index.add(entries)
