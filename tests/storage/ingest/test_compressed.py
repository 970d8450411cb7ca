"""Compressed CSV and JSON Lines: they are indexed and read by way of unpacked copies, which are bounded, checked and kept."""

from __future__ import annotations

import bz2
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from modyn.config.dataset import DatasetConfig
from modyn.storage.read.payload_reader import LocalPayloads
from tests.support.running_storage import RunningStorage

PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}
CSV = "CsvFileWrapper", {"label_index": 0, "max_bad_rows": 0}, ".csv", "{},row {}\n"
JSON = "JsonLinesFileWrapper", {"label_field": "y"}, ".jsonl", '{{"y": {}, "x": "row {}"}}\n'


class Folder:
    """A dataset of rows, by their numbers."""

    def __init__(self, storage: RunningStorage, path: Path, name: str, kind: tuple[str, dict[str, object], str, str] = CSV) -> None:
        self.storage, self.path, self.name = storage, path, name
        wrapper, options, self.ending, self.row = kind
        path.mkdir()
        config = {"file_wrapper": wrapper, "file_wrapper_config": options, "watch": False}
        storage.client.register_dataset(DatasetConfig(name=name, base_path=path, **config))

    def rows(self, *numbers: int) -> bytes:
        return "".join(self.row.format(i, i) for i in numbers).encode()

    def write(self, name: str, content: bytes) -> Path:
        path = self.path / (name.replace("*", self.ending))
        path.write_bytes(content)
        os.utime(path, (1_000_000, 1_000_000))
        return path

    def ingest(self) -> None:
        for _ in self.storage.store.ingest(self.name):
            pass

    def payloads(self) -> list[bytes]:
        """Of all samples, by key, as the payload server sends them."""
        next_key = self.storage.client.dataset(self.name).next_key
        batches = self.storage.payloads.fetch(self.name, np.arange(next_key)[::-1]) if next_key else []
        return sorted(bytes(batch.payload(i)) for batch in batches for i in range(len(batch.keys)))

    def expected(self, *numbers: int) -> list[bytes]:
        return sorted(self.rows(*numbers).split(b"\n")[:-1])

    def reasons(self) -> str:
        return "\n".join(problem.reason for problem in self.storage.client.problems(self.name))

    @property
    def copies(self) -> Path:
        return self.storage.store.dataset(self.name).folder / "unpacked"


@pytest.mark.parametrize("kind", [CSV, JSON], ids=["csv", "json"])
def test_rows_of_compressed_files_are_samples(storage: RunningStorage, tmp_path: Path, kind: tuple[str, dict[str, object], str, str]) -> None:
    folder = Folder(storage, tmp_path / "d", "compressed", kind)
    folder.write("plain*", folder.rows(0, 1))
    for number, (ending, pack) in enumerate(PACK.items(), 1):
        # Two streams, one behind the other, are one file.
        folder.write(f"a{number}*{ending}", pack(folder.rows(10 * number)) + pack(folder.rows(10 * number + 1)))
    folder.ingest()
    assert folder.reasons() == ""
    assert folder.payloads() == folder.expected(0, 1, 10, 11, 20, 21, 30, 31)
    dataset = storage.store.dataset("compressed")
    with LocalPayloads("compressed", lambda _: storage.store.offer_short_cut("compressed")) as local:
        found = local.locate("compressed", np.arange(8)).take(slice(0, 8))
    assert sorted(bytes(found.payload(i)) for i in range(8)) == folder.payloads()
    assert dataset.scrub() == []
    assert {file.stat().st_mode & 0o777 for file in folder.copies.rglob("*") if file.is_file()} == {0o600}
