"""The core by its bindings: gathering by location, taking from memory, orders and picks, against Python and NumPy; types, ownership, threads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn import _core
from modyn.errors import DataError, InvalidArgumentError

Record = tuple[int, int, int]
"""File, offset, length."""

AWKWARD_NAMES = [
    "plain.bin",
    "with space.bin",
    "quote'\".bin",
    "üñí çødé 數據.bin",
    "new\nline.bin",
    "-dash.bin",
    "a" * 200 + ".bin",
]


def write_files(folder: Path, contents: list[bytes]) -> list[str]:
    paths = [folder / name for name in AWKWARD_NAMES[: len(contents)]]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return [str(path) for path in paths]


def table_of(*paths: str | bytes | Path) -> _core.PathTable:
    table = _core.PathTable("")
    table.append(paths)
    return table


def gather(gatherer: _core.Gatherer, paths: list[str] | _core.PathTable, records: list[Record]) -> list[bytes]:
    """Gather `records` and cut the buffer at its bounds."""
    paths = table_of(*paths) if isinstance(paths, list) else paths
    files, offsets, lengths = (np.array([record[i] for record in records], np.int64) for i in range(3))
    data, bounds = gatherer.gather(paths, files.astype(np.uint32), offsets, lengths)
    assert data.dtype == np.uint8
    assert bounds.dtype == np.int64
    assert len(bounds) == len(records) + 1
    assert bounds[-1] == len(data)
    return [data[bounds[i] : bounds[i + 1]].tobytes() for i in range(len(records))]


@st.composite
def files_and_records(draw: st.DrawFn) -> tuple[list[bytes], list[Record]]:
    seed = draw(st.integers(0, 2**32 - 1))
    sizes = draw(st.lists(st.integers(0, 30_000), min_size=1, max_size=len(AWKWARD_NAMES)))
    rng = np.random.default_rng(seed)
    contents = [rng.integers(0, 256, size, np.uint8).tobytes() for size in sizes]
    records = []
    for _ in range(draw(st.integers(0, 300))):
        file = int(rng.integers(len(sizes)))
        offset = int(rng.integers(sizes[file] + 1))
        records.append((file, offset, int(rng.integers(0, min(500, sizes[file] - offset) + 1))))
    records += [records[int(i)] for i in rng.integers(0, len(records), 20)] if records else []
    return contents, records


@given(case=files_and_records(), threads=st.sampled_from([1, 2, 5]), max_open=st.sampled_from([0, 1, 2, 100]))
def test_gather_gives_the_bytes_of_each_record_in_the_order_asked(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[list[bytes], list[Record]], threads: int, max_open: int
) -> None:
    contents, records = case
    folder = tmp_path_factory.mktemp("gather")
    names = write_files(folder, contents)
    table = _core.PathTable(folder)
    table.append(AWKWARD_NAMES[: len(contents)])
    gatherer = _core.Gatherer(max_open_files=max_open, num_threads=threads)
    for paths in (names, table):  # the second time with files that are open already
        found = gather(gatherer, paths, records)
        assert found == [contents[file][offset : offset + length] for file, offset, length in records]
    assert gatherer.num_open_files <= max_open


def test_one_length_for_all_equals_a_column_of_lengths(tmp_path: Path) -> None:
    content = np.random.default_rng(1).integers(0, 256, 16_000, np.uint8)
    paths = write_files(tmp_path, [content.tobytes()])
    order = np.random.default_rng(2).permutation(100).astype(np.int64)
    gatherer = _core.Gatherer()
    data, bounds = gatherer.gather(table_of(*paths), np.zeros(100, np.uint32), order * 160, 160)
    assert np.array_equal(data.reshape(100, 160), content.reshape(100, 160)[order])
    assert np.array_equal(bounds, np.arange(101) * 160)


def test_paths_may_be_links_bytes_or_not_valid_unicode(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    odd = os.fsencode(tmp_path) + b"/\xff\xfe"
    with open(odd, "wb") as file:
        file.write(b"strange")
    data, _ = _core.Gatherer().gather(
        table_of(tmp_path / "link", odd, os.fsdecode(odd)), np.array([0, 1, 2], np.uint32), np.zeros(3, np.int64), 7
    )
    assert data.tobytes() == b"contentstrangestrange"
    with pytest.raises(_core.FileTruncatedError) as caught:
        _core.Gatherer().gather(table_of(odd), np.zeros(1, np.uint32), np.zeros(1, np.int64), 8)
    assert caught.value.path == os.fsdecode(odd)


def test_errors_are_data_errors_that_name_file_offset_and_sizes(tmp_path: Path) -> None:
    (path,) = write_files(tmp_path, [b"0123456789"])
    gatherer = _core.Gatherer()
    with pytest.raises(DataError, match="4 bytes wanted at byte 8.*2 available") as caught:
        gather(gatherer, [path], [(0, 0, 4), (0, 8, 4)])
    assert isinstance(caught.value, _core.FileTruncatedError)
    assert (caught.value.path, caught.value.offset, caught.value.wanted, caught.value.available) == (path, 8, 4, 2)
    os.unlink(path)
    with pytest.raises(_core.FileVanishedError, match="vanished") as vanished:
        gather(gatherer, [path], [(0, 2, 3)])
    assert (vanished.value.path, vanished.value.offset, vanished.value.wanted) == (path, 2, 3)
    with pytest.raises(_core.FileAccessError, match="Is a directory"):
        gather(gatherer, [str(tmp_path)], [(0, 0, 1)])


def test_a_file_without_permission(tmp_path: Path) -> None:
    (path,) = write_files(tmp_path, [b"0123456789"])
    os.chmod(path, 0)
    user = os.geteuid()
    if user == 0:  # root may read everything, so be nobody for a moment
        os.seteuid(65534)
    try:
        with pytest.raises(_core.FilePermissionError, match="no permission to read .*plain.bin"):
            gather(_core.Gatherer(), [path], [(0, 0, 1)])
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("record", [(0, -1, 1), (0, 0, -1), (1, 0, 1), (0, 2**63 - 1, 1)])
def test_records_that_cannot_exist_are_refused(tmp_path: Path, record: Record) -> None:
    paths = write_files(tmp_path, [b"0123456789"])
    with pytest.raises(InvalidArgumentError, match="record 0"):
        gather(_core.Gatherer(), paths, [record])


def test_arguments_of_other_types_and_shapes_are_refused(tmp_path: Path) -> None:
    paths = table_of(*write_files(tmp_path, [b"0123456789"]))
    gatherer = _core.Gatherer()
    with pytest.raises(TypeError):
        gatherer.gather(paths, np.zeros(1, np.int64), np.zeros(1, np.int64), 1)
    with pytest.raises(InvalidArgumentError, match="file_ids"):
        gatherer.gather(paths, np.zeros(2, np.uint32), np.zeros(1, np.int64), 1)
    with pytest.raises(InvalidArgumentError, match="num_threads"):
        _core.Gatherer(num_threads=0)


@given(
    names=st.lists(st.lists(st.binary(min_size=1, max_size=12).filter(lambda name: b"\0" not in name), max_size=4), max_size=6),
    packed=st.integers(0, 2**6 - 1),
)
def test_a_path_table_is_a_list_of_paths_below_its_base(names: list[list[bytes]], packed: int) -> None:
    table = _core.PathTable("/some/base")
    expected: list[str] = []
    for number, block in enumerate(names):
        if packed >> number & 1:
            ends = np.cumsum([len(name) for name in block]).astype(np.int64)
            table.append_packed(np.frombuffer(b"".join(block), np.uint8), ends)
        else:
            table.append(block)
        expected += [os.fsdecode(os.path.join(b"/some/base", name)) for name in block]
        assert len(table) == len(expected)
    assert [table[file_id] for file_id in range(len(table))] == expected
    for outside in (-1, len(table)):
        with pytest.raises(IndexError):
            table[outside]


def test_packed_paths_hold_their_arrays_until_the_table_goes() -> None:
    text = np.frombuffer(b"abc", np.uint8)
    ends = np.array([1, 3], np.int64)
    before = sys.getrefcount(text)
    table = _core.PathTable("")
    table.append_packed(text, ends)
    assert sys.getrefcount(text) > before
    assert [table[0], table[1]] == ["a", "bc"]
    del table
    assert sys.getrefcount(text) == before


def mapped_rows(path: Path, count: int) -> npt.NDArray[np.uint8]:
    """A file of `count` rows of 160 bytes, enough for the gatherer to map it."""
    rows = np.random.default_rng(count).integers(0, 256, (count, 160), np.uint8)
    path.write_bytes(rows.tobytes())
    return rows


def test_results_are_writable_and_are_never_shared(tmp_path: Path) -> None:
    rows = mapped_rows(tmp_path / "rows", 500)
    gatherer = _core.Gatherer()
    everything = np.arange(500, dtype=np.int64)
    held = []
    for turn in range(20):
        data, bounds = gatherer.gather(table_of(tmp_path / "rows"), np.zeros(500, np.uint32), everything * 160, 160)
        assert np.array_equal(data.reshape(-1, 160), rows)
        assert np.array_equal(bounds, np.arange(501) * 160)
        data[:] = turn
        bounds[:] = turn
        held.append((data[7:], bounds))  # a view keeps the memory
        if turn % 3 == 0:
            del held[0]
        del data, bounds
        assert all((kept == kept[0]).all() and (ends == kept[0]).all() for kept, ends in held)


@given(seed=st.integers(0, 2**32 - 1), threads=st.sampled_from([1, 2, 5]), size=st.integers(0, 300), asked=st.integers(0, 3000))
def test_take_is_fancy_indexing_of_rows(seed: int, threads: int, size: int, asked: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, size + 1, 100)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    data = rng.integers(0, 256, bounds[-1], np.uint8)
    rows = rng.integers(0, 100, asked)
    taken, ends = _core.take(data, bounds, rows, threads)
    assert np.array_equal(np.diff(ends), lengths[rows])
    assert taken.tobytes() == b"".join(data[bounds[row] : bounds[row + 1]].tobytes() for row in rows)
    if size:
        table = rng.integers(0, 256, (100, size), np.uint8)
        taken, ends = _core.take(table.reshape(-1), size, rows, threads)
        assert np.array_equal(taken.reshape(-1, size), table[rows])
        assert np.array_equal(ends, np.arange(asked + 1) * size)


@pytest.mark.parametrize(
    ("bounds", "rows"),
    [
        (np.array([0, 2, 4]), [2]),
        (np.array([], np.int64), []),
        (3, [0]),
        (0, [0]),
        (2, [2]),
    ],
)
def test_rows_that_are_not_there_are_refused(bounds: npt.NDArray[np.int64] | int, rows: list[int]) -> None:
    with pytest.raises(InvalidArgumentError):
        _core.take(np.zeros(4, np.uint8), bounds, np.array(rows, np.int64))


def test_a_map_is_read_only_and_outlives_the_name_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(b"abc")
    mapped = _core.map_file(path)
    path.unlink()
    assert mapped.tobytes() == b"abc"
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1
    path.touch()
    assert len(_core.map_file(path)) == 0


def test_no_file_has_a_negative_id() -> None:
    table = _core.PathTable("")
    table.append(["a"])
    for outside in (-1, 1):
        with pytest.raises(IndexError):
            table.stamp(outside)
        with pytest.raises(IndexError):
            table.may_be(outside, 0, 0)


def test_what_is_not_aligned_is_copied() -> None:
    ends = np.frombuffer(b"?" + np.array([1, 3], np.int64).tobytes(), np.uint8)[1:].view(np.int64)
    assert not ends.flags.aligned
    before = sys.getrefcount(ends)
    table = _core.PathTable("")
    table.append_packed(np.frombuffer(b"abc", np.uint8), ends)
    assert sys.getrefcount(ends) == before
    assert [table[0], table[1]] == ["a", "bc"]


def test_nothing_has_no_runs() -> None:
    runs = _core.find_runs(np.empty(0, np.int64), 0)
    assert runs is not None
    assert [len(column) for column in runs] == [0, 0, 0]
    assert _core.find_runs(np.zeros(1, np.int64), 0) is None


def test_permutations_that_cannot_be_made() -> None:
    with pytest.raises(InvalidArgumentError, match="zeros"):
        _core.permutation((0, 0, 0, 0), 3, 1)
    with pytest.raises(InvalidArgumentError, match="-1 numbers"):
        _core.permutation((1, 0, 0, 0), -1, 1)


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=50), st.data())
def test_picking_is_indexing(values: list[int], data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), max_size=80)), np.int64)
    integers = np.array(values, np.int64)
    floats = integers.astype(np.float32)
    integers.setflags(write=False)
    assert np.array_equal(_core.pick(integers, rows), integers[rows])
    assert np.array_equal(_core.pick(floats, rows), floats[rows])
