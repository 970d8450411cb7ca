"""Requests for ranges of objects; the samples are compared with slices of the objects."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import obstore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from modyn._core import FileChangedError, PathTable
from modyn.config.dataset import DatasetConfig
from modyn.errors import ConfigError, DataError, SecurityError
from modyn.storage.files import bucket
from modyn.storage.files.bucket import BucketFiles, in_parallel, tag_of
from modyn.storage.files.bucket_url import BucketUrl
from modyn.storage.files.file_system import IndexedVersion, Roots
from modyn.storage.files.local import open_filesystem
from modyn.storage.files.object_file import PART_BYTES, ObjectFile, joined
from modyn.storage.read.bucket_ranges import BucketRangeReader, RangeLimits, plan


class Objects:
    """Objects in a store in memory, and a reader of them."""

    def __init__(
        self,
        *contents: bytes,
        limits: RangeLimits = RangeLimits(),  # noqa: B008  (frozen)
        files: type[BucketFiles] = BucketFiles,
    ) -> None:
        self.store = MemoryStore()
        self.files = files("s3://b", make_store=lambda url, limits: self.store)
        self.paths = PathTable("s3://b")
        names = [str(i).encode() for i in range(len(contents))]
        self.paths.append_packed(np.frombuffer(b"".join(names), np.uint8), np.cumsum([len(name) for name in names]))
        for number, content in enumerate(contents):
            self.put(number, content)
        self.reader = BucketRangeReader(self.files, self.paths, limits)

    def put(self, number: int, content: bytes) -> None:
        obstore.put(self.store, str(number), content)

    def publish(self, number: int, tag: bool = True) -> None:
        """Give an object the stamp that it has now. tag: with its tag; without one, as of a server that gives none."""
        status = self.files.status(f"s3://b/{number}")
        assert status is not None
        columns = number, status.size, status.mtime_ns, tag_of(status.tag) if tag else -1
        self.paths.restamp(*(np.array([column]) for column in columns))


def gather(source: BucketRangeReader, places: list[tuple[int, int, int]]) -> list[bytes]:
    """Return the bytes that are read for places (object, begin, end)."""
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


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(asked=st.lists(places, max_size=30), gap=st.sampled_from([0, 3, 1000]), part=st.sampled_from([1, 20, 1000]))
def test_samples_are_slices_of_their_objects(asked: list[tuple[int, int, int]], gap: int, part: int) -> None:
    objects = Objects(*CONTENTS, limits=RangeLimits(gap_bytes=gap, part_bytes=part))
    try:
        found = gather(objects.reader, asked)
    finally:
        objects.files.requests.shutdown()
    assert found == [CONTENTS[file][begin:end] for file, begin, end in asked]


@settings(max_examples=4 * settings().max_examples)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 500), st.integers(1, 50)), max_size=30),
    gap=st.integers(0, 40),
    times=st.integers(0, 3),
    part=st.integers(1, 200),
)
def test_requests_hold_their_samples_and_are_not_more_than_needed(
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


class CountedFiles(BucketFiles):
    """Notes the bytes of each request."""

    def read(self, path: str, start: int = 0, stop: int | None = None, indexed: IndexedVersion | None = None) -> memoryview:
        content = super().read(path, start, stop, indexed)
        self.asked = [*getattr(self, "asked", []), len(content)]
        return content


def test_no_request_is_so_large_that_a_slow_link_could_not_answer_it_in_time() -> None:
    content = np.random.default_rng(1).bytes(2 * PART_BYTES + 5)
    objects = Objects(content, files=CountedFiles)
    assert objects.files.open("s3://b/0").read_at(len(content), 0) == content
    assert gather(objects.reader, [(0, 1, len(content)), (0, 7, 9)]) == [content[1:], content[7:9]]
    assert isinstance(objects.files, CountedFiles)
    assert max(objects.files.asked) == PART_BYTES


def test_neighbours_are_one_request() -> None:
    objects = Objects(bytes(1 << 20), bytes(1 << 20))
    asked = [(i % 2, at, at + 200) for i, at in enumerate(range(0, 1 << 20, 5000))]
    columns = [np.array(column) for column in zip(*sorted(asked), strict=True)]
    assert len(plan(columns[0].astype(np.uint32), columns[1], columns[2])) == 2
    assert gather(objects.reader, asked) == [bytes(200)] * len(asked)


def test_small_samples_far_apart_do_not_read_all_between_them() -> None:
    begins = np.arange(0, 100 << 16, 1 << 16)
    requests = plan(np.zeros(100, np.uint32), begins, begins + 100)
    assert [request.stop - request.start for request in requests] == [100] * 100


@pytest.mark.parametrize("content", [b"9876543210", b"0123456789abc"])
def test_of_an_object_that_was_replaced_no_byte_is_read(content: bytes) -> None:
    """This includes a version of the same size and second."""
    objects = Objects(b"0123456789")
    objects.publish(0)
    for knows_its_etag in (False, True):
        if knows_its_etag:
            assert gather(objects.reader, [(0, 5, 10)]) == [b"56789"]
        objects.put(0, content)
        with pytest.raises(FileChangedError, match=r"s3://b/0 \(byte 5 wanted\) is not as it was") as caught:
            gather(objects.reader, [(0, 5, 10)])
        assert (caught.value.path, caught.value.offset) == ("s3://b/0", 5)
        objects.put(0, b"0123456789")
        objects.publish(0)  # Storage has looked at it again.
    assert gather(objects.reader, [(0, 5, 10)]) == [b"56789"]


def test_an_object_that_was_indexed_without_a_tag_is_known_by_size_and_second() -> None:
    objects = Objects(b"0123456789")
    objects.publish(0, tag=False)
    assert gather(objects.reader, [(0, 5, 10)]) == [b"56789"]
    objects.put(0, b"0123456789abc")
    with pytest.raises(FileChangedError):
        gather(objects.reader, [(0, 5, 10)])
    objects.publish(0, tag=False)
    size, time = objects.paths.stamp(0) or (0, 0)
    objects.paths.restamp(np.array([0]), np.array([size]), np.array([time - 2 * 10**9]))
    with pytest.raises(FileChangedError):
        gather(objects.reader, [(0, 5, 10)])


def test_an_object_that_was_cut_or_is_gone_is_named() -> None:
    objects = Objects(b"0123")
    with pytest.raises(DataError, match="s3://b/0 was cut: 5 bytes wanted at byte 2, 2 are there"):
        gather(objects.reader, [(0, 2, 7)])
    obstore.delete(objects.store, "0")
    with pytest.raises(DataError, match="cannot read s3://b/0 at byte 2: there is no such object"):
        gather(objects.reader, [(0, 2, 3)])


@settings(max_examples=2 * settings().max_examples)
@given(
    ranges=st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 60)).map(lambda r: (r[0] * 1000, (r[0] + r[1]) * 1000)), max_size=12
    ),
    asked=st.lists(st.tuples(st.integers(0, 500_000), st.integers(0, 200_000)), max_size=8),
)
def test_an_opened_object_reads_like_its_bytes(ranges: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    content = np.arange(120_000, dtype=np.uint32).tobytes()
    ranges = [(start, min(stop, len(content))) for start, stop in ranges]
    fetched = [(start, content[start:stop]) for start, stop in joined(ranges)]
    assert all(any(start <= a and b <= start + len(part) for start, part in fetched) for a, b in ranges if a < b)
    opened = ObjectFile(lambda start, stop: memoryview(content)[start:stop], len(content), fetched)
    for offset, size in asked:
        assert opened.read_at(size, offset) == content[offset : offset + size]
        opened.seek(offset)
        assert opened.read(size) == content[offset : offset + size]
    opened.seek(0)
    assert io.BufferedReader(opened, 1000).read() == content


def test_answers_come_in_order_and_only_some_ahead() -> None:
    started: list[int] = []

    def call(number: int, size: int = 1) -> tuple[int, Callable[[], int]]:
        return size, lambda: started.append(number) or number  # type: ignore[func-returns-value]

    with ThreadPoolExecutor(3) as pool:
        answers = in_parallel(pool, [call(i) for i in range(200)])
        assert [next(answers) for _ in range(3)] == [0, 1, 2]
        assert max(started) < 3 + bucket._READS_AHEAD
        assert list(answers) == list(range(3, 200))
        started.clear()
        large = bucket._BYTES_AHEAD // 4
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
        ("gs://b/p/?anonymous=true", "gs://b/p?anonymous=true"),
        ("az://c/p?account=a", "az://c/p?account=a"),
    ],
)
def test_a_url_is_written_in_one_way(text: str, written: str) -> None:
    assert str(BucketUrl.parse(text)) == written
    assert BucketUrl.parse(written) == BucketUrl.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3://", "is not s3://BUCKET"),
        ("s3://b/../c", "is not s3://BUCKET"),
        ("s3://b//c", "is not s3://BUCKET"),
        ("s3://b?regio=x", "there is no option 'regio', did you mean 'region'"),
        ("s3://b?anonymous=yes", "anonymous is true or false"),
        ("s3://b?scheme=ftp", "scheme is http or https"),
        ("gs://b?region=x", "there is no option 'region'. Allowed: anonymous, endpoint_override, scheme"),
        ("gs://", "is not gs://BUCKET"),
        ("az://KEY:GEHEIM@b/p", "must not hold credentials; set AZURE_STORAGE_ACCOUNT_KEY"),
        ("az://b?sig=GEHEIM", "Credentials belong into the environment"),
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
    roots = Roots.of([Path("/data"), Path("s3://b/p"), Path("s3://own?endpoint_override=h:1"), Path("gs://g")])
    for allowed in ("s3://b/p", "s3://b/p/q", "s3://own/x?endpoint_override=h:1", "gs://g/x"):
        open_filesystem(allowed).check_roots(roots)
        open_filesystem(allowed).check_roots(Roots())
    for outside in ("s3://b", "s3://b/pq", "s3://b/p?endpoint_override=h:1", "s3://own/x", "gs://b/p", "az://g/x"):
        with pytest.raises(SecurityError, match="is not below what storage may read"):
            open_filesystem(outside).check_roots(roots)
    with pytest.raises(SecurityError, match="no bucket"):
        open_filesystem("s3://b").check_roots(Roots.of([Path("/data")]))
    with pytest.raises(SecurityError):
        open_filesystem("/data").check_roots(Roots.of([Path("s3://b/p")]))


def test_the_file_system_follows_from_the_base_path() -> None:
    fields = {"name": "d", "file_wrapper": "F"}
    for scheme, wrapper in (("s3", "S3FilesystemWrapper"), ("gs", "GCSFilesystemWrapper"), ("az", "AzureFilesystemWrapper")):
        assert DatasetConfig(base_path=f"{scheme}://b/p", **fields).filesystem_wrapper == wrapper
    assert DatasetConfig(base_path=Path("/b/p"), **fields).filesystem_wrapper == "LocalFilesystemWrapper"
    for unknown in ("gcs://b/p", "S3://b/p", "s3:/b/p", "file:///b/p", "abfs+x://b"):
        with pytest.raises(ValueError, match=r"which is not a known scheme; write s3://"):
            DatasetConfig(base_path=unknown, **fields)
    for folder in ("/b/gs://p", "/b:/p", "./gs:/p"):
        assert DatasetConfig(base_path=folder, **fields).base_path == folder
    with pytest.raises(ValueError, match="leave it out"):
        DatasetConfig(base_path="/b", filesystem_wrapper="S3FilesystemWrapper", **fields)
