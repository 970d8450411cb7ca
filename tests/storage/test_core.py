"""Gathering by location, against slicing the files in Python."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
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


def gather(gatherer: _core.Gatherer, paths: list[str], records: list[Record]) -> list[bytes]:
    """Gather `records` and cut the buffer at its bounds."""
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


@settings(max_examples=40, deadline=None)
@given(case=files_and_records(), threads=st.sampled_from([1, 2, 5]), max_open=st.sampled_from([0, 1, 2, 100]))
def test_gather_gives_the_bytes_of_each_record_in_the_order_asked(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[list[bytes], list[Record]], threads: int, max_open: int
) -> None:
    contents, records = case
    paths = write_files(tmp_path_factory.mktemp("gather"), contents)
    gatherer = _core.Gatherer(max_open_files=max_open, num_threads=threads)
    for _ in range(2):  # the second time with files that are open already
        found = gather(gatherer, paths, records)
        assert found == [contents[file][offset : offset + length] for file, offset, length in records]
    assert gatherer.num_open_files <= max_open


def test_one_length_for_all_equals_a_column_of_lengths(tmp_path: Path) -> None:
    content = np.random.default_rng(1).integers(0, 256, 16_000, np.uint8)
    paths = write_files(tmp_path, [content.tobytes()])
    order = np.random.default_rng(2).permutation(100).astype(np.int64)
    gatherer = _core.Gatherer()
    data, bounds = gatherer.gather(paths, np.zeros(100, np.uint32), order * 160, 160)
    assert np.array_equal(data.reshape(100, 160), content.reshape(100, 160)[order])
    assert np.array_equal(bounds, np.arange(101) * 160)


def test_paths_may_be_links_bytes_or_not_valid_unicode(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    odd = os.fsencode(tmp_path) + b"/\xff\xfe"
    with open(odd, "wb") as file:
        file.write(b"strange")
    data, _ = _core.Gatherer().gather(
        [tmp_path / "link", odd, os.fsdecode(odd)], np.array([0, 1, 2], np.uint32), np.zeros(3, np.int64), 7
    )
    assert data.tobytes() == b"contentstrangestrange"
    with pytest.raises(_core.FileTruncatedError) as caught:
        _core.Gatherer().gather([odd], np.zeros(1, np.uint32), np.zeros(1, np.int64), 8)
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


def test_a_file_that_is_replaced_or_cut_between_two_calls_is_not_half_read(tmp_path: Path) -> None:
    (path,) = write_files(tmp_path, [b"old content"])
    gatherer = _core.Gatherer()
    assert gather(gatherer, [path], [(0, 0, 3)]) == [b"old"]
    (tmp_path / "new").write_bytes(b"new content")
    os.replace(tmp_path / "new", path)
    assert gather(gatherer, [path], [(0, 0, 3)]) == [b"new"]
    os.truncate(path, 2)
    with pytest.raises(_core.FileTruncatedError):
        gather(gatherer, [path], [(0, 0, 3)])


@pytest.mark.parametrize("record", [(0, -1, 1), (0, 0, -1), (1, 0, 1), (0, 2**63 - 1, 1)])
def test_records_that_cannot_exist_are_refused(tmp_path: Path, record: Record) -> None:
    paths = write_files(tmp_path, [b"0123456789"])
    with pytest.raises(InvalidArgumentError, match="record 0"):
        gather(_core.Gatherer(), paths, [record])


def test_arguments_of_other_types_and_shapes_are_refused(tmp_path: Path) -> None:
    paths = write_files(tmp_path, [b"0123456789"])
    gatherer = _core.Gatherer()
    with pytest.raises(TypeError):
        gatherer.gather(paths, np.zeros(1, np.int64), np.zeros(1, np.int64), 1)
    with pytest.raises(InvalidArgumentError, match="file_index"):
        gatherer.gather(paths, np.zeros(2, np.uint32), np.zeros(1, np.int64), 1)
    with pytest.raises(InvalidArgumentError, match="num_threads"):
        _core.Gatherer(num_threads=0)


def test_threads_share_a_gatherer(tmp_path: Path) -> None:
    contents = [bytes([i]) * 5000 for i in range(6)]
    paths = write_files(tmp_path, contents)
    gatherer = _core.Gatherer(max_open_files=2, num_threads=2)
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            records = [(int(rng.integers(6)), int(rng.integers(4000)), 100) for _ in range(300)]
            wrong.extend(
                1
                for record, got in zip(records, gather(gatherer, paths, records), strict=True)
                if got != bytes([record[0]]) * 100
            )

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


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
