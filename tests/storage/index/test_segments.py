"""Segments and the index over them, against sorting and indexing everything in memory, and which segments are merged."""

from __future__ import annotations

import gc
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import CorruptStateError, UnavailableError
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Interval, SampleBatch
from modyn.storage.index.segment_file import (
    SEGMENT_ROWS,
    Segment,
    SegmentBuilder,
    SegmentColumns,
    SegmentInfo,
    merge_segments,
    write_segment,
)
from modyn.storage.index.segment_index import SegmentIndex
from modyn.storage.index.tombstones import Tombstones
from modyn.storage.ingest.segment_writer import merge_run
from modyn.storage.model.samples import IndexedFiles, IndexedSamples


def random_columns(rng: np.random.Generator, rows: int, kind: str, float_labels: bool) -> SegmentColumns:
    """Columns with narrow, wide, constant, sorted or unsorted content, or as they are for a few files of records of one size."""
    if kind == "records":
        return record_columns(rng, rows, float_labels)
    low, high = {"narrow": (-3, 3), "wide": (-(2**62), 2**62), "constant": (5, 6), "sorted": (0, 50)}[kind]
    timestamps = rng.integers(low, high, rows)
    labels = rng.standard_normal(rows) if float_labels else rng.integers(low, high, rows)
    return SegmentColumns(
        rng.integers(0, 2 if kind == "narrow" else 2**32, rows, np.uint32),
        rng.integers(0, 2**62 if kind == "wide" else 1000, rows),
        np.full(rows, 156) if kind == "constant" else rng.integers(0, 200, rows),
        np.full(rows, np.nan) if float_labels and kind == "constant" else labels,
        np.sort(timestamps) if kind == "sorted" else timestamps,
    )


def record_columns(rng: np.random.Generator, rows: int, float_labels: bool) -> SegmentColumns:
    """Samples of at most three files, each with its own record size, time and label."""
    files = np.sort(rng.integers(0, 3, rows))
    position = np.arange(rows) - np.searchsorted(files, files)
    sizes = rng.integers(1, 2**40, 3)
    return SegmentColumns(
        (2**32 - 1 - files).astype(np.uint32),
        position * sizes[files] + 4,
        sizes[files],
        rng.standard_normal(3)[files] if float_labels else rng.integers(-9, 9, 3)[files],
        rng.integers(-(2**62), 2**62, 3)[files],
    )


def build_index(
    folder: Path, rng: np.random.Generator, sizes: list[int], kinds: list[str], float_labels: bool, first_key: int = 0
) -> tuple[SegmentIndex, SegmentColumns]:
    """An index and all that it must hold."""
    parts = [random_columns(rng, size, kind, float_labels) for size, kind in zip(sizes, kinds, strict=True)]
    opened = []
    for number, part in enumerate(parts):
        path = folder / f"{number}.segment"
        write_segment(path, first_key, part)
        opened.append(Segment.open(path))
        first_key += len(part)
    return SegmentIndex(opened[::-1], float_labels), SegmentColumns.concatenate(parts)


def check_equal(batch: SampleBatch, keys: np.ndarray[tuple[int], np.dtype[np.int64]], everything: SegmentColumns) -> None:
    assert np.array_equal(batch.keys, keys)
    assert np.array_equal(batch.timestamps, everything.timestamps[keys])
    assert np.array_equal(batch.labels, everything.labels[keys], equal_nan=batch.labels.dtype == np.float64)
    assert batch.labels.dtype == everything.labels.dtype


@st.composite
def index_shapes(draw: st.DrawFn) -> tuple[int, list[int], list[str], bool]:
    kinds = draw(st.lists(st.sampled_from(["narrow", "wide", "constant", "sorted", "records"]), min_size=1, max_size=6))
    sizes = [draw(st.sampled_from([1, 2, 7, 40, 300])) for _ in kinds]
    return draw(st.integers(0, 2**32 - 1)), sizes, kinds, draw(st.booleans())


@given(shape=index_shapes())
def test_lookups_give_what_was_written_in_the_order_asked(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, list[int], list[str], bool]
) -> None:
    seed, sizes, kinds, float_labels = shape
    rng = np.random.default_rng(seed)
    index, everything = build_index(tmp_path_factory.mktemp("index"), rng, sizes, kinds, float_labels)
    assert (index.num_samples, index.next_key) == (len(everything), len(everything))
    assert index.min_timestamp == everything.timestamps.min()
    assert index.max_timestamp == everything.timestamps.max()
    for size in (0, 1, 500):
        keys = rng.integers(0, len(everything), size)
        samples, found = index.samples_by_key(keys), index.entries(keys)
        assert samples is not None
        assert found is not None
        check_equal(samples, keys, everything)
        assert np.array_equal(found.file_ids, everything.file_ids[keys])
        assert np.array_equal(found.offsets, everything.offsets[keys])
        assert np.array_equal(np.broadcast_to(found.lengths, size), everything.lengths[keys])
        assert np.array_equal(found.labels, everything.labels[keys], equal_nan=float_labels)
    if set(kinds) == {"constant"}:
        assert (first := index.entries(np.array([0]))) is not None
        assert first.lengths == 156
    for segment in index.segments:
        segment.verify()


@given(
    shape=index_shapes(),
    bounds=st.tuples(st.integers(-5, 55), st.integers(-5, 55)) | st.just((MIN_TIMESTAMP, MAX_TIMESTAMP)),
    batch_size=st.sampled_from([1, 13, 1000]),
    merge_rows=st.sampled_from([1, 10, 1 << 18]),
    deleted_share=st.sampled_from([0.0, 0.3, 1.0]),
    key_share=st.sampled_from([None, 0.0, 0.4, 0.9, 1.1]),
)
def test_interval_queries_equal_sorting_everything(
    tmp_path_factory: pytest.TempPathFactory,
    shape: tuple[int, list[int], list[str], bool],
    bounds: tuple[int, int],
    batch_size: int,
    merge_rows: int,
    deleted_share: float,
    key_share: float | None,
) -> None:
    seed, sizes, kinds, float_labels = shape
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("index")
    index, everything = build_index(folder, rng, sizes, kinds, float_labels)
    deletions = Tombstones.open(folder / "deletions")
    deleted = np.flatnonzero(rng.random(len(everything)) < deleted_share)
    deletions.add(deleted)

    order = np.lexsort((np.arange(len(everything)), everything.timestamps))
    times = everything.timestamps[order]
    expected = order[(times >= bounds[0]) & (times < bounds[1]) & ~np.isin(order, deleted)]
    end_key = None if key_share is None else int(key_share * len(everything))
    expected = expected if end_key is None else expected[expected < end_key]
    interval = Interval(*bounds)
    batches = list(index.samples_in_interval(interval, batch_size, None, deletions, end_key, merge_rows))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert index.count_in_interval(interval, deletions, end_key) == len(expected)
    if not len(expected):
        assert batches == []
        return
    check_equal(SampleBatch.concatenate(batches), expected, everything)
    cut = int(rng.integers(len(expected)))
    after = (int(everything.timestamps[expected[cut]]), int(expected[cut]))
    rest = [batch.keys for batch in index.samples_in_interval(interval, batch_size, after, deletions, end_key, merge_rows)]
    assert np.array_equal(np.concatenate([np.empty(0, np.int64), *rest]), expected[cut + 1 :])


@given(shape=index_shapes(), batch_size=st.sampled_from([1, 13, 1000]), share=st.floats(0, 1.1))
def test_samples_in_order_of_key(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, list[int], list[str], bool], batch_size: int, share: float
) -> None:
    seed, sizes, kinds, float_labels = shape
    folder = tmp_path_factory.mktemp("index")
    index, everything = build_index(folder, np.random.default_rng(seed), sizes, kinds, float_labels)
    first = int(share * len(everything))
    deletions = Tombstones.open(folder / "deletions")
    deletions.add(np.arange(0, len(everything), 3))
    expected = np.array([key for key in range(first, len(everything)) if key % 3], np.int64)
    batches = list(index.samples_from(first, batch_size, deletions))
    assert sum(len(batch) for batch in batches) == len(expected)
    if batches:
        check_equal(SampleBatch.concatenate(batches), expected, everything)
        assert all(len(batch) == batch_size for batch in batches[:-1])


def test_an_interval_query_holds_few_rows_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, _ = build_index(tmp_path, np.random.default_rng(3), [2000] * 10, ["narrow"] * 10, False)
    loaded: list[int] = []
    load = Segment.samples_by_rank

    def recorded(segment: Segment, start: int, stop: int) -> SampleBatch:
        loaded.append(stop - start)
        return load(segment, start, stop)

    monkeypatch.setattr(Segment, "samples_by_rank", recorded)
    stream = index.samples_in_interval(Interval(), 50, merged_rows=1000)
    next(stream)
    assert sum(loaded) <= 4000
    assert max(loaded) <= 1000
    assert sum(len(batch) for batch in stream) == 20_000 - 50


def test_many_overlapping_segments_are_brought_in_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segments are not added one by one with a scan of all segments each time."""
    index, _ = build_index(tmp_path, np.random.default_rng(3), [40] * 64, ["narrow"] * 64, False)
    looks: list[int] = []
    order_at = Segment.order_at

    def counted(segment: Segment, rank: int) -> tuple[int, int]:
        looks.append(rank)
        return order_at(segment, rank)

    monkeypatch.setattr(Segment, "order_at", counted)
    next(index.samples_in_interval(Interval(), 1))
    assert len(looks) < 64 * 14  # 6 of them to bisect


def test_nothing_is_found_if_a_key_is_unknown(tmp_path: Path) -> None:
    index, _ = build_index(tmp_path, np.random.default_rng(0), [10, 10], ["narrow", "narrow"], False)
    assert index.entries(np.array([3, 20, -1, 20])) is None
    assert index.entries(np.arange(5, 21)) is None
    assert index.samples_by_key(np.array([-5])) is None
    assert index.contains(np.array([-1, 0, 19, 20])).tolist() == [False, True, True, False]
    empty = SegmentIndex()
    assert (empty.num_samples, empty.next_key, empty.min_timestamp) == (0, 0, None)
    assert list(empty.samples_from(0, 10)) == list(empty.samples_in_interval(Interval(), 10)) == []
    assert (nothing := empty.samples_by_key(np.empty(0, np.int64))) is not None
    assert len(nothing) == 0
    assert empty.entries(np.array([0])) is None


def test_segments_that_overlap_or_differ_in_type_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    index, _ = build_index(tmp_path, rng, [10], ["narrow"], False)
    write_segment(tmp_path / "next", 10, random_columns(rng, 5, "narrow", False))
    segments = [*index.segments, Segment.open(tmp_path / "next")]
    longer = SegmentIndex(segments, False)
    assert (longer.num_samples, longer.next_key) == (15, 15)
    write_segment(tmp_path / "overlap", 14, random_columns(rng, 5, "narrow", False))
    with pytest.raises(CorruptStateError, match="both hold key 14"):
        SegmentIndex([*segments, Segment.open(tmp_path / "overlap")], False)
    write_segment(tmp_path / "floats", 15, random_columns(rng, 5, "narrow", True))
    with pytest.raises(CorruptStateError, match="type"):
        SegmentIndex([*segments, Segment.open(tmp_path / "floats")], False)


def test_neighbours_are_merged(tmp_path: Path) -> None:
    index, everything = build_index(tmp_path, np.random.default_rng(5), [3, 200, 1], ["wide", "constant", "sorted"], True, 7)
    info = merge_segments(tmp_path / "merged", index.segments)
    merged = Segment.open(tmp_path / "merged")
    assert merged.info == info
    assert (info.first_key, info.end_key) == (7, 211)
    for name in ("file_ids", "offsets", "lengths", "labels", "timestamps"):
        assert np.array_equal(getattr(merged.columns(), name), getattr(everything, name), equal_nan=name == "labels")
    with pytest.raises(ValueError, match="begins at key 210"):
        merge_segments(tmp_path / "gap", [index.segments[0], index.segments[2]])


def test_records_of_one_size_take_no_space_for_their_places(tmp_path: Path) -> None:
    columns = record_columns(np.random.default_rng(4), 100_000, False)
    assert write_segment(tmp_path / "a", 0, columns).num_bytes < 2000
    labels = np.random.default_rng(4).integers(0, 10, 100_000)
    columns = SegmentColumns(columns.file_ids, columns.offsets, columns.lengths, labels, columns.timestamps)
    assert write_segment(tmp_path / "b", 0, columns).num_bytes < 102_000


def test_columns_that_change_too_often_are_not_stored_as_runs(tmp_path: Path) -> None:
    """Half of the samples in files of two: as many runs as one byte a sample would pay for, but they would be slow to search."""
    rows = np.arange(100_000)
    columns = SegmentColumns((rows // 2).astype(np.uint32), rows % 2 * 8, np.full(100_000, 8), rows % 7, rows // 40)
    info = write_segment(tmp_path / "a", 0, columns)
    assert 100_000 * (4 + 1 + 1 + 2) < info.num_bytes < 100_000 * (4 + 1 + 1 + 2) + 2000
    found = SegmentIndex([Segment.open(tmp_path / "a")]).entries(rows[::-1])
    assert found is not None
    assert np.array_equal(found.file_ids, columns.file_ids[::-1])
    assert np.array_equal(found.offsets, columns.offsets[::-1])


def test_an_index_keeps_the_memory_that_it_reads(tmp_path: Path) -> None:
    """Answers come from the map after everything else that knew it is gone, the file's name included."""
    index, everything = build_index(tmp_path, np.random.default_rng(0), [1000, 1000], ["wide", "records"], False)
    stored = index._columns
    for file in tmp_path.iterdir():
        file.unlink()
    del index
    gc.collect()
    found = stored.entries(np.arange(2000))
    assert found is not None
    assert np.array_equal(found[1], everything.offsets)


@pytest.mark.parametrize("gap", [0, 1, 10**6, 2**61])
def test_segments_of_any_sizes_and_gaps_between_them(tmp_path: Path, gap: int) -> None:
    """Keys of deleted segments may be missing; a few large segments stand next to many small ones."""
    rng = np.random.default_rng(0)
    segments, keys, next_key = [], [], 0
    for number, size in enumerate([1, 1, 1, 5000, 1, 2, 3, 300] + [1] * 40 + [7000]):
        segments_path = tmp_path / str(number)
        write_segment(segments_path, next_key, random_columns(rng, size, "narrow", False))
        segments.append(Segment.open(segments_path))
        keys.append(np.arange(next_key, next_key + size))
        next_key += size + (gap if number in (4, 20, 47) else 0)
    index, known = SegmentIndex(segments), np.concatenate(keys)
    asked = rng.permutation(known)
    labels = np.concatenate([segment.columns().labels for segment in segments])
    assert (found := index.entries(asked)) is not None
    assert np.array_equal(found.labels, labels[np.searchsorted(known, asked)])
    near = np.unique(np.concatenate([known - 1, known + 1, [-(2**63), 2**63 - 1]]))
    assert np.array_equal(index.contains(near), np.isin(near, known))


def test_info_is_what_an_open_segment_says(tmp_path: Path) -> None:
    columns = random_columns(np.random.default_rng(1), 100, "wide", False)
    info = write_segment(tmp_path / "a", 1000, columns)
    assert Segment.open(tmp_path / "a").info == info
    assert info == SegmentInfo(
        1000, 100, int(columns.timestamps.min()), int(columns.timestamps.max()), os.path.getsize(tmp_path / "a"), info.checksum
    )
    assert os.listdir(tmp_path) == ["a"]


def damaged(content: bytes) -> Iterator[tuple[str, bytes]]:
    yield "is not a segment", b""
    yield "is not a segment", b"PARQUET1" + content[8:]
    yield "version 99", content[:8] + b"\x63\0\0\0" + content[12:]
    yield "version 2, .*; use the Modyn that wrote it, or delete the dataset", content[:8] + b"\2\0\0\0" + content[12:]
    yield "segment .* is damaged: its header does not match", content[:12] + b"\xff\xff" + content[14:]
    yield "segment .* is damaged: its header does not match", content[:-2] + b" }"
    yield "header promises", content[:-64]
    yield "header promises", content + b"\0"


def test_damage_is_found_when_a_segment_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_segment(path, 0, random_columns(np.random.default_rng(1), 100, "wide", False))
    content = path.read_bytes()
    for message, wrong in damaged(content):
        path.write_bytes(wrong)
        with pytest.raises(CorruptStateError, match=message) as caught:
            Segment.open(path)
        assert str(path) in caught.value.message
    path.unlink()
    with pytest.raises(CorruptStateError, match="is missing"):
        Segment.open(path)


def test_a_header_whose_columns_cannot_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_segment(path, 0, random_columns(np.random.default_rng(1), 100, "wide", False))
    content = path.read_bytes()
    start = struct.unpack_from("<Q", content, 16)[0]
    for before, after in ((b'"num_samples": 100', b'"num_samples": 101'), (b'"dtype": "<i8"', b'"dtype": "<i7"')):
        header = content[start:].replace(before, after)
        assert header != content[start:]
        path.write_bytes(content[:12] + struct.pack("<I", zlib.crc32(header)) + content[16:start] + header)
        with pytest.raises(CorruptStateError, match="segment .*a is damaged") as caught:
            Segment.open(path)
        assert "restore" in caught.value.message


def test_damaged_runs_give_wrong_answers_but_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_segment(path, 0, record_columns(np.random.default_rng(1), 5000, False))
    content = bytearray(path.read_bytes())
    start = struct.unpack_from("<Q", content, 16)[0]
    content[64:start] = np.random.default_rng(2).bytes(start - 64)
    path.write_bytes(content)
    segment = Segment.open(path)
    with pytest.raises(CorruptStateError, match="is damaged"):
        segment.verify()
    assert (found := SegmentIndex([segment]).entries(np.arange(5000))) is not None
    assert len(found.labels) == len(segment.columns()) == 5000


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    columns = random_columns(np.random.default_rng(1), 10, "wide", False)
    with pytest.raises(UnavailableError, match=r"cannot write the segment .*missing/a: No such file or directory; "):
        write_segment(tmp_path / "missing" / "a", 0, columns)
    (tmp_path / "taken").mkdir()
    with pytest.raises(UnavailableError):
        write_segment(tmp_path / "taken", 0, columns)
    assert os.listdir(tmp_path) == ["taken"]


def test_the_builder_cuts_what_formats_give_into_segments() -> None:
    builder = SegmentBuilder(rows=10)
    builder.add(1, IndexedSamples(np.arange(12) * 4, 4, np.arange(12), 100, 48))
    builder.add(2, IndexedSamples(np.arange(3), np.array([7, 8, 9]), np.arange(3), np.array([3, 2, 1]), 30))
    problem = IndexedFiles(np.array([5, 6, 7]), np.array([1, 2, 3]), np.array([10, 20, 30]), {1: CorruptStateError("x")})  # type: ignore[dict-item]
    builder.add_files(np.array([8, 9], np.uint32), problem)
    assert len(builder) == 17
    assert builder.full()
    first, second = builder.take(), builder.take()
    assert (len(first), len(second), len(builder), builder.full()) == (10, 7, 0, False)
    whole = SegmentColumns.concatenate([first, second])
    assert whole.file_ids.tolist() == [1] * 12 + [2] * 3 + [8, 9]
    assert whole.offsets.tolist() == [i * 4 for i in range(12)] + [0, 1, 2, 0, 0]
    assert whole.lengths.tolist() == [4] * 12 + [7, 8, 9, 5, 7]
    assert whole.labels.tolist() == [*range(12), 0, 1, 2, 1, 3]
    assert whole.timestamps.tolist() == [100] * 12 + [3, 2, 1, 10, 30]


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
