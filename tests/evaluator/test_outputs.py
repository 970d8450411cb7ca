"""Outputs in files are returned unchanged, within the available space; incomplete files are ignored."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.evaluator.outputs import KeptOutputs, OutputCache, read_rows, write_rows
from modyn.evaluator.records import Rows
from modyn.records import Int64Array

DTYPES = st.sampled_from(["float32", "float64", "float16", "int64", "bool"])


def rows(keys: list[int], width: int = 2, dtype: str = "float32") -> Rows:
    """Sample k has time 10·k, class k % 2 and output [k, k, …]."""
    array = np.array(keys, np.int64)
    return Rows(array, array * 10, array % 2, np.repeat(array[:, None], width, 1).astype(dtype))


def begin(folder: Path, name: str = "5-abc", limit: int = 2**20, segment_bytes: int = 2**16) -> KeptOutputs:
    """Begin like a job, which may run in its own process."""
    room = OutputCache(folder / "outputs", limit)
    room.folder.mkdir(exist_ok=True)
    return KeptOutputs(room, name, Path(mkdtemp(dir=folder)), segment_bytes)


def keep(folder: Path, keys: list[int], name: str = "5-abc", limit: int = 2**20) -> None:
    job = begin(folder, name, limit)
    job.add(rows(keys))
    job.publish()


def files(folder: Path) -> list[Path]:
    return sorted((folder / "outputs").glob("*.outputs"))


def found(job: KeptOutputs, keys: list[int]) -> list[int]:
    array = np.array(keys, np.int64)
    return [int(k) for part in job.rows(array, array * 10, 3) for k in part.keys]


@given(
    batches=st.lists(st.lists(st.integers(-50, 50), min_size=1, max_size=8, unique=True), max_size=6),
    asked=st.lists(st.integers(-60, 60), max_size=40, unique=True),
    dtype=DTYPES,
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 200, 2**16])),
)
def test_what_was_kept_comes_back_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], asked: list[int], dtype: str, shape: tuple[int, int, int]
) -> None:
    folder = tmp_path_factory.mktemp("room")
    jobs, width, segment_bytes = shape
    there: set[int] = set()
    for number in range(jobs):
        job = begin(folder, segment_bytes=segment_bytes)
        for keys in batches[number::jobs]:
            new = [k for k in keys if k not in there]
            there |= set(new)
            job.add(rows(new, width, dtype))
        job.publish()
    job, array = begin(folder), np.array(asked, np.int64)
    assert job.has(array, array * 10).tolist() == [k in there for k in asked]
    assert not job.has(array, array * 10 + 1).any()
    parts = list(job.rows(array, array * 10, 3))
    assert all(0 < len(part.keys) <= 3 for part in parts)
    assert sorted(int(k) for part in parts for k in part.keys) == sorted(there & set(asked))
    for part in parts:
        expected = rows(part.keys.tolist(), width, dtype)
        for got, wanted in zip(part, expected, strict=True):
            assert got.dtype == wanted.dtype
            assert np.array_equal(got, wanted)
            assert got.flags.writeable


def test_models_and_decodings_are_apart(tmp_path: Path) -> None:
    keep(tmp_path, [1, 2])
    assert found(begin(tmp_path), [1, 2, 3]) == [1, 2]
    assert not begin(tmp_path, "6-abc")
    assert not begin(tmp_path, "5-ab")


def test_two_jobs_that_kept_the_same_samples(tmp_path: Path) -> None:
    first, second = begin(tmp_path), begin(tmp_path)
    for job, keys in ((first, [1, 2, 3]), (second, [2, 3, 4])):
        job.add(rows(keys))
        job.publish()
    assert sorted(found(begin(tmp_path), [1, 2, 3, 4])) == [1, 2, 3, 4]
    assert not first


def test_a_torn_file_is_made_again(tmp_path: Path) -> None:
    keep(tmp_path, [1, 2])
    keep(tmp_path, [3])
    torn, _ = files(tmp_path)
    torn.write_bytes(torn.read_bytes()[:-1])
    assert found(begin(tmp_path), [1, 2, 3]) == [3]
    assert not torn.exists()
    keep(tmp_path, [1, 2])
    assert sorted(found(begin(tmp_path), [1, 2, 3])) == [1, 2, 3]


def size_of(folder: Path, keys: list[int]) -> int:
    write_rows(folder / "one", rows(keys))
    return (folder / "one").stat().st_size


def test_the_least_recently_used_give_way(tmp_path: Path) -> None:
    limit = 2 * size_of(tmp_path, [1, 2, 3]) + 1
    for name in ("1-a", "2-b"):
        keep(tmp_path, [1, 2, 3], name, limit)
    for age, path in enumerate(files(tmp_path)):
        os.utime(path, (100 + age, 100 + age))
    reader = begin(tmp_path, "1-a")  # the older one is used
    keep(tmp_path, [1, 2, 3], "3-c", limit)
    assert [path.name[:3] for path in files(tmp_path)] == ["1-a", "3-c"]
    keep(tmp_path, [4, 5, 6], "3-c", limit)
    assert [path.name[:3] for path in files(tmp_path)] == ["3-c", "3-c"]
    assert found(reader, [1, 2, 3]) == [1, 2, 3]  # evicted under its hands


def test_more_than_the_room_holds_is_not_kept(tmp_path: Path) -> None:
    keep(tmp_path, [1], "1-a", 1000)
    job = begin(tmp_path, "2-b", 1000, segment_bytes=200)
    for start in range(0, 100, 5):
        job.add(rows(list(range(start, start + 5))))
    job.publish()
    assert [path.name[:3] for path in files(tmp_path)] == ["1-a"]
    assert list(tmp_path.glob("*/outputs-*")) == []


@pytest.mark.parametrize(
    "odd", [None, rows([9], width=3), rows([9], dtype="int64"), rows([9], width=0), rows([9], dtype="complex64")]
)
def test_what_does_not_fit_into_columns_is_not_kept(tmp_path: Path, odd: Rows | None) -> None:
    job = begin(tmp_path, segment_bytes=2**16)
    job.add(rows([1, 2]))
    job.add(odd)
    job.add(rows([3]))
    job.publish()
    assert files(tmp_path) == []


def test_a_smaller_room_at_the_next_start(tmp_path: Path) -> None:
    for name in ("1-a", "2-b", "3-c"):
        keep(tmp_path, [1, 2, 3], name)
    OutputCache(tmp_path / "outputs", size_of(tmp_path, [1, 2, 3])).prepare()
    assert [path.name[:3] for path in files(tmp_path)] == ["3-c"]
    OutputCache(tmp_path / "outputs", 0).prepare()
    assert files(tmp_path) == []


def test_a_folder_that_is_gone_fails_nothing(tmp_path: Path) -> None:
    job = begin(tmp_path)
    (tmp_path / "outputs").rmdir()
    job.add(rows([1]))
    job.publish()
    assert not begin(tmp_path)


def test_many_jobs_at_once_stay_within_the_room(tmp_path: Path) -> None:
    limit = 3 * size_of(tmp_path, [1, 2, 3]) + 10
    jobs = [begin(tmp_path, f"{n % 3}-x", limit) for n in range(12)]

    def end(job: KeptOutputs, keys: Int64Array) -> None:
        job.add(rows(keys.tolist()))
        job.publish()

    threads = [threading.Thread(target=end, args=(job, np.arange(3) + 3 * n)) for n, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files(tmp_path)) == 3
    assert sum(path.stat().st_size for path in files(tmp_path)) <= limit
    assert all(len(read_rows(path).keys) == 3 for path in files(tmp_path))
