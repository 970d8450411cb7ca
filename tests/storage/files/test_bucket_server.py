"""Datasets in buckets, from registration to payloads, against moto's server."""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modyn._core import FileChangedError
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.errors import AlreadyExistsError, ConfigError, DataError, NotFoundError, UnavailableError
from modyn.storage.files.bucket import BucketFiles, tag_of
from modyn.storage.files.file_system import IndexedVersion, NameEndings, Roots
from modyn.storage.files.local import open_filesystem
from modyn.storage.model.file_table import FileRow, FileTable
from modyn.storage.payloads import open_local_payloads
from tests.support.column_files import FORMATS, write_sites
from tests.support.format_examples import EXAMPLES, tar
from tests.support.running_storage import RunningStorage, payloads_in, published_by, start_storage
from tests.support.s3_proxy import S3Proxy, proxied
from tests.support.s3_server import CREDENTIALS, SERVER, S3Server, running_s3

# The gate installs it, and says so: there it is an error that it is missing.
pytestmark = pytest.mark.skipif(
    not SERVER.exists() and "MODYN_TESTS_NO_SKIP" not in os.environ, reason="moto is not installed: make .venv/moto/.installed"
)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch, running_s3() as server:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[S3Proxy]:
    with proxied(s3.address) as proxy:
        yield proxy


def through(proxy: S3Proxy) -> S3Server:
    """The server as it is reached by way of the proxy."""
    return S3Server(proxy.address)


def csv_dataset(s3: S3Server, folder: str, name: str = "rows", **options: Any) -> DatasetConfig:
    fields = {"file_wrapper": "CsvFileWrapper", "file_wrapper_config": {"label_index": 0}, "watch": False, **options}
    return DatasetConfig(name=name, base_path=s3.url(folder), **fields)


def test_rows_are_indexed_and_read_in_any_order(s3: S3Server, storage: RunningStorage) -> None:
    s3.put("rows/a b", {"1.csv": b"1,one\n2,two\n", "deep/2.csv": b"3,three", "notes.txt": b"x"})
    config = csv_dataset(s3, "rows/a b")
    progress = storage.index(config)
    assert (progress.files_seen, progress.samples_indexed, progress.problems) == (2, 3, 0)
    keys = [2, 0, 1, 1]
    labels = {1: b"1,one", 2: b"2,two", 3: b"3,three"}
    found = [
        (int(label), bytes(batch.payload(i)))
        for batch in storage.payloads.fetch("rows", np.array(keys))
        for i, label in enumerate(batch.labels)
    ]
    assert sorted(found) == sorted((label, labels[label]) for label, _ in found)
    assert len({payload for _, payload in found}) == 3
    assert storage.client.register_dataset(config.model_copy(update={"base_path": s3.url("rows/a%20b/")})).num_samples == 3
    with pytest.raises(AlreadyExistsError):
        storage.client.register_dataset(csv_dataset(s3, "rows"))


def test_replicas_read_from_what_is_published_and_the_short_cut_is_refused(
    s3: S3Server, storage: RunningStorage, quick_config: SystemConfig
) -> None:
    s3.put("published", {"1.csv": b"1,one\n2,two\n"})
    storage.index(csv_dataset(s3, "published"))
    view = published_by(quick_config).snapshot("rows")
    data, bounds = view.reader.gather(np.zeros(2, np.uint32), np.array([6, 0]), np.array([5, 5]))
    assert (data.tobytes(), bounds.tolist()) == (b"2,two1,one", [0, 5, 10])
    with pytest.raises(ConfigError, match="not a folder of this machine"):
        open_local_payloads(quick_config.endpoint("storage"), "rows")


def test_every_format_is_read_from_a_bucket(s3: S3Server, storage: RunningStorage) -> None:
    for id_, example in EXAMPLES.items():
        name = id_.lower()
        extra = {"a.label": b"7"} if id_ == "SingleSampleFileWrapper" else {}
        s3.put(f"formats/{name}", {example.name: example.write(example.samples), **extra})
        config = csv_dataset(s3, f"formats/{name}", name, file_wrapper=id_, file_wrapper_config=example.config)
        assert storage.index(config).problems == 0, list(storage.client.problems(name))
        keys = np.arange(len(example.samples))[::-1]
        found = [
            (bytes(batch.payload(i)), label)
            for batch in storage.payloads.fetch(name, keys)
            for i, label in enumerate(batch.labels.tolist())
        ]
        assert found[::-1] == example.found(example.samples), id_


def test_columns_are_read_from_a_bucket(s3: S3Server, storage: RunningStorage, tmp_path: Path) -> None:
    sites = ["a", None, "b", "c", "a", None, "b", "c", "a", "d"]
    for kind, (wrapper, options, column) in FORMATS.items():
        written = [write_sites(tmp_path, kind, sites, number) for number in range(2)]
        s3.put(f"columns/{kind}", {path.name: path.read_bytes() for path in written})
        config = csv_dataset(s3, f"columns/{kind}", kind, file_wrapper=wrapper, file_wrapper_config=options)
        assert storage.index(config).samples_indexed == 20, list(storage.client.problems(kind))
        storage.client.check_column(kind, column)
        (found,) = storage.client.column_values(kind, np.arange(20)[::-1], column)
        assert found.texts() == [*sites, *sites][::-1]
        with pytest.raises(ConfigError, match=f"no column '{column}1'"):
            storage.client.check_column(kind, f"{column}1")
        s3.put(f"columns/{kind}", {written[0].name: written[1].read_bytes() * 2})
        with pytest.raises((DataError, FileChangedError)):
            list(storage.client.column_values(kind, np.arange(20), column))


def test_small_files_wait_for_their_labels_and_are_not_copied(s3: S3Server, storage: RunningStorage, proxy: S3Proxy) -> None:
    objects = {f"{i}.png": bytes([i]) * (i + 1) for i in range(20)} | {f"{i}.label": str(i).encode() for i in range(18)}
    s3.put("images", objects | {"18.label": b"cat"})
    options = {"file_extension": ".png", "label_file_extension": ".label"}
    assert (
        storage.index(
            csv_dataset(through(proxy), "images", "images", file_wrapper="SingleSampleFileWrapper", file_wrapper_config=options)
        ).samples_indexed
        == 18
    )
    read = [asked.path for asked in proxy.take() if asked.method == "GET" and "?" not in asked.path]
    assert sorted(read) == sorted(f"/images/{i}.label" for i in range(19))
    problems = {problem.path: problem.reason for problem in storage.client.problems("images")}
    assert "its content 'cat' is not an int64 label" in problems["s3://images/18.png"]
    assert storage.payloads_of(list(range(18)), "images") == [
        bytes([label]) * (label + 1)
        for label in storage.store.dataset("images").snapshot().samples_by_key(np.arange(18)).labels.tolist()
    ]
    s3.put("images", {"18.label": b"18", "19.label": b"19"})
    assert storage.ingest("images").samples_indexed == 2


def test_problems_name_the_object_and_not_its_copy(s3: S3Server, storage: RunningStorage) -> None:
    s3.put("bad", {"dir/1.csv": b"1,one\nx,two\n"})
    assert storage.index(csv_dataset(s3, "bad")).problems == 1
    (problem,) = storage.client.problems("rows")
    assert problem.path == "s3://bad/dir/1.csv"
    assert problem.reason.startswith("s3://bad/dir/1.csv, line 2, row 2 at byte 6: the field 'x' is not an int64 label")
    s3.put("bad", {"dir/1.csv": b"1,one\n22,two\n"})
    assert storage.ingest("rows").samples_indexed == 2
    assert not storage.client.problems("rows")


def test_objects_that_grow_change_or_vanish_are_noticed(s3: S3Server, storage: RunningStorage) -> None:
    s3.put("change", {"grows.csv": b"1,one\n", "changes.csv": b"2,two\n", "goes.csv": b"3,three\n"})
    storage.index(csv_dataset(s3, "change"))
    before = {
        label: key
        for key, label in enumerate(storage.store.dataset("rows").snapshot().samples_by_key(np.arange(3)).labels.tolist())
    }
    assert storage.payloads_of([before[1]], "rows") == [b"1,one"]
    s3.put("change", {"grows.csv": b"1,one\n4,four\n", "changes.csv": b"2,other\n"})
    s3.remove("change/goes.csv")
    assert storage.ingest("rows").samples_indexed == 1
    assert storage.payloads_of([before[1], 3], "rows") == [b"1,one", b"4,four"]
    reasons = {problem.path: problem.reason for problem in storage.client.problems("rows")}
    assert "was rewritten" in reasons["s3://change/changes.csv"]
    assert "indexed but gone" in reasons["s3://change/goes.csv"]
    with pytest.raises(DataError, match="s3://change/changes.csv was changed after it was indexed"):
        storage.payloads_of([before[2]], "rows")
    with pytest.raises(DataError, match="cannot read s3://change/goes.csv at byte 0: there is no such object"):
        storage.payloads_of([before[3]], "rows")


def test_a_bucket_that_is_not_there_and_a_server_that_is_not_there(s3: S3Server, storage: RunningStorage) -> None:
    with pytest.raises(NotFoundError, match="s3://nowhere/x"):
        storage.client.register_dataset(csv_dataset(s3, "nowhere/x"))
    gone = open_filesystem(replace(s3, address="127.0.0.1:9").url("b"))
    with pytest.raises(UnavailableError, match="cannot be listed: .*check network, region, endpoint and credentials"):
        gone.check(Roots())


def test_a_name_that_is_too_long_is_refused(s3: S3Server, storage: RunningStorage) -> None:
    s3.put("names", {"ok.csv": b"2,two", "long" * 100 + ".csv": b"3,three"})
    assert storage.index(csv_dataset(s3, "names")).samples_indexed == 1
    reasons = {problem.path: problem.reason for problem in storage.client.problems("rows")}
    assert "File name too long" in reasons[f"s3://names/{'long' * 100}.csv"]


@pytest.mark.parametrize("key", ["x/../../../../../tmp/escaped.csv", "a//b.csv"])
def test_a_bucket_with_a_key_that_is_not_a_path_says_which(s3: S3Server, storage: RunningStorage, key: str) -> None:
    """Only what is in its folder is hidden, unless that is the dataset's own."""
    bucket, folder = f"keys{len(key)}", key[0]
    s3.put(f"{bucket}/p", {"ok.csv": b"2,two", f"{folder}/old.csv": b"3,three", "deep/er/1.csv": b"4,four"})
    config = csv_dataset(s3, f"{bucket}/p")
    assert storage.index(config).samples_indexed == 3
    s3.put_any(bucket, f"p/{key}", b"1,one")
    s3.put(f"{bucket}/p", {"deep/er/2.csv": b"5,five"})
    assert storage.ingest("rows").samples_indexed == 1
    (problem,) = storage.client.problems("rows")
    assert problem.path == f"s3://{bucket}/p/{folder}"
    # The server names the folder of the key, not all of it.
    assert re.search(rf'not a path of a file: .*"p/{folder}/.*: rename or remove that object', problem.reason)
    storage.client.register_dataset(csv_dataset(s3, f"{bucket}/p/{folder}", "below"))
    with pytest.raises(DataError, match=f"{bucket}/p/{folder} cannot be listed: "):
        storage.ingest("below")
    assert [problem.path for problem in storage.client.problems("below")] == [f"s3://{bucket}/p/{folder}"]
    s3.remove(f"{bucket}/p/{key}")
    assert storage.ingest("below").samples_indexed == 1
    assert storage.ingest("rows").problems == 0
    assert not [*storage.client.problems("rows"), *storage.client.problems("below")]
    assert not Path("/tmp/escaped.csv").exists()


def test_nothing_of_the_credentials_is_kept(s3: S3Server, quick_config: SystemConfig, caplog: pytest.LogCaptureFixture) -> None:
    s3.put("secret", {"1.csv": b"1,one\n"})
    with ExitStack() as stack, caplog.at_level(logging.DEBUG):
        storage = start_storage(quick_config, stack)
        storage.index(csv_dataset(s3, "secret"))
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in storage.store.dataset("rows").row.config.model_dump_json()
    kept = [path for path in Path(quick_config.state_dir).rglob("*") if path.is_file()]
    assert kept
    assert not any(b"test-secret" in path.read_bytes() for path in kept)
    assert "test-secret" not in caplog.text


def test_a_listing_is_read_page_by_page_and_keeps_what_is_new(s3: S3Server, proxy: S3Proxy) -> None:
    objects = {f"{i:02}.png": b"x" * (i + 1) for i in range(25)} | {f"{i:02}.label": b"1" for i in range(24)}
    s3.put("pages", {**objects, "notes.txt": b"x"})
    proxy.page = 7
    files, table = BucketFiles(through(proxy).url("pages")), FileTable()
    names = NameEndings(".png", ".label")
    listing = files.list_files(names, Roots(), table)
    asked = proxy.take()
    assert [("continuation-token" in page.path) for page in asked] == [False, *[True] * 7]
    assert sorted((file.path, file.size) for file in listing.files) == [(f"{i:02}.png", i + 1) for i in range(25)]
    assert [file.path for file in listing.files] == sorted(file.path for file in listing.files), "they were written in this order"
    assert all(file.tag >= 0 for file in listing.files)
    assert [files.status(f"s3://pages/{i}.label") is None for i in (23, 24)] == [False, True]
    assert files.status("s3://pages/notes.txt") is None
    assert not proxy.take(), "the listing says what is there"
    table.add(
        FileRow(i, file.path, file.size, file.mtime_ns, file.size, 1, "", tail=file.tag) for i, file in enumerate(listing.files)
    )
    s3.put("pages", {"03.png": b"abcd"})
    s3.remove("pages/05.png")
    again = files.list_files(names, Roots(), table)
    assert ([file.path for file in again.files], again.absent.tolist()) == (["03.png"], [5])
    proxy.take()
    assert files.status("s3://pages/07.label") is not None
    assert [asked.method for asked in proxy.take()] == ["HEAD"], "nothing is held of what is indexed and as it was"


def test_compressed_objects_are_unpacked(s3: S3Server, storage: RunningStorage, quick_config: SystemConfig) -> None:
    s3.put("packed", {"1.csv.gz": gzip.compress(b"1,one\n2,two\n"), "2.csv": b"3,three\n", "3.csv.bz2": b"cut"})
    storage.index(csv_dataset(s3, "packed"))
    assert [problem.path for problem in storage.client.problems("rows")] == ["s3://packed/3.csv.bz2"]
    assert sorted(storage.payloads_of([2, 0, 1], "rows")) == [b"1,one", b"2,two", b"3,three"]
    assert sorted(payloads_in(published_by(quick_config).snapshot("rows"), [2, 1, 0])) == [b"1,one", b"2,two", b"3,three"]


def test_an_object_that_is_replaced_between_listing_and_read_is_not_read(
    s3: S3Server, storage: RunningStorage, proxy: S3Proxy, quick_config: SystemConfig
) -> None:
    s3.put("replace", {"1.csv": b"1,one\n"})
    storage.index(csv_dataset(through(proxy), "replace"))
    replica = published_by(quick_config).snapshot("rows").reader
    place = np.zeros(1, np.uint32), np.array([0]), np.array([5])
    assert replica.gather(*place)[0].tobytes() == b"1,one"
    proxy.take()
    assert replica.gather(*place)[0].tobytes() == b"1,one"
    (asked,) = proxy.take()
    etag = hashlib.md5(b"1,one\n").hexdigest()
    assert asked.if_match == f'"{etag}"', "it is known by now"
    s3.put("replace", {"1.csv": b"1,two\n"})
    with pytest.raises(FileChangedError, match=r"s3://replace/1.csv \(byte 0 wanted\) is not as it was"):
        replica.gather(*place)
    (asked,) = proxy.take()
    assert asked.status == 412
    with pytest.raises(DataError, match="sample with key 0 cannot be read: .*s3://replace/1.csv"):
        storage.payloads_of([0], "rows")
    assert storage.ingest("rows").problems == 1
    with pytest.raises(DataError, match="was changed after it was indexed"):
        storage.payloads_of([0], "rows")
    s3.put("replace", {"1.csv": b"1,one\n"})
    storage.ingest("rows")
    assert storage.payloads_of([0], "rows") == [b"1,one"]
    proxy.take()
    s3.put("replace", {"1.csv": b"1"})
    fresh = published_by(quick_config).snapshot("rows").reader
    with pytest.raises(FileChangedError):
        fresh.gather(np.zeros(1, np.uint32), np.array([2]), np.array([3]))
    assert [(asked.if_match, asked.status) for asked in proxy.take()] == [(None, 416)]


def test_footers_and_labels_are_read_by_ranges(s3: S3Server, storage: RunningStorage, proxy: S3Proxy) -> None:
    """Indexing an object, or reading one of its samples, requests only a small part of the object."""
    rows = 40
    table = pa.table(
        {"data": [os.urandom(1 << 16) for _ in range(rows)], "label": range(rows), "more": [os.urandom(1 << 15)] * rows}
    )
    written = io.BytesIO()
    pq.write_table(table, written, row_group_size=4, compression="none", use_dictionary=False)
    archive = tar([(os.urandom(6 << 20), number) for number in range(2)])
    s3.put("ranged", {"1.parquet": written.getvalue(), "1.tar": archive})
    kinds = {
        "ParquetFileWrapper": (len(written.getvalue()), {"payload_columns": ["data"], "label_column": "label"}),
        "TarFileWrapper": (len(archive), {"payload_extension": "bin"}),
    }
    for kind, (size, options) in kinds.items():
        name = kind.lower()
        config = csv_dataset(through(proxy), "ranged", name, file_wrapper=kind, file_wrapper_config=options)
        storage.client.register_dataset(config)
        proxy.take()
        assert storage.ingest(name).problems == 0
        asked = [asked for asked in proxy.take() if asked.method == "GET" and "list-type" not in asked.path]
        assert all(asked.byte_range and asked.if_match for asked in asked)
        # Payloads of one column are looked at for their lengths; the other one is not, nor are members of archives.
        assert 0 < sum(asked.num_bytes for asked in asked) < (0.85 if kind.startswith("P") else 0.5) * size
    found = storage.payloads_of([17], "parquetfilewrapper")
    assert found == [table["data"][17].as_py()]
    asked = [asked for asked in proxy.take() if asked.method == "GET"]
    assert 0 < sum(asked.num_bytes for asked in asked) < 0.15 * kinds["ParquetFileWrapper"][0], (
        "a footer and one column of one group"
    )
    s3.put("ranged", {"1.parquet": written.getvalue()[:-1] + b"x"})
    with pytest.raises(DataError, match="key 30 cannot be read: .*row 30 wanted"):
        storage.payloads_of([30], "parquetfilewrapper")


def test_a_file_that_is_written_again_with_the_same_bytes_is_the_same(s3: S3Server, storage: RunningStorage) -> None:
    s3.put("again", {"1.png": b"x", "1.label": b"1", "2.png": b"y", "2.label": b"1"})
    options = {"file_extension": ".png", "label_file_extension": ".label"}
    assert (
        storage.index(
            csv_dataset(s3, "again", "images", file_wrapper="SingleSampleFileWrapper", file_wrapper_config=options)
        ).samples_indexed
        == 2
    )
    time.sleep(1.0 - time.time() % 1.0 + 0.05)  # Its time is another second.
    s3.put("again", {"1.png": b"x", "2.png": b"z"})
    assert storage.ingest("images").problems == 1
    (problem,) = storage.client.problems("images")
    assert "s3://again/2.png was written again after it was indexed" in problem.reason
    assert storage.payloads_of([0], "images") == [b"x"]


def test_google_is_read_by_its_own_client(s3: S3Server) -> None:
    """Its interface for XML is that of S3 as far as listings and reads go, so that this server answers it. Public objects: tokens it has none."""
    s3.request("PUT", "/google")
    for name, content in {"rows/a b.csv": b"1,one\n", "rows/2.csv": b"2,two\n"}.items():
        s3.put_any("google", name, content, **{"x-amz-acl": "public-read"})
    files = BucketFiles(f"gs://google/rows?endpoint_override={s3.address}&scheme=http&anonymous=true")
    files.check(Roots())
    listing = files.list_files(NameEndings(".csv"), Roots(), FileTable())
    assert {file.path for file in listing.files} == {"a b.csv", "2.csv"}
    for seen in listing.files:
        path = files.full_path(seen.path)
        assert path.startswith("gs://google/rows/")
        indexed = IndexedVersion(seen.size, seen.mtime_ns, seen.tag)
        assert bytes(files.read(path, 2, 5, indexed)) in {b"one", b"two"}
        assert files.version(seen) is not None
    s3.put_any("google", "rows/2.csv", b"3,new\n", **{"x-amz-acl": "public-read"})
    with pytest.raises(FileChangedError):
        files.read("gs://google/rows/2.csv", 2, 5, IndexedVersion(6, 0, tag_of(hashlib.md5(b"2,two\n").hexdigest())))
