"""Compressed CSV and JSON Lines: they are indexed and read by way of unpacked copies, which are bounded, checked and kept."""

from __future__ import annotations

import bz2
import gzip
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from modyn.errors import DataError
from modyn.records import Interval
from modyn.storage.files.unpacked import UnpackedCopies
from modyn.storage.read.payload_reader import LocalPayloads
from modyn.testing.waiting import eventually
from tests.support.running_storage import FileDataset, RunningStorage, files_dataset

PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}
Kind = tuple[str, dict[str, object], str, str]
CSV: Kind = "CsvFileWrapper", {"label_index": 0, "max_bad_rows": 0}, ".csv", "{},row {}\n"
JSON: Kind = "JsonLinesFileWrapper", {"label_field": "y"}, ".jsonl", '{{"y": {}, "x": "row {}"}}\n'


@pytest.fixture
def storage(module_storage: RunningStorage) -> RunningStorage:
    """One storage for all tests of the module."""
    return module_storage


class Folder(FileDataset):
    """A dataset of rows, by their numbers."""

    def __init__(self, storage: RunningStorage, path: Path, name: str, kind: Kind = CSV) -> None:
        wrapper, options, self.ending, self.row = kind
        super().__init__(storage, files_dataset(path, options, wrapper, name=name))

    def rows(self, *numbers: int) -> bytes:
        return "".join(self.row.format(i, i) for i in numbers).encode()

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / (name.replace("*", self.ending))
        path.write_bytes(content)
        os.utime(path, (1_000_000, 1_000_000))
        return path

    def payloads(self) -> list[bytes]:
        """Return the payloads of all samples, by key, from the payload server."""
        return sorted(self.storage.payloads_of(np.arange(self.next_key)[::-1], self.name))

    def expected(self, *numbers: int) -> list[bytes]:
        return sorted(self.rows(*numbers).split(b"\n")[:-1])

    def why(self) -> str:
        return "\n".join(self.reasons())

    @property
    def copies(self) -> Path:
        return self.storage.store.dataset(self.name).folder / "unpacked"


@pytest.mark.parametrize("kind", [CSV, JSON], ids=["csv", "json"])
def test_rows_of_compressed_files_are_samples(storage: RunningStorage, tmp_path: Path, kind: Kind) -> None:
    name = f"compressed-{kind[2][1:]}"
    folder = Folder(storage, tmp_path / "d", name, kind)
    folder.write("plain*", folder.rows(0, 1))
    for number, (ending, pack) in enumerate(PACK.items(), 1):
        # Two streams, one after the other, are one file.
        folder.write(f"a{number}*{ending}", pack(folder.rows(10 * number)) + pack(folder.rows(10 * number + 1)))
    folder.ingest()
    assert folder.why() == ""
    assert folder.payloads() == folder.expected(0, 1, 10, 11, 20, 21, 30, 31)
    dataset = storage.store.dataset(name)
    with LocalPayloads(name, lambda _: storage.store.offer_short_cut(name)) as local:
        found = local.locate(name, np.arange(8)).take(slice(0, 8))
    assert sorted(bytes(found.payload(i)) for i in range(8)) == folder.payloads()
    assert dataset.scrub() == []
    assert {file.stat().st_mode & 0o777 for file in folder.copies.rglob("*") if file.is_file()} == {0o600}


def test_a_compressed_file_is_read_once_it_is_whole_and_may_be_added_to(storage: RunningStorage, tmp_path: Path) -> None:
    folder = Folder(storage, tmp_path / "d", "growing")
    first, more = gzip.compress(folder.rows(*range(50))), gzip.compress(folder.rows(50, 51))
    path = folder.write("a*.gz", first[:-7])
    folder.ingest()
    assert f"{path} ends within its compressed data: it is cut, or still being written" in folder.why()
    path.write_bytes(first)
    folder.ingest()
    assert (folder.why(), folder.payloads()) == ("", folder.expected(*range(50)))
    path.write_bytes(first + more[:-7])
    folder.ingest()
    assert "ends within its compressed data" in folder.why()
    assert folder.payloads() == folder.expected(*range(50))  # What is indexed can be read all the while.
    path.write_bytes(first + more)
    folder.ingest()
    assert (folder.why(), folder.payloads()) == ("", folder.expected(*range(52)))
    os.utime(path, (2_000_000, 2_000_000))
    folder.ingest()
    assert (folder.why(), folder.payloads()) == ("", folder.expected(*range(52)))
    path.write_bytes(gzip.compress(folder.rows(*range(60, 112))))
    folder.ingest()
    assert "was rewritten: its first" in folder.why()
    with pytest.raises(DataError, match=r"a\.csv\.gz was changed after it was indexed"):
        folder.payloads()


def test_reasons_name_the_compressed_file(storage: RunningStorage, tmp_path: Path) -> None:
    folder = Folder(storage, tmp_path / "d", "reasons")
    damaged = folder.write("a*.bz2", b"BZh9 no such thing")
    bad = folder.write("b*.zst", PACK[".zst"](b"0,a\nx,b\n"))
    folder.ingest()
    assert f"{damaged} is damaged, or not compressed with bz2" in folder.why()
    assert f"{bad}, line 2, row 2 at byte 4: the field 'x' is not an int64 label" in folder.why()
    assert str(folder.copies) not in folder.why()


def test_unpacked_copies_are_bounded(storage: RunningStorage, tmp_path: Path) -> None:
    folder = Folder(storage, tmp_path / "d", "bomb")
    dataset = storage.store.dataset("bomb")
    dataset.limits = replace(dataset.limits, unpacked_bytes=1 << 20)
    bombs = [folder.write(f"a{ending[1:]}*{ending}", pack(b"0," + bytes(16 << 20))) for ending, pack in PACK.items()]
    folder.write("b*.gz", gzip.compress(folder.rows(1)))
    folder.ingest()
    why = "is not unpacked: the unpacked copies of the dataset would have more than 1,048,576 bytes"

    def is_known() -> bool:
        storage.store._scan(dataset)  # Files that are too many together, at the same time, are tried again.
        return all(f"{bomb} {why}" in folder.why() for bomb in bombs) and folder.payloads() == folder.expected(1)

    eventually(is_known)
    assert sum(file.stat().st_size for file in folder.copies.rglob("*") if file.is_file()) < 1 << 20


def test_a_copy_that_is_missing_is_made_again_and_damage_is_found(storage: RunningStorage, tmp_path: Path) -> None:
    folder = Folder(storage, tmp_path / "d", "missing")
    folder.write("a*.gz", gzip.compress(folder.rows(1, 2)))
    folder.ingest()
    (copy,) = folder.copies.rglob("a.csv.gz")
    copy.write_bytes(folder.rows(1, 3))
    (problem,) = storage.client.scrub_dataset("missing")
    assert "is damaged: its checksum is another; `modyn data ingest` makes it again" in problem.reason
    shutil.rmtree(copy.parent)
    with pytest.raises(DataError):
        folder.payloads()
    folder.ingest()
    assert (folder.payloads(), storage.client.scrub_dataset("missing")) == (folder.expected(1, 2), [])


def test_a_missing_copy_is_a_problem_until_it_is_made(storage: RunningStorage, tmp_path: Path) -> None:
    folder = Folder(storage, tmp_path / "d", "no-room")
    folder.write("a*.gz", gzip.compress(folder.rows(1, 2)))
    folder.ingest()
    dataset = storage.store.dataset("no-room")
    limits = dataset.limits
    shutil.rmtree(folder.copies)
    dataset.limits = replace(limits, unpacked_bytes=1)
    folder.ingest()
    for _ in range(2):
        assert "is missing, and cannot be made" in folder.why()
        assert storage.client.dataset("no-room").num_problems == 1
        storage.store._scan(dataset)
    dataset.limits = limits
    folder.ingest()
    assert (folder.why(), folder.payloads()) == ("", folder.expected(1, 2))


def test_a_copy_that_is_known_to_be_damaged_is_read_by_no_one_and_made_again(storage: RunningStorage, tmp_path: Path) -> None:
    """Only the checksum shows the damage, even to a reader that has mapped the copy."""
    folder = Folder(storage, tmp_path / "d", "flipped")
    folder.write("a*.gz", gzip.compress(folder.rows(1, 2)))
    folder.write("b*.gz", gzip.compress(folder.rows(3)))
    folder.write("c*", folder.rows(4))
    folder.ingest()
    (copy,) = folder.copies.rglob("a.csv.gz")
    with storage.short_cut("flipped") as local:

        def read(*keys: int) -> list[bytes]:
            there = local.locate("flipped", np.array(keys)).take(slice(None))
            return [bytes(there.payload(i)) for i in range(len(keys))]

        assert sorted(read(0, 1, 2, 3)) == folder.expected(1, 2, 3, 4)
        before = copy.stat()
        with copy.open("r+b") as file:
            file.write(b"9")
        os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
        (problem,) = storage.client.scrub_dataset("flipped")
        assert problem.path == str(copy.parent)
        asked: list[Callable[[], object]] = [lambda: read(0), folder.payloads]
        for ask in asked:
            with pytest.raises(DataError, match="a.csv.gz"):
                ask()
        assert sorted(read(2, 3)) == folder.expected(3, 4), "the others are read on"
        folder.ingest()
        assert (sorted(read(0, 1, 2, 3)), folder.payloads()) == (folder.expected(1, 2, 3, 4), folder.expected(1, 2, 3, 4))
    assert (storage.client.problems("flipped"), storage.client.scrub_dataset("flipped")) == ([], [])


def test_copies_that_no_file_needs_are_removed(tmp_path: Path) -> None:
    copies = UnpackedCopies(tmp_path / "unpacked")
    places = {copies.place(f"{name}.csv.gz", 1, 2) for name in "ab"}
    for place in places:
        os.makedirs(os.path.dirname(place))
    (tmp_path / "unpacked" / ".unfinished").mkdir()
    needed = {sorted(places)[0]}
    assert copies.keep_only(needed, 100.0)
    assert len(list((tmp_path / "unpacked").iterdir())) == 2  # A reader may be about to open the other one.
    assert not copies.keep_only(needed, 161.0)
    assert [str(path) for path in (tmp_path / "unpacked").iterdir()] == [os.path.dirname(place) for place in needed]


def test_the_same_rows_in_two_files_are_indexed_once(storage: RunningStorage, tmp_path: Path) -> None:
    """A tool that compresses a file may keep it, or remove it: its rows are indexed already."""
    folder = Folder(storage, tmp_path / "d", "twins")
    plain = folder.write("a*", folder.rows(1, 2))
    packed = folder.write("a*.gz", gzip.compress(folder.rows(1, 2)))
    folder.ingest()
    assert folder.payloads() == folder.expected(1, 2)
    assert f"{packed} is not indexed: {plain} is, which seems to hold the same rows" in folder.why()
    folder.write("b*.zst", PACK[".zst"](folder.rows(3)))
    folder.ingest()
    folder.write("b*", folder.rows(3))
    folder.ingest()
    assert folder.payloads() == folder.expected(1, 2, 3)


def test_the_name_of_a_compressed_file_may_give_the_time(storage: RunningStorage, tmp_path: Path) -> None:
    folder = FileDataset(storage, files_dataset(tmp_path / "dated", source=r"name:^([0-9-]+)\.csv"))
    (folder.folder / "2024-03-01.csv.gz").write_bytes(gzip.compress(b"1,a\n"))
    folder.ingest()
    (batch,) = storage.client.samples_in_interval("dated", Interval(), 10)
    assert batch.timestamps.tolist() == [1709251200]


@pytest.mark.parametrize("name", ["x.jsonl.gz", "README"])
def test_a_folder_without_a_file_of_the_dataset_says_what_it_holds(storage: RunningStorage, tmp_path: Path, name: str) -> None:
    folder = Folder(storage, tmp_path / "d", f"others-{len(name)}")
    folder.ingest()
    assert folder.why() == ""  # An empty folder waits for its files.
    (folder.folder / name).write_bytes(b"x")
    folder.ingest()
    shown = "1 × .jsonl.gz" if "." in name else "1 × without an ending"
    assert (
        f"no file below {folder.folder} has a name that ends in '.csv', or so and then in .gz, .zst, .bz2; there are {shown}."
        in folder.why()
    )
    folder.write("a*", folder.rows(1))
    folder.ingest()
    assert (folder.why(), folder.payloads()) == ("", folder.expected(1))
