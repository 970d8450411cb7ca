"""Which requests read which samples, against slices of the objects."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn._core import FileChangedError, PathTable
from modyn.config.system import DatasetConfig
from modyn.errors import ConfigError, DataError, SecurityError, UnavailableError
from modyn.storage.files import s3
from modyn.storage.files.file_system import Roots
from modyn.storage.files.local import open_filesystem
from modyn.storage.files.s3 import in_parallel
from modyn.storage.files.s3_url import S3Url
from modyn.storage.read.s3_ranges import RangeLimits, S3RangeReader, plan


class Objects:
    """Objects in memory; counts the reads of each opened one."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = {f"s3://b/{i}": content for i, content in enumerate(contents)}
        self.paths = PathTable("s3://b")
        names = [str(i).encode() for i in range(len(contents))]
        self.paths.append_packed(np.frombuffer(b"".join(names), np.uint8), np.cumsum([len(name) for name in names]))
        self.opened = 0

    def open(self, path: str) -> pa.NativeFile:
        self.opened += 1
        if path not in self.contents:
            raise FileNotFoundError(path)
        return pa.BufferReader(self.contents[path])


def gather(source: S3RangeReader, places: list[tuple[int, int, int]]) -> list[bytes]:
    """What is read for places (object, begin, end)."""
    file_ids = np.array([place[0] for place in places], np.uint32)
    begins, ends = np.array([p[1] for p in places], np.int64), np.array([p[2] for p in places], np.int64)
    data, bounds = source.gather(file_ids, begins, ends - begins)
    return [data[a:b].tobytes() for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]


CONTENTS = [bytes(range(100)), b"", bytes(range(200, 256)) * 5]
places = st.integers(0, 2).flatmap(
    lambda file: st.tuples(st.just(file), *[st.integers(0, len(CONTENTS[file]))] * 2).map(
        lambda p: (p[0], min(p[1:]), max(p[1:]))
    )
)


@settings(max_examples=200)
@given(asked=st.lists(places, max_size=30), gap=st.sampled_from([0, 3, 1000]), part=st.sampled_from([1, 20, 1000]))
def test_samples_are_slices_of_their_objects(asked: list[tuple[int, int, int]], gap: int, part: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        objects = Objects(*CONTENTS)
        limits = RangeLimits(gap_bytes=gap, part_bytes=part)
        found = gather(S3RangeReader(objects.open, pool, objects.paths, limits), asked)
    assert found == [CONTENTS[file][begin:end] for file, begin, end in asked]


@settings(max_examples=200)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 500), st.integers(1, 50)), max_size=30),
    gap=st.integers(0, 40),
    times=st.integers(0, 3),
    part=st.integers(1, 200),
)
def test_requests_hold_their_samples_and_are_no_more_than_needed(
    ranges: list[tuple[int, int, int]], gap: int, times: int, part: int
) -> None:
    ranges = sorted(ranges)
    begins = np.array([begin for _, begin, _ in ranges], np.int64)
    sizes = np.array([size for _, _, size in ranges], np.int64)
    limits = RangeLimits(gap, times, part)
    requests = plan(np.array([file for file, _, _ in ranges], np.uint32), begins, begins + sizes, limits)
    assert [at for request in requests for at in range(request.first, request.last)] == list(range(len(ranges)))
    for request in requests:
        inside = ranges[request.first : request.last]
        assert {file for file, _, _ in inside} == {request.file_id}
        assert (request.start, request.stop) == (inside[0][1], max(begin + size for _, begin, size in inside))
        assert request.stop - request.start <= max(part, *(size for _, _, size in inside))
        assert request.stop - request.start <= (1 + times) * sum(size for _, _, size in inside)
    for one, two in pairwise(requests):
        _, begin, size = ranges[two.first]
        apart = one.file_id != two.file_id or begin > one.stop + min(gap, times * size)
        assert apart or begin + size - one.start > part


def test_neighbours_are_one_request_and_objects_are_opened_once() -> None:
    objects = Objects(bytes(1 << 20), bytes(1 << 20))
    with ThreadPoolExecutor(4) as pool:
        source = S3RangeReader(objects.open, pool, objects.paths)
        asked = [(i % 2, at, at + 200) for i, at in enumerate(range(0, 1 << 20, 5000))]
        ordered = sorted(asked)
        columns = [np.array(column) for column in zip(*ordered, strict=True)]
        assert len(plan(columns[0].astype(np.uint32), columns[1], columns[2])) == 2
        gather(source, asked)
        gather(source, asked)
    assert objects.opened == 2


def test_small_samples_far_apart_do_not_read_all_between_them() -> None:
    begins = np.arange(0, 100 << 16, 1 << 16)
    requests = plan(np.zeros(100, np.uint32), begins, begins + 100)
    assert [request.stop - request.start for request in requests] == [100] * 100


def test_an_object_of_another_size_or_time_than_it_was_indexed_with_is_refused() -> None:
    objects = Objects(b"0123456789")
    first, size = np.array([0]), np.array([10])
    with ThreadPoolExecutor(4) as pool:
        source = S3RangeReader(objects.open, pool, objects.paths)
        objects.paths.restamp(first, size, np.array([5]))
        assert gather(source, [(0, 5, 10)]) == [b"56789"]
        objects.contents["s3://b/0"] += b"abc"
        objects.paths.restamp(first, size, np.array([6]))
        with pytest.raises(FileChangedError, match=r"s3://b/0 \(byte 5 wanted\) is not as it was"):
            gather(source, [(0, 5, 10)])
        objects.paths.restamp(first, size + 3, np.array([7]))
        assert gather(source, [(0, 10, 13)]) == [b"abc"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, 1_500_000_000),
        ({"Last-Modified": "1970-01-01T00:00:01Z"}, 1_500_000_000),
        ({"Last-Modified": b"1970-01-01T00:00:02Z"}, 2 * 10**9),
    ],
)
def test_the_time_of_an_object_is_told_in_whole_seconds(told: dict[str, object], expected: int) -> None:
    class Opened:
        def metadata(self) -> dict[str, object]:
            return told

    assert s3.written_ns(Opened(), 1_500_000_000) == expected


def test_an_object_that_grew_is_read_and_one_that_was_cut_or_is_gone_is_named() -> None:
    objects = Objects(b"0123456789")
    with ThreadPoolExecutor(4) as pool:
        source = S3RangeReader(objects.open, pool, objects.paths)
        assert gather(source, [(0, 5, 10)]) == [b"56789"]
        objects.contents["s3://b/0"] += b"abc"
        assert gather(source, [(0, 10, 13)]) == [b"abc"]
        objects.contents["s3://b/0"] = b"0123"
        source = S3RangeReader(objects.open, pool, objects.paths)
        with pytest.raises(DataError, match="s3://b/0 was cut: 5 bytes wanted at byte 2, 2 are there"):
            gather(source, [(0, 2, 7)])
        objects.contents.clear()
        source = S3RangeReader(objects.open, pool, objects.paths)
        with pytest.raises(DataError, match="cannot read s3://b/0 at byte 2: there is no such object"):
            gather(source, [(0, 2, 3)])


def test_trouble_with_the_server_is_no_fault_of_the_data() -> None:
    def fail(_: str) -> pa.NativeFile:
        raise OSError("When reading: AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7")

    with ThreadPoolExecutor(1) as pool, pytest.raises(UnavailableError, match="cannot read s3://b/0 at byte 7"):
        gather(S3RangeReader(fail, pool, Objects(b"").paths), [(0, 7, 8)])


def test_answers_come_in_order_and_only_some_ahead() -> None:
    started: list[int] = []

    def call(number: int, size: int = 1) -> tuple[int, Callable[[], int]]:
        return size, lambda: started.append(number) or number  # type: ignore[func-returns-value]

    with ThreadPoolExecutor(3) as pool:
        answers = in_parallel(pool, [call(i) for i in range(200)])
        assert [next(answers) for _ in range(3)] == [0, 1, 2]
        assert max(started) < 3 + s3._READS_AHEAD
        assert list(answers) == list(range(3, 200))
        started.clear()
        large = s3._BYTES_AHEAD // 4
        answers = in_parallel(pool, [call(i, 9 * large if i == 10 else large) for i in range(20)])
        for number in range(20):
            assert next(answers) == number
            assert max(started) < number + 1 + 4, "four are all the bytes that may lie here"
            assert number >= 10 or 11 not in started, "one that is larger than all is alone"
        assert list(answers) == []


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a%20b/c/?region=eu-west-1", "s3://bucket/a%20b/c?region=eu-west-1"),
        ("s3://b/p?scheme=http&endpoint_override=host:9000", "s3://b/p?endpoint_override=host%3A9000&scheme=http"),
    ],
)
def test_a_url_is_written_in_one_way(text: str, written: str) -> None:
    assert str(S3Url.parse(text)) == written
    assert S3Url.parse(written) == S3Url.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3://", "is not s3://BUCKET"),
        ("s3://b/../c", "is not s3://BUCKET"),
        ("s3://b//c", "is not s3://BUCKET"),
        ("s3://b?regio=x", "there is no option 'regio', did you mean 'region'"),
        ("s3://b?anonymous=yes", "anonymous is true or false"),
        ("s3://b?scheme=ftp", "scheme is http or https"),
        ("s3://KEY:GEHEIM@b/p", "must not hold credentials"),
        ("s3://b?access_key=KEY&secret_key=GEHEIM", "Credentials belong into the environment"),
        ("s3://b?secret_key=GEHEIM", r"there is no option 'secret_key'\. Allowed: .*Credentials belong into the environment"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_showing_secrets(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_filesystem(text)
    assert "GEHEIM" not in caught.value.message


def test_roots_hold_buckets_with_their_server() -> None:
    roots = Roots.of([Path("/data"), Path("s3://b/p"), Path("s3://own?endpoint_override=h:1")])
    for allowed in ("s3://b/p", "s3://b/p/q", "s3://own/x?endpoint_override=h:1"):
        open_filesystem(allowed).check_roots(roots)
        open_filesystem(allowed).check_roots(Roots())
    for outside in ("s3://b", "s3://b/pq", "s3://b/p?endpoint_override=h:1", "s3://own/x"):
        with pytest.raises(SecurityError, match="is not below what storage may read"):
            open_filesystem(outside).check_roots(roots)
    with pytest.raises(SecurityError, match="no bucket"):
        open_filesystem("s3://b").check_roots(Roots.of([Path("/data")]))
    with pytest.raises(SecurityError):
        open_filesystem("/data").check_roots(Roots.of([Path("s3://b/p")]))


def test_the_file_system_follows_from_the_base_path() -> None:
    fields = {"name": "d", "file_wrapper": "F"}
    assert DatasetConfig(base_path="s3://b/p", **fields).filesystem_wrapper == "S3FilesystemWrapper"
    assert DatasetConfig(base_path=Path("/b/p"), **fields).filesystem_wrapper == "LocalFilesystemWrapper"
    for unknown in ("gs://b/p", "S3://b/p", "s3:/b/p", "file:///b/p", "abfs+x://b"):
        with pytest.raises(ValueError, match=r"of which nothing is known; write s3://"):
            DatasetConfig(base_path=unknown, **fields)
    for folder in ("/b/gs://p", "/b:/p", "./gs:/p"):
        assert DatasetConfig(base_path=folder, **fields).base_path == folder
    with pytest.raises(ValueError, match="leave it out"):
        DatasetConfig(base_path="/b", filesystem_wrapper="S3FilesystemWrapper", **fields)
