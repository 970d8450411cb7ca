"""Which segments are merged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modyn.storage.index.segment_file import SEGMENT_ROWS
from modyn.storage.ingest.segment_writer import merge_run


@given(st.lists(st.integers(1, 3 * SEGMENT_ROWS // 2), max_size=100))
def test_merging_keeps_segments_few_and_bounded(added: list[int]) -> None:
    sizes: list[int] = []
    for size in added:
        sizes.append(min(size, SEGMENT_ROWS))
        before = sum(sizes)
        while run := merge_run(sizes):
            sizes[-run:] = [sum(sizes[-run:])]
        assert sum(sizes) == before
        assert max(sizes) <= SEGMENT_ROWS


def test_many_single_samples_make_few_segments() -> None:
    sizes: list[int] = []
    rewritten = 0
    for _ in range(20_000):
        sizes.append(1)
        while run := merge_run(sizes):
            rewritten += sum(sizes[-run:])
            sizes[-run:] = [sum(sizes[-run:])]
    assert len(sizes) <= 80
    assert rewritten <= 5 * 20_000
