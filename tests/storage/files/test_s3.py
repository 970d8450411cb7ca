"""Datasets in buckets, from registration to payloads, against moto's server."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modyn.config.system import DatasetConfig, SystemConfig
from modyn.errors import AlreadyExistsError, ConfigError, DataError, NotFoundError, UnavailableError
from modyn.storage.files.file_system import FileSystem, Roots
from modyn.storage.files.local import open_filesystem
from modyn.storage.payloads import open_local_payloads
from modyn.storage.read.published_datasets import PublishedDatasets, PublishedNames
from modyn.storage.read.record_readers import RecordReaders
from tests.support.format_examples import EXAMPLES
from tests.support.running_storage import RunningStorage, start_storage
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


def csv_dataset(s3: S3Server, folder: str, name: str = "rows", **options: Any) -> DatasetConfig:
    fields = {"file_wrapper": "CsvFileWrapper", "file_wrapper_config": {"label_index": 0}, "watch": False, **options}
    return DatasetConfig(name=name, base_path=s3.url(folder), **fields)


def payloads(storage: RunningStorage, name: str, keys: list[int]) -> list[bytes]:
    return [bytes(batch.payload(i)) for batch in storage.payloads.fetch(name, np.array(keys)) for i in range(len(batch))]


def test_rows_are_indexed_and_read_in_any_order(s3: S3Server, storage: RunningStorage) -> None:
    s3.put("rows/a b", {"1.csv": b"1,one\n2,two\n", "deep/2.csv": b"3,three", "notes.txt": b"x"})
    config = csv_dataset(s3, "rows/a b")
    storage.client.register_dataset(config)
    progress = storage.ingest("rows")
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
    storage.client.register_dataset(csv_dataset(s3, "published"))
    storage.ingest("rows")
    view = PublishedDatasets(PublishedNames.of(quick_config), RecordReaders(1), "replica-1").snapshot("rows")
    data, bounds = view.reader.gather(np.zeros(2, np.uint32), np.array([6, 0]), np.array([5, 5]))
    assert (data.tobytes(), bounds.tolist()) == (b"2,two1,one", [0, 5, 10])
    with pytest.raises(ConfigError, match="no folder of this machine"):
        open_local_payloads(quick_config.endpoint("storage"), "rows")


def test_every_format_is_read_from_a_bucket(s3: S3Server, storage: RunningStorage) -> None:
    for id_, example in EXAMPLES.items():
        name = id_.lower()
        extra = {"a.label": b"7"} if id_ == "SingleSampleFileWrapper" else {}
        s3.put(f"formats/{name}", {example.name: example.write(example.samples), **extra})
        config = csv_dataset(s3, f"formats/{name}", name, file_wrapper=id_, file_wrapper_config=example.config)
        storage.client.register_dataset(config)
        assert storage.ingest(name).problems == 0, list(storage.client.problems(name))
        keys = np.arange(len(example.samples))[::-1]
        found = [
            (bytes(batch.payload(i)), label)
            for batch in storage.payloads.fetch(name, keys)
            for i, label in enumerate(batch.labels.tolist())
        ]
        assert found[::-1] == example.found(example.samples), id_


def test_small_files_wait_for_their_labels_and_are_not_copied(
    s3: S3Server, storage: RunningStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = {f"{i}.png": bytes([i]) * (i + 1) for i in range(20)} | {f"{i}.label": str(i).encode() for i in range(18)}
    s3.put("images", objects | {"18.label": b"cat"})
    read: list[str] = []
    files = type(open_filesystem(s3.url("images")))
    original = files.open

    def noted(self: FileSystem, path: str) -> object:
        read.append(path)
        return original(self, path)

    monkeypatch.setattr(files, "open", noted)
    options = {"file_extension": ".png", "label_file_extension": ".label"}
    storage.client.register_dataset(
        csv_dataset(s3, "images", "images", file_wrapper="SingleSampleFileWrapper", file_wrapper_config=options)
    )
    assert storage.ingest("images").samples_indexed == 18
    assert sorted(read) == sorted(f"s3://images/{i}.label" for i in range(19))
    problems = {problem.path: problem.reason for problem in storage.client.problems("images")}
    assert "its content is not an int64 label" in problems["s3://images/18.png"]
    assert payloads(storage, "images", list(range(18))) == [
        bytes([label]) * (label + 1)
        for label in storage.store.dataset("images").snapshot().samples_by_key(np.arange(18)).labels.tolist()
    ]
    s3.put("images", {"18.label": b"18", "19.label": b"19"})
    assert storage.ingest("images").samples_indexed == 2


def test_problems_name_the_object_and_not_its_copy(s3: S3Server, storage: RunningStorage) -> None:
    s3.put("bad", {"dir/1.csv": b"1,one\nx,two\n"})
    storage.client.register_dataset(csv_dataset(s3, "bad"))
    assert storage.ingest("rows").problems == 1
    (problem,) = storage.client.problems("rows")
    assert problem.path == "s3://bad/dir/1.csv"
    assert problem.reason.startswith("s3://bad/dir/1.csv, row 2 at byte 6: the field is not an int64 label")
    s3.put("bad", {"dir/1.csv": b"1,one\n22,two\n"})
    assert storage.ingest("rows").samples_indexed == 2
    assert not storage.client.problems("rows")


def test_objects_that_grow_change_or_vanish_are_noticed(s3: S3Server, storage: RunningStorage) -> None:
    s3.put("change", {"grows.csv": b"1,one\n", "changes.csv": b"2,two\n", "goes.csv": b"3,three\n"})
    storage.client.register_dataset(csv_dataset(s3, "change"))
    storage.ingest("rows")
    before = {
        label: key
        for key, label in enumerate(storage.store.dataset("rows").snapshot().samples_by_key(np.arange(3)).labels.tolist())
    }
    assert payloads(storage, "rows", [before[1]]) == [b"1,one"]
    s3.put("change", {"grows.csv": b"1,one\n4,four\n", "changes.csv": b"2,other\n"})
    s3.remove("change/goes.csv")
    assert storage.ingest("rows").samples_indexed == 1
    assert payloads(storage, "rows", [before[1], 3]) == [b"1,one", b"4,four"]
    reasons = {problem.path: problem.reason for problem in storage.client.problems("rows")}
    assert "was rewritten" in reasons["s3://change/changes.csv"]
    assert "indexed but gone" in reasons["s3://change/goes.csv"]
    with pytest.raises(DataError, match="s3://change/changes.csv was changed after it was indexed"):
        payloads(storage, "rows", [before[2]])
    with pytest.raises(DataError, match="cannot read s3://change/goes.csv at byte 0: there is no such object"):
        payloads(storage, "rows", [before[3]])


def test_a_bucket_that_is_not_there_and_a_server_that_is_not_there(s3: S3Server, storage: RunningStorage) -> None:
    with pytest.raises(NotFoundError, match="s3://nowhere/x"):
        storage.client.register_dataset(csv_dataset(s3, "nowhere/x"))
    gone = open_filesystem(replace(s3, address="127.0.0.1:9").url("b"))
    with pytest.raises(UnavailableError, match="check network"):
        gone.check(Roots())


def test_names_that_no_file_may_have_are_refused(s3: S3Server, storage: RunningStorage) -> None:
    s3.put("names", {"ok.csv": b"2,two", "long" * 100 + ".csv": b"3,three"})
    s3.put_any("names", "x/../../../../../tmp/escaped.csv", b"1,one")
    s3.put_any("names", "a//b.csv", b"4,four")
    storage.client.register_dataset(csv_dataset(s3, "names"))
    assert storage.ingest("rows").samples_indexed == 1
    reasons = {problem.path: problem.reason for problem in storage.client.problems("rows")}
    assert "none that a file may have" in reasons["s3://names/x/../../../../../tmp/escaped.csv"]
    assert "none that a file may have" in reasons["s3://names/a//b.csv"]
    assert "File name too long" in reasons[f"s3://names/{'long' * 100}.csv"]
    assert not Path("/tmp/escaped.csv").exists()


def test_nothing_of_the_credentials_is_kept(s3: S3Server, quick_config: SystemConfig, caplog: pytest.LogCaptureFixture) -> None:
    s3.put("secret", {"1.csv": b"1,one\n"})
    with ExitStack() as stack, caplog.at_level(logging.DEBUG):
        storage = start_storage(quick_config, stack)
        storage.client.register_dataset(csv_dataset(s3, "secret"))
        storage.ingest("rows")
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in storage.store.dataset("rows").row.config.model_dump_json()
    kept = [path for path in Path(quick_config.state_dir).rglob("*") if path.is_file()]
    assert kept
    assert not any(b"test-secret" in path.read_bytes() for path in kept)
    assert "test-secret" not in caplog.text
